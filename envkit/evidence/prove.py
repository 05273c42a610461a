"""Read a torch release, or a wheel of this machine, and hold it against the facts."""

from __future__ import annotations

import hashlib
import json
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from envkit.evidence.derive import PARTNERS, Release, evidence_of, platform_of
from envkit.evidence.proposals import variant_evidence
from envkit.evidence.pulled import Pulled, read_pulled
from envkit.evidence.read import METADATA_ONLY, Level, Proofs, read_local, read_wheel
from envkit.ground.errors import EnvironmentProblem, IntegrityError, UsageError
from envkit.ground.versions import key

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from envkit.evidence.derive import Row
    from envkit.evidence.index import FileList, Index, WheelFile
    from envkit.facts.model import Facts

_NEWEST = 6  # partner releases that are looked at for a torch that the facts do not know
_HINT = "envkit matrix prove torch==2.7.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Proved:
    """The evidence of one release."""

    release: Release
    rows: tuple[Row, ...]


def release_named(requirement: str) -> str:
    """The version of `torch==2.15.0`.

    Raises:
        UsageError: it is something else.
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
    """Read what the index's wheels of a release prove, one for each platform, and its partners' pins.

    Args:
        index: where the files are.
        torch: the release.
        facts: which partner is compatible with it.
        level: how much is read.
        cache: folder where what was read is kept; None = nowhere.
        refused: gets the errors of files that are refused, which are left out; None = the first one is raised.

    Raises:
        UsageError: the index has no wheel of that release.
        EnvironmentProblem: the index does not answer.
        IntegrityError: a file is not what the index lists, or not sound.
    """
    files = index.files("torch")
    chosen = _chosen(files.of(torch))
    if not chosen:
        known = ", ".join(sorted(files.versions, key=key)[-3:])
        raise UsageError(f"{files.url} has no Linux wheel of torch {torch}; its newest are {known}", hint=_HINT)
    wheels, partners, lists = {}, {}, {"torch": files}
    pulled: dict[str, Pulled] = {}
    for platform, file in chosen.items():
        with _collected(refused):
            proofs = _read(index, file, level, cache)
            _check_names(proofs, torch, platform)
            wheels[platform] = proofs
            if (beside := read_pulled(index, file, platform, cache=cache)) is not None:
                pulled[platform] = beside
    for name in PARTNERS:
        lists[name] = index.files(name)
        with _collected(refused):
            partner = _partner(index, lists[name], torch, facts, cache)
            if partner is not None:
                partners[name] = partner
    release = Release(
        torch=torch, source="pypi", files=files, wheels=wheels, partners=partners,
        partner_files={name: lists[name] for name in PARTNERS},
        list_sha256={name: _digest(file_list, torch if name == "torch" else _version(partners.get(name)))
                     for name, file_list in lists.items()},
        pulled=pulled,
    )  # fmt: skip
    return Proved(release=release, rows=(*evidence_of(release), *variant_evidence(release, facts)))


def prove_cudnn(index: Index, package: str, version: str, cache: Path | None = None) -> Proofs | None:
    """Read the machine code in the library of a cuDNN; None where the index has no such wheel for linux-64.

    Raises: as `prove_release`.
    """
    files = [file for file in index.files(package).of(version) if platform_of(file.tag) == "linux-64"]
    return _read(index, files[0], Level(deep=True), cache) if files else None


@contextmanager
def _collected(refused: list[IntegrityError] | None) -> Iterator[None]:
    """Put the error of a refused file into a list, if there is one."""
    try:
        yield
    except IntegrityError as error:
        if refused is None:
            raise
        refused.append(error)


def prove_file(path: Path, level: Level) -> Proved:
    """Read what a wheel of this machine proves.

    Raises:
        UsageError: it is not named as a Linux wheel of torch.
        EnvironmentProblem: it cannot be read.
        IntegrityError: it is not a sound wheel.
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
            f"{path.name} is refused: it holds {proofs.text('name')} {proofs.text('version')}", hint="rename the file"
        )
    release = Release(
        torch=version.public, source="pytorch" if version.local else "pypi", files=None, wheels={platform: proofs},
        partners={}, partner_files={}, list_sha256={}, pulled={},
    )  # fmt: skip
    return Proved(release=release, rows=tuple(evidence_of(release)))


def _chosen(files: tuple[WheelFile, ...]) -> dict[str, WheelFile]:
    """One wheel for each platform: that of the oldest Python, which every release has for both.

    Of several builds of one wheel it is the one with the highest build tag, which installers take.
    """
    chosen: dict[str, WheelFile] = {}
    newest = sorted(files, key=lambda wheel: wheel.build_order, reverse=True)
    for file in sorted(newest, key=lambda wheel: [(python.endswith("t"), key(python)) for python in wheel.pythons]):
        platform = platform_of(file.tag)
        if platform is not None and file.pythons:
            chosen.setdefault(platform, file)
    return dict(sorted(chosen.items()))


def _read(index: Index, file: WheelFile, level: Level, cache: Path | None) -> Proofs:
    if file.sha256 is None:
        raise EnvironmentProblem(
            f"the index has no SHA-256 for {file.name}, so it proves nothing", hint="ENVKIT_PYTHON_INDEX=URL"
        )
    return read_wheel(file.name, index.remote(file), level, sha256=file.sha256, date=file.uploaded, cache=cache)


def _check_names(proofs: Proofs, torch: str, platform: str) -> None:
    """The file has to be the torch that its name says."""
    version = (proofs.text("version") or "").partition("+")[0]
    if proofs.text("name") != "torch" or version != torch or proofs.first("cuda") is None:
        raise IntegrityError(
            f"{proofs.name} is refused: it holds {proofs.text('name')} {proofs.text('version')} for {platform}",
            hint="use another index: ENVKIT_PYTHON_INDEX=URL",
        )


def _partner(index: Index, files: FileList, torch: str, facts: Facts, cache: Path | None) -> Proofs | None:
    """The partner's release for this torch: the facts' own, else the one whose requirement names it."""
    row = facts.releases.get(torch)
    stated = getattr(row, files.package) if row is not None else None
    versions = [stated] if stated in files.versions else _near(index, files, torch)
    for version in versions:
        own = files.of(version)
        file = next(iter((*_chosen(own).values(), *own)), None)
        if file is None:
            continue
        proofs = _read(index, file, METADATA_ONLY, cache)
        if stated is not None or _names(proofs, torch):
            return proofs
    return None


def _near(index: Index, files: FileList, torch: str) -> list[str]:
    """Partner releases with a file of the month of torch or of a later one, oldest first, and the newest of before."""
    days = [file.uploaded for file in index.files("torch").of(torch) if file.uploaded]
    first = min(days, default="")[:7]
    # A file without a day counts as late: only its requirement can tell.
    late = {file.version for file in files.files if not file.yanked and (file.uploaded or "9")[:7] >= first}
    newest = sorted({file.version for file in files.files if not file.yanked} - late, key=key)[-1:]
    return [*sorted(late, key=key)[:_NEWEST], *newest]  # a partner that ended fits every later torch


def _names(proofs: Proofs, torch: str) -> bool:
    wanted = proofs.metadata.requirement("torch")
    return wanted is None or wanted.specifier.contains(torch, prereleases=True)


def _version(proofs: Proofs | None) -> str | None:
    return proofs.text("version") if proofs is not None else None


def _digest(files: FileList, version: str | None) -> str:
    """SHA-256 of a release's part of a file list: names and hashes, so a later upload elsewhere changes nothing."""
    rows: list[tuple[str, str | None]] = sorted((file.name, file.sha256) for file in files.of(version or ""))
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()
