"""Expand the edited table of companions into one row per release, index and platform.

A name on an index is a fact, never a rule: whether `torchvision-0.24.1` has a local version depends on the index, the
platform and the month, so the table says it of each folder.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from envkit.facts import edited
from envkit.facts.model import PYPI, Companion, Facts
from envkit.ground.platforms import PLATFORMS
from envkit.ground.versions import key, major

_FOLDER = re.compile(r"cpu|cu([0-9]+)([0-9])")

Row = dict[str, Any]


def companion_rows() -> tuple[Companion, ...]:
    """Return the companions by package, version, index and platform."""
    table = edited.read("companions")
    rows = [row for entry in table["rows"] for row in _rows(entry, table["compares"][entry["package"]])]
    return tuple(sorted(rows, key=lambda row: (row.package, key(row.version), row.index, row.platform)))


def cuda_of(name: str) -> str | None:
    """Return the CUDA version that a folder or a local version names: 'cu130' -> '13.0'; None for 'cpu' and others."""
    match = _FOLDER.fullmatch(name)
    return f"{match[1]}.{match[2]}" if match and match[1] else None


def torch_cuda(package: str, cuda: str | None, facts: Facts) -> str | None:
    """Return the CUDA that torch must have beside a package compiled for one, as its known releases compare it."""
    if cuda is None:
        return None
    known = next((row for row in facts.companions if row.package == package and row.cuda is not None), None)
    return cuda if known is None or known.torch_cuda == known.cuda else str(major(cuda))


def _rows(entry: Row, compares: str) -> Iterator[Companion]:
    for platform in PLATFORMS:
        part = entry.get(platform, {})
        if "pypi" in part:
            cuda = None if part["pypi"] == "cpu" else part["pypi"]
            yield _row(entry, platform, PYPI, local=None, cuda=cuda, pythons=part["pythons"], compares=compares)
        for folder, local in part.get("pages", {}).items():
            stated = part.get("cuda", {}).get(folder) or cuda_of(local.removeprefix("+"))
            pythons = part.get("page_pythons", part["pythons"])
            yield _row(entry, platform, folder, local=local or None, cuda=stated, pythons=pythons, compares=compares)


def _row(
    entry: Row, platform: str, index: str, *, local: str | None, cuda: str | None, pythons: list[str], compares: str
) -> Companion:
    return Companion(
        package=entry["package"],
        version=entry["version"],
        index=index,
        platform=platform,
        local_version=local,
        cuda=cuda,
        torch_cuda=str(major(cuda)) if cuda and compares == "major" else cuda,
        pythons=tuple(sorted(pythons, key=key)),
        torch=entry["torch"],
        refs=tuple(entry["refs"]),
    )
