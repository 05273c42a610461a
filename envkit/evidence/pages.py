"""Compare the files that the facts state with the pages of the PyTorch index, which has a folder for each CUDA. Pure.

Only names are read: which versions, with which local version, for which Pythons and platforms. Each value is evidence
for a row of the builds or the companions, like those that `derive` reads from the Python index.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.specifiers import SpecifierSet

from envkit.evidence.compare import DIFFERENT, MISSING, SAME, Compared
from envkit.evidence.derive import any_python, platform_of, pythons_of
from envkit.facts.check import name_of
from envkit.facts.evidence import FILE_LIST, Evidence
from envkit.facts.model import ROOT, folder_of
from envkit.facts.tables import BY_NAME
from envkit.ground.versions import is_version, key

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from envkit.evidence.index import FileList, WheelFile
    from envkit.facts.model import Facts

TORCH = "torch"


def folders(facts: Facts) -> tuple[str, ...]:
    """Return the folders of the PyTorch index for which the facts have builds: ('cpu', 'cu102', ...)."""
    return tuple(sorted({folder_of(build.cuda) for build in facts.builds if build.source == "pytorch"}))


def packages(facts: Facts) -> tuple[str, ...]:
    """Return torch and the packages of the companions."""
    return (TORCH, *sorted({row.package for row in facts.companions}))


def compare_page(facts: Facts, folder: str, files: FileList, *, torch: str | None = None) -> list[Compared]:
    """Compare a page with the rows of the facts for its folder and package.

    Files of a release that the facts have under the same name are compared by their Pythons; the page may also have
    other variants of it, such as `+cu118.with.pypi.cudnn`. A file that the facts lack counts if its local version is
    that of the folder: others are on every page. Files of releases before the first one of the facts, of pre-releases
    and of other systems do not count.

    Args:
        facts: have the rows.
        folder: of the PyTorch index: 'cu130'.
        files: the page of a package.
        torch: compare only this release and what fits it; then a row that the facts lack is reported only for torch.
    """
    stated = _builds(facts, folder, torch) if files.package == TORCH else _companions(facts, folder, files, torch)
    table = "builds" if files.package == TORCH else "companions"
    listed, seen, compared = _listed(files), set(), list[Compared]()
    for row in stated:
        public = row.version.partition("+")[0]
        seen.add((public, row.platform))
        found = listed.get((public, row.platform), {})
        own = found.get(row.version)
        if own is None:
            others = " ".join(sorted(found)) or None
            compared.append(
                Compared(table, _evidence(files, folder, row.name, "version", others), row.version, DIFFERENT)
            )
        elif not any_python(own):
            pythons = pythons_of(own, row.platform)
            state = SAME if pythons == row.pythons else DIFFERENT
            compared.append(Compared(table, _evidence(files, folder, row.name, "pythons", pythons), row.pythons, state))
    oldest = min((key(public) for public, _ in seen), default=None)
    for (public, platform), found in listed.items():
        wanted = torch is None or (files.package == TORCH and public == torch)
        if (public, platform) in seen or oldest is None or key(public) < oldest or not wanted:
            continue
        for version, own in found.items():
            if version.partition("+")[2] != folder:
                continue
            pythons = pythons_of(own, platform)
            name = f"{files.package} {version} {folder} {platform}"
            compared += (
                [Compared(table, _evidence(files, folder, name, "pythons", pythons), None, MISSING)] if pythons else []
            )  # a release for free-threaded Python only is not described
    return compared


def _evidence(files: FileList, folder: str, row: str, field: str, value: object) -> Evidence:
    digest = hashlib.sha256(json.dumps(sorted(file.name for file in files.files)).encode()).hexdigest()
    return Evidence(row=row, field=field, value=value, kind=FILE_LIST, sha256=digest,
                    file=f"the page {folder}/{files.package}")  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Stated:
    """A file name of the facts."""

    name: str  # of the row
    version: str  # with the local version
    platform: str
    pythons: tuple[str, ...]


def _builds(facts: Facts, folder: str, torch: str | None) -> Iterator[_Stated]:
    for build in facts.builds:
        # Rows without Pythons do not claim to have a file.
        if build.source != "pytorch" or folder_of(build.cuda) != folder or not build.pythons:
            continue
        if torch in (None, build.torch):
            version = f"{build.torch}{build.local_version or ''}"
            yield _Stated(name_of(BY_NAME["builds"], build), version, build.platform, build.pythons)


def _companions(facts: Facts, folder: str, files: FileList, torch: str | None) -> Iterator[_Stated]:
    for row in facts.companions:
        if row.package != files.package or row.index not in (folder, ROOT):
            continue
        if torch is None or SpecifierSet(row.torch).contains(torch):
            yield _Stated(name_of(BY_NAME["companions"], row), row.pinned, row.platform, row.pythons)


def _listed(files: FileList) -> Mapping[tuple[str, str], Mapping[str, list[WheelFile]]]:
    """Return the files by public version and platform, then by version."""
    found: dict[tuple[str, str], dict[str, list[WheelFile]]] = defaultdict(lambda: defaultdict(list))
    for file in files.files:
        platform, public = platform_of(file.tag), file.version.partition("+")[0]
        if platform is not None and is_version(public) and not file.yanked:
            found[public, platform][file.version].append(file)
    return found
