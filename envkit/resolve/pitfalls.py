"""Known traps that do not rule out a combination but need a pin or a warning.

A row of the traps table applies if all its conditions hold. A condition on a package (`numpy: >=2`) becomes the pin
that avoids it; a row without one becomes a warning in the row's own words. Rows about GPUs, drivers and files are
skipped here, because the rules have checked those for the chosen build.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from envkit.facts.conditions import alternatives, concerns
from envkit.facts.model import Build, Companion, Release, Trap
from envkit.ground.versions import key, parse_constraint
from envkit.resolve.choice import compile_supported
from envkit.resolve.companions import COMPANIONS, companion, left_out
from envkit.resolve.forward import FORWARD, package
from envkit.resolve.index import WHEEL_SOURCES, Index, unsure
from envkit.resolve.rules import Sieve, code, cudnn_doubted, driven_doubted

PACKAGES = ("numpy", "setuptools", "mkl")
_CONDITIONS = frozenset({"torch", "cuda", "cudnn", "python", "source", "platform", "os", *PACKAGES})
_OPPOSITE = {">=": "<", ">": "<=", "<": ">=", "<=": ">"}


@dataclass(frozen=True, slots=True)
class Chosen:
    """The build and the Python that the resolver chose."""

    build: Build
    release: Release | None
    python: str
    sieve: Sieve

    @property
    def values(self) -> dict[str, str]:
        """The values that conditions are evaluated on; unknown ones are missing."""
        system = self.sieve.wanted.os
        known = {
            "torch": self.build.torch,
            "cuda": self.build.cuda,
            "cudnn": self.build.cudnn,
            "python": self.python,
            "source": self.build.source,
            "platform": self.build.platform,
            "os": system.id if system else None,
        }
        return {name: value for name, value in known.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Advice:
    """Package specs to add with the reason for each, sentences to show, and the sources of both."""

    pins: dict[str, str]
    warnings: tuple[str, ...]
    refs: tuple[str, ...]


def advice(chosen: Chosen) -> Advice:
    """Return the pins and warnings for a choice."""
    pins: dict[str, str] = {}
    warnings: list[str] = [*_ended(chosen), *_row(chosen), *_partners(chosen), *_machine(chosen)]
    refs: list[str] = []
    for trap in chosen.sieve.index.facts.traps:
        if trap.severity == "info" or not _springs(trap, chosen):
            continue
        refs += trap.refs
        # No version of these packages is chosen yet, so the pin excludes the versions that would meet the condition.
        packages = [name for name in PACKAGES if name in trap.when]
        for name in packages:
            pins.setdefault(name + _avoiding(trap.when[name]), trap.title)
        if not packages:
            warnings.append(f"{trap.title}: {trap.effect} {trap.fix}")
    for requirement in chosen.build.index_lacks:
        pins.setdefault(requirement, f"required, and the index of CUDA {chosen.build.cuda} does not have it")
    own = chosen.release.setuptools if chosen.release else None
    if own and own[0] in "<>=!~":
        pins.setdefault(f"setuptools{own}", f"torch {chosen.build.torch} requires it")
    if triton_gone(chosen):
        warnings.append(
            f"torch {chosen.build.torch} has no triton for Python {chosen.python}, so torch.compile does not work"
        )
    elif not compile_supported(chosen.python, chosen.release):
        warnings.append(f"torch.compile in torch {chosen.build.torch} does not support Python {chosen.python}")
    return Advice(pins, tuple(dict.fromkeys(warnings)), tuple(refs))


def triton_gone(chosen: Chosen) -> bool:
    """Return whether torch's metadata leaves triton out on this Python, which torch.compile does not support."""
    trap = _trap(chosen, "triton-marker")
    if trap is None or compile_supported(chosen.python, chosen.release):
        return False
    return all(concerns(trap.when, name, chosen.values[name]) for name in ("torch", "python"))


def _springs(trap: Trap, chosen: Chosen) -> bool:
    values = chosen.values
    return set(trap.when) <= _CONDITIONS and all(
        name in PACKAGES or (name in values and concerns(trap.when, name, values[name])) for name in trap.when
    )


def _avoiding(condition: str) -> str:
    """Return the version specifier that excludes a condition: `>=2` -> `<2`."""
    parts = alternatives(condition)
    clauses = [clause for part in parts for clause in parse_constraint(part, "trap").clauses]
    return ",".join(f"{_OPPOSITE.get(operator, '!=')}{number}" for operator, number in clauses)


def _ended(chosen: Chosen) -> Iterator[str]:
    """Yield a warning if the source no longer publishes builds for this CUDA."""
    build, index = chosen.build, chosen.sieve.index
    if build.cuda is None:
        return
    newest = index.newest[build.source]
    if build.source == "conda-pytorch":
        yield f"the pytorch conda channel ended with torch {newest}; later releases are wheels only"
        return
    last = index.last[build.source, build.cuda]
    if last == newest:
        return
    # `last` is older than the newest torch of this source, so a later release exists.
    after = min((name for name in index.rank if key(name) > key(last)), key=key)
    more = {row.cuda for row in index.facts.builds if row.source == build.source and row.torch == after and row.cuda}
    then = f"; torch {after} has CUDA {', '.join(sorted(more, key=key))}" if more else ""
    where = {"pypi": " on the Python index", "conda-forge": " on conda-forge"}.get(build.source, " wheels")
    yield f"torch {last} is the last release with CUDA {build.cuda}{where}{then}"


def _row(chosen: Chosen) -> Iterator[str]:
    """Yield warnings about the quality of the chosen row's data."""
    build = chosen.build
    if build.pythons is None:
        others = f"other builds of torch {build.torch} support Python {chosen.python}"
        yield f"the Python versions of this build are unknown; {others}"
    elif unsure(build):
        yield f"no source lists this build of torch {build.torch}; it is inferred: {build.note or 'no details'}"
    elif build.confidence == "conflict":
        yield build.note or "sources disagree about this build"
    if not build.advertised and build.source in WHEEL_SOURCES:
        yield f"CUDA {build.cuda} for torch {build.torch} is not advertised upstream, but the index has it"


def _partners(chosen: Chosen) -> Iterator[str]:
    """Yield a warning for each companion without a file that fits, and for one that lacks torch's CUDA."""
    for name in COMPANIONS:
        wheel = companion(chosen.build, name, chosen.python, chosen.sieve.index)
        if wheel is None and chosen.build.source in WHEEL_SOURCES:
            yield f"{name} {left_out(chosen.build, name, chosen.python, chosen.sieve.index)}"
        elif wheel is not None and chosen.build.cuda and wheel.cuda is None and _has_cuda(wheel, chosen.sieve.index):
            yield (
                f"{name} {wheel.pinned} is a CPU build there: it works with torch {chosen.build.torch}, "
                "without its own CUDA code"
            )


def _has_cuda(wheel: Companion, index: Index) -> bool:
    """Return whether other wheels of the same release have CUDA code."""
    return any(
        row.cuda for row in index.facts.companions if (row.package, row.version) == (wheel.package, wheel.version)
    )


def _machine(chosen: Chosen) -> Iterator[str]:
    """Yield warnings about the machine that will run the image: its GPUs, driver and OS."""
    build, sieve = chosen.build, chosen.sieve
    cudnn = _trap(chosen, "cudnn-old-gpu")
    for card in sieve.wanted.cards:
        kind = code(build, card.gpu)
        if kind == "unknown":
            yield f"no source lists the GPUs that this build has code for, so {card} may not work; envkit verify tells"
        if kind == "ptx":
            yield (
                f"this build has no compiled code for {card}: the driver compiles PTX at first use, which takes "
                "minutes and needs the native driver version or newer"
            )
        if cudnn_doubted(build, card.gpu, sieve.index):
            named = f"its cuDNN {build.cudnn}" if build.cudnn else "its cuDNN (version unknown)"
            yield f"{named} may no longer support {card} (inferred from neighboring versions)"
        if sieve.wanted.driver and driven_doubted(card.gpu, sieve.wanted.driver):
            branch = card.gpu.min_driver_branch
            yield f"{card} may need driver branch R{branch} or newer (inferred from the first CUDA version with it)"
        if card.gpu.last_driver_branch is not None:
            yield f"driver branch R{card.gpu.last_driver_branch} is the last that supports {card}; stay on it"
        if cudnn and build.cudnn and concerns(cudnn.when, "gpu", card.gpu.capability):
            yield f"keep cuDNN {build.cudnn} for {card}: {cudnn.title}"
    driver = sieve.wanted.driver
    if driver and build.cuda and sieve.modes[build.cuda] == "minor-compatible":
        yield (
            f"driver {driver} runs CUDA {build.cuda} by minor-version compatibility only: PTX code "
            f"fails; driver {sieve.index.needs[build.cuda].native} or newer runs all code"
        )
    if driver and build.cuda and sieve.modes[build.cuda] == FORWARD:
        yield (
            f"driver {driver} runs CUDA {build.cuda} by forward compatibility only: the image needs "
            f"{package(build.cuda)}, which envkit does not install, and must find its libcuda before the driver's"
        )
    system = sieve.wanted.os
    if system and system.eol and system.eol <= sieve.index.facts.collected:
        yield f"{system.title} has had no security updates since {system.eol}"


def _trap(chosen: Chosen, name: str) -> Trap | None:
    return next((trap for trap in chosen.sieve.index.facts.traps if trap.id == name), None)
