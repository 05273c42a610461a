"""The recorded files of the torch family on the indexes, and every answer that names some of them.

The recorded lists were not made by this project's rules: index_files.json is what pip says of the Python index, and
pytorch_files.json has the file names of public copies of the PyTorch index, up to the releases in `COPIED`. Later files
are those of the facts, whose rows have a source each.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from envkit.facts.model import PYPI, ROOT, Build, Facts, folder_of
from envkit.ground.versions import key, parse_constraint
from envkit.resolve.index import WHEEL_SOURCES
from envkit.resolve.model import Request, Resolution
from envkit.resolve.resolver import resolve
from tests.support import index_files

# The last release of each package in the copies of the PyTorch index, and the first whose list is known to be whole.
COPIED = {"torch": "2.10.0", "torchvision": "0.25.0", "torchaudio": "2.1.0"}


@dataclass(frozen=True, slots=True)
class Listed:
    """A release on an index: one file for each Python."""

    package: str
    version: str  # with the local part
    index: str  # PYPI, ROOT or a folder of the PyTorch index: 'cu126'
    platform: str
    pythons: tuple[str, ...]


@cache
def pytorch_files() -> dict[str, dict[str, dict[str, str]]]:
    """Package -> 'cu126 linux-64' -> version in the file name -> Pythons."""
    content: dict[str, dict[str, dict[str, str]]] = json.loads(
        Path(index_files.__file__).with_name("pytorch_files.json").read_text()
    )
    return content


def answers(facts: Facts) -> Iterator[tuple[Build, Resolution]]:
    """Every wheel that the facts have, with each of its Pythons, as the answer to a request for just that."""
    for build in facts.builds:
        if build.source not in WHEEL_SOURCES or build.pythons is None:
            continue
        for python in build.pythons:
            request = Request(
                torch=parse_constraint(f"=={build.torch}", "--torch"),
                cuda=parse_constraint(build.cuda, "--cuda") if build.cuda else None,
                python=parse_constraint(python, "--python"),
                platform=build.platform,
                source=build.source,
                cpu=build.cuda is None,
                os="ubuntu24.04" if build.glibc and key(build.glibc) > key("2.28") else None,
            )
            yield build, resolve(request, facts)


def listed(facts: Facts) -> Iterator[Listed]:
    """Every recorded release, and every later one of the facts."""
    for package, releases in index_files.table().items():
        for version, platforms in releases.items():
            for platform, pythons in platforms.items():
                yield Listed(package, version, PYPI, platform, tuple(pythons))
    for package, pages in pytorch_files().items():
        for page, versions in pages.items():
            folder, _, platform = page.partition(" ")
            for version, text in versions.items():
                if not _later(package, version):
                    yield Listed(package, version, folder, platform, tuple(text.split()))
    for build in facts.builds:
        if build.source == "pytorch" and _later("torch", build.torch):
            version = f"{build.torch}{build.local_version or ''}"
            yield Listed("torch", version, folder_of(build.cuda), build.platform, build.pythons or ())
    for row in facts.companions:
        if row.index != PYPI and row.package in COPIED and _later(row.package, row.version):
            yield Listed(row.package, row.pinned, row.index, row.platform, row.pythons)


def folders(release: Listed, facts: Facts) -> tuple[str, ...]:
    """The folders of the PyTorch index whose pages list a release: those of the root are on every page."""
    every = {folder_of(build.cuda) for build in facts.builds if build.source == "pytorch"}
    return tuple(sorted(every)) if release.index == ROOT else (release.index,)


def _later(package: str, version: str) -> bool:
    return key(version.partition("+")[0]) > key(COPIED[package])
