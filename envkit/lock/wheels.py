"""Solve wheels: first the torch family from its own index, then the rest from the Python index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from envkit.ground.errors import ConflictError
from envkit.ground.versions import key, minor
from envkit.lock import sizes, uv
from envkit.lock.model import Wheel
from envkit.lock.places import Places
from envkit.lock.uv import Target
from envkit.lock.values import last_part
from envkit.lock.wheel_choice import IndexWheel, parse_pylock, ranks_of
from envkit.plan.model import BuildPlan
from envkit.plan.source_spec import parse

_CUDA_WHEELS = ("nvidia-", "cuda-")
_CUDA_INSIDE = "1.12"  # the last minor version of torch whose wheels on the Python index contain CUDA


def solve(
    plan: BuildPlan,
    target: Target,
    places: Places,
    *,
    torch: Sequence[str],
    chosen: Mapping[str, str],
    as_of: str | None = None,
    keep: Sequence[Wheel] = (),
    built: Mapping[Path, Wheel] = MappingProxyType({}),
) -> tuple[Wheel, ...]:
    """Return the wheels of a plan, sorted by name.

    Args:
        plan: for its other requirements, its source of torch and its CUDA.
        target: the interpreter that runs them.
        places: the indexes.
        torch: requirements of the torch family; none if it comes from conda.
        chosen: distribution -> version of conda's Python packages: respected, but not installed again.
        as_of: RFC 3339; newer files are not considered.
        keep: wheels of an older lock whose versions are kept.
        built: wheels that were built from source, by file. All are used, and their dependencies are solved too.

    Raises:
        UsageError: a requirement is invalid.
        ConflictError: no wheels satisfy the requirements, or only a CPU build does and CUDA is requested.
        EnvironmentProblem: uv is missing, or an index does not answer or has no SHA-256.
        TimeLimitError: uv did not finish in time.
    """
    own_index = plan.resolution.source == "pytorch" and bool(torch)
    rest = (*plan.pip, *_by_name(plan, built), *(f"{wheel.name}=={wheel.version}" for wheel in built.values()))
    first = tuple(torch) if own_index else (*torch, *rest)
    second = rest if own_index else ()
    pins = tuple(f"{wheel.name}=={wheel.version}" for wheel in keep)
    ranks = ranks_of(target.platform, target.glibc, target.python)
    names = frozenset(wheel.name for wheel in built.values())
    solved: list[Wheel] = []
    # One index for each solve: with both in one, a package of the same name in the other index could be chosen.
    for wanted, index in (
        (first, _torch_index(places) if own_index else _python_index(places)),
        (second, _python_index(places)),
    ):
        if not wanted:
            continue
        installed = {**chosen, **{wheel.name: wheel.version for wheel in solved}}
        limits = uv.Limits(
            chosen=installed,
            # The old version of a package that is chosen already would contradict the new one.
            pins=[pin for pin in pins if pin.partition("==")[0] not in (*installed, *names)],
            constraints=plan.constraints,
            # Built wheels are requirements of `rest`, which the first solve includes only without an own index.
            built=tuple(built) if wanted is not first or not own_index else (),
        )
        text, known = uv.compile_wheels(wanted, target, limits, index, as_of=as_of)
        rows = _sized(parse_pylock(text, ranks, without=known | names), index)
        solved += [_wheel(row, places, own=wanted is first and own_index) for row in rows]
    _no_cpu_build(plan, solved)
    return tuple(sorted([*solved, *built.values()], key=lambda wheel: wheel.name))


def _by_name(plan: BuildPlan, built: Mapping[Path, Wheel]) -> list[str]:
    """Return the packages that may be built from source but have a wheel, as requirements."""
    specs = [parse(text) for text in plan.allow_source]
    done = {wheel.name for wheel in built.values()}
    return [spec.requirement for spec in specs if spec.requirement is not None and spec.name not in done]


def _torch_index(places: Places) -> uv.Index:
    # A flat page has only the torch family; its dependencies are in the Python index.
    url = places.python_index if places.torch_pages else places.torch_index
    return uv.Index(url=url, pages=places.torch_pages, ca_bundle=places.ca_bundle)


def _python_index(places: Places) -> uv.Index:
    return uv.Index(url=places.python_index, ca_bundle=places.ca_bundle)


def _sized(rows: Sequence[IndexWheel], index: uv.Index) -> tuple[IndexWheel, ...]:
    # Split by the index that lists the file: its login and the addresses it may lead to depend on that index.
    unknown = [row.url for row in rows if row.size is None]
    listed = [url for url in unknown if _is_listed(url, index.pages)]
    known = sizes.ask(listed, index=index.pages, ca_bundle=index.ca_bundle)
    others = [url for url in unknown if url not in known]
    known |= sizes.ask(others, index=index.url, ca_bundle=index.ca_bundle)
    return tuple(replace(row, size=row.size or known[row.url]) for row in rows)


def _is_listed(url: str, pages: str | None) -> bool:
    return pages is not None and url.startswith(pages)


def _wheel(row: IndexWheel, places: Places, *, own: bool) -> Wheel:
    assert row.size is not None
    return Wheel(
        name=row.name,
        version=row.version,
        file=last_part(row.url),
        url=places.public(row.url),
        sha256=row.sha256,
        size=row.size,
        source="pytorch" if own and (places.torch_pages is None or _is_listed(row.url, places.torch_pages)) else "pypi",
    )


def _no_cpu_build(plan: BuildPlan, wheels: Sequence[Wheel]) -> None:
    torch = next((wheel for wheel in wheels if wheel.name == "torch"), None)
    if torch is None or plan.resolution.cuda is None:
        return
    # The index of a CUDA version has files without a local version, such as torch-2.4.0-cp38-cp38-linux_aarch64.whl.
    stated = torch.source == "pytorch" and torch.version == plan.resolution.files.get("torch")
    # A wheel of the Python index does not name its variant, but one with CUDA depends on NVIDIA's wheels.
    depends = any(wheel.name.startswith(_CUDA_WHEELS) for wheel in wheels)
    inside = torch.source == "pypi" and key(minor(torch.version)) <= key(_CUDA_INSIDE)
    plain = "+" not in torch.version and not (stated or depends or inside)
    if torch.version.endswith("+cpu") or plain:
        raise ConflictError(
            f"CUDA {plan.resolution.cuda} was requested, but the index returned a CPU build of "
            f"torch {torch.version} ({torch.file})",
            hint="use --source pytorch, whose wheel versions name their CUDA, or --cpu for a CPU image",
        )
