"""Read the files of a torch release, or a local wheel, as evidence for the facts."""

from __future__ import annotations

import hashlib
import json
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from envkit.evidence.derive import Release, evidence_of, platform_of
from envkit.evidence.proposals import variant_evidence
from envkit.evidence.pulled import Pulled, read_pulled
from envkit.evidence.read import METADATA_ONLY, PARTNERS, Level, Proofs, read_local, read_wheel
from envkit.ground.errors import EnvironmentProblem, IntegrityError, UsageError
from envkit.ground.versions import key

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from envkit.evidence.derive import Row
    from envkit.evidence.index import FileList, Index, WheelFile
    from envkit.facts.model import Facts

_NEWEST = 6  # partner releases to try for a torch that is not in the facts
_HINT = "envkit matrix prove torch==2.7.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Proved:
    """The evidence of one release."""

    release: Release
    rows: tuple[Row, ...]


def release_named(requirement: str) -> str:
    """Return the version of a requirement such as `torch==2.15.0`.

    Raises:
        UsageError: the text is not such a requirement.
    """
    name, separator, version = requirement.partition("==")
    parts = version.split(".")
    if name.strip().lower() != "torch" or not separator or not all(part.isdecimal() for part in parts):
        raise UsageError(
            f"{requirement!r:.80} is neither torch==VERSION nor a wheel", hint=f"{_HINT}, or ./my-torch.whl"
        )
    return version.strip()


def prove_release(
    index: Index,
    torch: str,
    facts: Facts,
    level: Level,
    *,
    cache: Path | None = None,
    refused: list[IntegrityError] | None = None,
) -> Proved:
    """Read one wheel of a release per platform, and the wheels of its partners (torchvision, torchaudio).

    Args:
        index: the package index.
        torch: the release.
        facts: have the compatible partner releases.
        level: how much to read.
        cache: XDG_CACHE_HOME/envkit, for the results; None: not cached.
        refused: receives the errors of refused files, which are left out; None: the first error is raised.

    Raises:
        UsageError: the index has no wheel of that release.
        EnvironmentProblem: the index does not answer.
        IntegrityError: a file differs from the index or is invalid.
    """
    files = index.files("torch")
    chosen = _chosen(files.of(torch))
    if not chosen:
        newest = sorted(files.versions, key=key)[-3:]
        raise UsageError(
            f"{files.url} has no Linux wheel of torch {torch}; its newest are {', '.join(newest)}",
            hint=f"envkit matrix prove torch=={newest[-1]}" if newest else _HINT,
        )
    wheels, partners, lists = {}, {}, {"torch": files}
    pulled: dict[str, Pulled] = {}
    for platform, file in chosen.items():
        with _collected(refused):
            proofs = _read(index, file, level, cache)
            _check_names(proofs, torch, platform)
            wheels[platform] = proofs
            if (dependencies := read_pulled(index, file, platform, cache=cache)) is not None:
                pulled[platform] = dependencies
    for name in PARTNERS:
        lists[name] = index.files(name)
        with _collected(refused):
            if partner := _partner(index, lists[name], torch, facts, cache):
                partners[name] = partner
    release = Release(
        torch=torch, source="pypi", files=files, wheels=wheels, partners=partners,
        partner_files={name: lists[name] for name in PARTNERS},
        list_sha256={name: _digest(file_list, torch if name == "torch" else _version(partners.get(name, {})))
                     for name, file_list in lists.items()},
        pulled=pulled,
    )  # fmt: skip
    return Proved(release=release, rows=(*evidence_of(release), *variant_evidence(release, facts)))


def prove_cudnn(index: Index, package: str, version: str, cache: Path | None = None) -> Proofs | None:
    """Read the machine code in the library of a cuDNN; None if the index has no such wheel for linux-64.

    Raises: as `prove_release`.
    """
    files = [file for file in index.files(package).of(version) if platform_of(file.tag) == "linux-64"]
    # A wheel of cuDNN is for any Python (py3-none-...), so there is usually one for each platform.
    return _read(index, files[0], Level(deep=True), cache) if files else None


@contextmanager
def _collected(refused: list[IntegrityError] | None) -> Iterator[None]:
    """Add the error of a refused file to a list; without a list, raise it."""
    try:
        yield
    except IntegrityError as error:
        if refused is None:
            raise
        refused.append(error)


def prove_file(path: Path, level: Level) -> Proved:
    """Read a local wheel.

    Raises:
        UsageError: the file name is not that of a Linux wheel of torch.
        EnvironmentProblem: the file cannot be read.
        IntegrityError: the wheel is invalid.
    """
    try:
        name, version, _, _ = parse_wheel_filename(path.name)
    except InvalidWheelFilename as error:
        raise UsageError(f"{path.name!r:.120} is not the name of a wheel", hint=_HINT) from error
    platform = platform_of(path.name.removesuffix(".whl").rpartition("-")[2])
    if name != "torch" or platform is None:
        raise UsageError(f"{path.name!r:.120} is not a Linux wheel of torch", hint=_HINT)
    proofs = read_local(path, level)
    if proofs.text("name") != "torch" or proofs.text("version") != str(version):
        raise IntegrityError(
            f"{path.name} is refused: it contains {proofs.text('name')} {proofs.text('version')}",
            hint="rename the file",
        )
    release = Release(
        torch=version.public, source="pytorch" if version.local else "pypi", files=None, wheels={platform: proofs},
        partners={}, partner_files={}, list_sha256={}, pulled={},
    )  # fmt: skip
    return Proved(release=release, rows=tuple(evidence_of(release)))


def _chosen(files: tuple[WheelFile, ...], *, any_python: bool = False) -> dict[str, WheelFile]:
    """Return one wheel per platform: that of the oldest Python, which every release has for both platforms.

    A wheel for any Python (`cp310-abi3`) is taken only with `any_python`.

    If a wheel has several builds, the one with the highest build tag is used, as installers do.
    """
    chosen: dict[str, WheelFile] = {}
    newest = sorted(files, key=lambda wheel: wheel.build_order, reverse=True)
    # A stable sort: for each Python, the highest build stays first. Free-threaded builds come last.
    for file in sorted(newest, key=lambda wheel: [(python.endswith("t"), key(python)) for python in wheel.pythons]):
        platform = platform_of(file.tag)
        if platform is not None and (file.pythons or any_python):
            chosen.setdefault(platform, file)
    return dict(sorted(chosen.items()))


def _read(index: Index, file: WheelFile, level: Level, cache: Path | None) -> Proofs:
    if file.sha256 is None:
        raise EnvironmentProblem(
            f"the index has no SHA-256 for {file.name}, so the file cannot be used as evidence",
            hint="use another index: ENVKIT_PYTHON_INDEX=URL",
        )
    return read_wheel(file.name, index.remote(file), level, sha256=file.sha256, date=file.uploaded, cache=cache)


def _check_names(proofs: Proofs, torch: str, platform: str) -> None:
    """Check that a file contains the torch of its file name."""
    version = (proofs.text("version") or "").partition("+")[0]
    if proofs.text("name") != "torch" or version != torch or proofs.first("cuda") is None:
        raise IntegrityError(
            f"{proofs.name} is refused: it contains {proofs.text('name')} {proofs.text('version')} for {platform}",
            hint="use another index: ENVKIT_PYTHON_INDEX=URL",
        )


def _partner(index: Index, files: FileList, torch: str, facts: Facts, cache: Path | None) -> dict[str, Proofs]:
    """Return a wheel per platform of a torch's partner: the release in the facts, or one that requires this torch."""
    row = facts.releases.get(torch)
    stated = getattr(row, files.package) if row is not None else None
    versions = [stated] if stated in files.versions else _candidates(index, files, torch)
    for version in versions:
        chosen = _chosen(files.of(version), any_python=True)
        if not chosen:
            continue
        wheels = {platform: _read(index, file, METADATA_ONLY, cache) for platform, file in chosen.items()}
        if stated is not None or all(_accepts(proofs, torch) for proofs in wheels.values()):
            return wheels
    return {}


def _candidates(index: Index, files: FileList, torch: str) -> list[str]:
    """Return partner releases from the month of torch on, oldest first, then the newest release before that month."""
    days = [file.uploaded for file in index.files("torch").of(torch) if file.uploaded]
    month = min(days, default="")[:7]
    # A file without an upload time counts as later; its requirement decides.
    later = {file.version for file in files.files if not file.yanked and (file.uploaded or "9")[:7] >= month}
    newest = sorted({file.version for file in files.files if not file.yanked} - later, key=key)[-1:]
    return [*sorted(later, key=key)[:_NEWEST], *newest]  # a discontinued partner accepts every later torch


def _accepts(proofs: Proofs, torch: str) -> bool:
    requirement = proofs.metadata.requirement("torch")
    return requirement is None or requirement.specifier.contains(torch, prereleases=True)


def _version(wheels: Mapping[str, Proofs]) -> str | None:
    return next((proofs.text("version") for proofs in wheels.values()), None)


def _digest(files: FileList, version: str | None) -> str:
    """Return the SHA-256 of a release's file names and hashes; uploads of other releases do not change it."""
    rows: list[tuple[str, str | None]] = sorted((file.name, file.sha256) for file in files.of(version or ""))
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()
