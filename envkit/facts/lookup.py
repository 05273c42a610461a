"""Find all rows about one name: a torch release, a CUDA version, a GPU, a trap, a source, ..."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from packaging.specifiers import SpecifierSet

from envkit.facts import sources
from envkit.facts.check import rows_of
from envkit.facts.conditions import alternatives, concerns
from envkit.facts.model import PYPI, Build, Facts, Gpu, Trap
from envkit.facts.tables import TABLES
from envkit.ground.text import similar
from envkit.ground.versions import is_version, key, major, minor

_TITLES = {
    "releases": "torch {0.torch}",
    "companions": "{0.package} {0.version} for torch {0.torch}",
    "toolkits": "CUDA toolkit {0.toolkit}",
    "compat": "minor-version compatibility of CUDA {0.cuda_major}",
    "forward": "forward compatibility of CUDA {0.toolkit}",
    "gpus": "compute capability {0.capability} ({0.family})",
    "oses": "{0.title} ({0.id})",
    "pythons": "Python {0.python}",
    "cudnns": "cuDNN {0.cudnn} for CUDA {0.cuda_major}",
    "cuda_images": "nvidia/cuda images {0.cuda}",
    "base_images": "image {0.image}:{0.tag}",
    "package_needs": "package {0.package}",
    "installers": "Miniconda installer {0.file}",
    "traps": "trap {0.id}",
    "sources": "source {0[id]}",
}


PINNED = ("triton", "setuptools")
"""The packages that torch's own metadata pins, and of which the facts hold no files."""
_COMPANION = re.compile(r"([A-Za-z]+)(?:(?:\s*==\s*|\s+)v?([0-9][0-9.]*)(?:\+\w+)?)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """The rows of one table that match a name, with related builds and traps."""

    table: str
    rows: tuple[Any, ...]
    builds: tuple[Build, ...] = ()
    builds_title: str = "builds"
    traps: tuple[Trap, ...] = ()

    def title(self, row: Any) -> str:
        """Return the heading of a row."""
        return _TITLES[self.table].format(row)

    @property
    def refs(self) -> tuple[str, ...]:
        """The source IDs of all rows, builds and traps, in order, without duplicates."""
        all_rows = (*self.rows, *self.builds, *self.traps)
        return tuple(dict.fromkeys(ref for row in all_rows for ref in getattr(row, "refs", ())))


def find(facts: Facts, name: str) -> list[Entry]:
    """Return the rows that match `name`, table by table; empty if there are none."""
    text = name.strip()
    entries = [
        _release(facts, text),
        _companion(facts, text),
        _pinned(facts, text),
        *_cuda(facts, text),
        _gpu(facts, text),
        _plain(facts, "oses", tuple(row for row in facts.oses if row.id == text)),
        _python(facts, text),
        _plain(facts, "cudnns", tuple(row for row in facts.cudnns if row.cudnn == text)),
        _plain(facts, "installers", tuple(row for row in facts.installers if row.file == text)),
        _plain(facts, "traps", tuple(row for row in facts.traps if row.id == text)),
        _source(facts, text),
    ]
    return [entry for entry in entries if entry is not None]


def nearest(facts: Facts, name: str) -> list[str]:
    """Return up to three known names that are similar to an unknown one."""
    known = [
        *facts.releases,
        *(row.package for row in facts.companions),
        *PINNED,
        *(row.toolkit for row in facts.toolkits),
        *(row.capability for row in facts.gpus),
        *(product for row in facts.gpus for product in row.products),
        *(row.id for row in facts.oses),
        *(row.python for row in facts.pythons),
        *(row.cudnn for row in facts.cudnns),
        *(row.id for row in facts.traps),
        *facts.sources,
    ]
    by_lower = {text.lower(): text for text in known}
    close = similar(name.strip().lower(), by_lower, n=3, cutoff=0.5)
    return [by_lower[text] for text in close]


def _release(facts: Facts, text: str) -> Entry | None:
    if text not in facts.releases:
        return None
    return Entry(
        table="releases",
        rows=(facts.releases[text],),
        builds=tuple(build for build in facts.builds if build.torch == text),
        traps=tuple(trap for trap in facts.traps if concerns(trap.when, "torch", text)),
    )


def _companion(facts: Facts, text: str) -> Entry | None:
    """Return the files of `torchvision 0.21.0` (or with `==`), or each release of `torchcodec` on each platform."""
    match = _COMPANION.fullmatch(text)
    if match is None:
        return None
    version = match[2]
    rows = tuple(row for row in facts.companions if row.package == match[1].lower())
    if version:
        chosen = tuple(row for row in rows if row.version == version)
    else:
        # One index of a release is enough; the last one wins, which is the Python index if that has files.
        last = {row.version: row.index for row in sorted(rows, key=lambda row: row.index == PYPI)}
        listed = [row for row in rows if row.index == last[row.version]]
        chosen = tuple(sorted(listed, key=lambda row: key(row.version), reverse=True))
    versions = {row.version for row in chosen}
    traps = (trap for trap in facts.traps if any(concerns(trap.when, match[1].lower(), name) for name in versions))
    return Entry(table="companions", rows=chosen, traps=tuple(traps)) if chosen else None


def _pinned(facts: Facts, text: str) -> Entry | None:
    """Return the releases whose metadata pins `triton` or `setuptools`, or a version of it, the newest first."""
    match = _COMPANION.fullmatch(text)
    if match is None or match[1].lower() not in PINNED:
        return None
    name, version = match[1].lower(), match[2]
    rows = [row for row in facts.releases.values() if (pin := getattr(row, name)) and _allows(pin, version)]
    traps = tuple(
        trap for trap in facts.traps
        if name in trap.when and (version is None or concerns(trap.when, name, version))
    )  # fmt: skip
    newest_first = tuple(sorted(rows, key=lambda row: key(row.torch), reverse=True))
    return Entry(table="releases", rows=newest_first, traps=traps) if rows else None


def _allows(pin: str, version: str | None) -> bool:
    return version is None or SpecifierSet(pin).contains(version)


def _python(facts: Facts, text: str) -> Entry | None:
    """Return a Python's row, with the traps that it or one of its patch releases springs."""
    rows = tuple(row for row in facts.pythons if row.python in (text, minor(text)))
    named = {text, *(name for trap in facts.traps for name in alternatives(trap.when.get("python", "")))}
    patches = [name for name in named if is_version(name) and (name == text or minor(name) == text)]
    traps = tuple(trap for trap in facts.traps if any(concerns(trap.when, "python", name) for name in patches))
    return Entry(table="pythons", rows=rows, traps=traps) if rows else None


def _cuda(facts: Facts, text: str) -> list[Entry]:
    """Return a toolkit release, or all releases of a CUDA minor version, with builds, minimum drivers and images."""
    toolkits = tuple(row for row in facts.toolkits if text in (row.toolkit, minor(row.toolkit)))
    if not is_version(text) or not toolkits:
        return []
    is_minor = all(row.toolkit != text for row in toolkits)
    builds = tuple(build for build in facts.builds if build.cuda == minor(text))
    newest = {(build.source, build.platform): build for build in builds}  # the last one wins: sorted by torch
    floors = tuple(row for row in facts.compat if row.cuda_major == major(text))
    forward = tuple(row for row in facts.forward if text in (row.toolkit, minor(row.toolkit)))
    images = tuple(row for row in facts.cuda_images if text in (row.cuda, minor(row.cuda)))
    entries = [
        Entry(
            table="toolkits",
            rows=toolkits,
            builds=builds if is_minor else tuple(newest.values()),
            builds_title=f"{'' if is_minor else 'newest '}builds with CUDA {minor(text)}",
            traps=tuple(trap for trap in facts.traps if concerns(trap.when, "cuda", text)),
        )
    ]
    related = (("compat", floors), ("forward", forward), ("cuda_images", images))
    return [*entries, *(Entry(table=name, rows=rows) for name, rows in related if rows)]


def _gpu(facts: Facts, text: str) -> Entry | None:
    gpu = _find_gpu(facts, text)
    if gpu is None:
        return None
    return Entry(
        table="gpus",
        rows=(gpu,),
        traps=tuple(trap for trap in facts.traps if concerns(trap.when, "gpu", gpu.capability)),
    )


def _find_gpu(facts: Facts, text: str) -> Gpu | None:
    product_name = _bare(text)
    capability = _capability(product_name)
    for gpu in facts.gpus:
        if gpu.capability in (text, capability) or product_name in {_bare(product) for product in gpu.products}:
            return gpu
    return None


def _capability(bare: str) -> str | None:
    """Return `8.6` for `sm_86`; None for another text."""
    digits = bare.removeprefix("sm_")
    return f"{digits[:-1]}.{digits[-1]}" if digits != bare and digits.isdigit() and len(digits) > 1 else None


def _bare(product: str) -> str:
    words = product.lower().split()
    return " ".join(word for word in words if word not in ("nvidia", "geforce", "tesla", "quadro"))


def _plain(facts: Facts, table: str, rows: tuple[Any, ...]) -> Entry | None:
    if not rows:
        return None
    traps: tuple[Trap, ...] = ()
    if table == "oses":
        traps = tuple(trap for trap in facts.traps if concerns(trap.when, "os", rows[0].id))
    elif table == "cudnns":
        traps = tuple(trap for trap in facts.traps if concerns(trap.when, "cudnn", rows[0].cudnn))
    return Entry(table=table, rows=rows, traps=traps)


def _source(facts: Facts, text: str) -> Entry | None:
    match = sources.find(facts.sources, text)
    if match is None:
        return None
    name, source = match
    used = sum(text in row.refs for table in TABLES for row in rows_of(facts, table))
    return Entry(table="sources", rows=({"id": name, **source, "named_by_rows": str(used)},))
