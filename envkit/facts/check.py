"""Check every invariant of the facts; a finding has the table, the row, the field and the value."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from string import Formatter
from typing import Any

from envkit.facts import sources, tables
from envkit.facts.companions import cuda_of
from envkit.facts.conditions import check_when
from envkit.facts.model import (
    EVERY_TAG,
    PYPI,
    ROOT,
    BaseImage,
    Build,
    Companion,
    CudaImage,
    Cudnn,
    Facts,
    Gpu,
    Installer,
    Os,
    PackageNeeds,
    PythonSeries,
    Release,
    Trap,
    folder_of,
)
from envkit.ground.errors import UsageError
from envkit.ground.platforms import PLATFORMS, platform
from envkit.ground.versions import is_version, key, major, minor, parse_constraint

# `12.6.3-cudnn-devel-ubuntu22.04`, `11.8.0-cudnn8-runtime-ubi8`, `12.6.3-base-ubuntu24.04`
_TAG = re.compile(r"\d+\.\d+(\.\d+)?-(base|((cudnn\d?|tensorrt)-)?(runtime|devel))-[a-z]+\d+(\.\d+)?")
_NORMALIZED = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_SYSTEM_PACKAGE = re.compile(r"[a-z0-9][a-zA-Z0-9+._-]+")
# Placeholders of addresses: a minor version of torch, `cu124` or `cpu`, a version of the package.
_OF_PAGES, _OF_INDEXES = frozenset({"torch", "cu", "version"}), frozenset({"cu"})
_SHA256 = re.compile(r"[0-9a-f]{64}")
# `7.5`, or `7.5+`: this one and later ones
_CAPABILITY = re.compile(r"\d+\.\d+\+?")
_DAY = re.compile(r"20\d\d-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])")

# Fields that hold a version, or a tuple of them.
_VERSIONS = {
    "releases": ("torch", "torchvision", "torchaudio", "compile_max_python", "default_cuda"),
    "builds": (
        "torch",
        "cuda",
        "pythons",
        "archs",
        "ptx",
        "cudnn",
        "nccl",
        "glibc",
        "torchvision",
        "torchaudio",
    ),
    "companions": ("version", "cuda", "torch_cuda", "pythons"),
    "toolkits": ("toolkit", "linux_min"),
    "compat": ("linux_min",),
    "forward": ("toolkit", "branches"),
    "gpus": ("capability", "first_cuda", "last_cuda"),
    "oses": ("glibc", "pythons"),
    "pythons": ("python",),
    "cudnns": ("cudnn", "cuda_major", "cuda_minors", "linux_min_driver"),
    "cuda_images": ("cuda",),
    "base_images": ("torch", "cuda", "python"),
    "installers": ("python",),
}
_CONSTRAINTS = {"releases": ("triton", "setuptools"), "builds": ("triton",), "companions": ("torch",)}
_CHOICES: dict[str, dict[str, tuple[Any, ...]]] = {
    "builds": {"source": tables.SOURCES, "platform": PLATFORMS, "confidence": tables.CONFIDENCES},
    "companions": {"platform": PLATFORMS},
    "toolkits": {"confidence": tables.CONFIDENCES},
    "oses": {"family": ("deb", "rpm"), "platforms": PLATFORMS},
    "cudnns": {"confidence": tables.CONFIDENCES},
    "cuda_images": {"status": ("supported", "unsupported", "sources-only", "seen")},
    "base_images": {"confidence": tables.CONFIDENCES},
    "installers": {"arch": tuple(platform(name).machine for name in PLATFORMS)},
    "traps": {"severity": ("error", "warn", "info"), "confidence": tables.CONFIDENCES},
}


@dataclass(frozen=True, slots=True)
class Finding:
    """A broken invariant. `row` is the row's key as text; None for the whole table."""

    table: str
    row: str | None
    field: str | None
    what: str

    def __str__(self) -> str:
        subject = " ".join(part for part in (self.table, self.row) if part)
        return ": ".join(part for part in (subject, self.field, self.what) if part)


def name_of(table: tables.Table, row: Any) -> str:
    """Return a row's key with one word per field; `cpu` for a build without CUDA, `-` for other missing values."""
    absent = {"cuda": "cpu"}
    return " ".join(
        str(absent.get(field, "-") if value is None else value)
        for field, value in zip(table.key, table.key_of(row), strict=True)
    )


def rows_of(facts: Facts, table: tables.Table) -> tuple[Any, ...]:
    """Return the rows of a table."""
    rows = getattr(facts, table.name)
    return tuple(rows.values()) if isinstance(rows, dict) else rows


def check(facts: Facts) -> list[Finding]:
    """Return every broken invariant, in table order; an empty list if the facts are valid."""
    findings: list[Finding] = []
    for table in tables.TABLES:
        seen: set[tuple[Any, ...]] = set()
        for row in rows_of(facts, table):
            name = name_of(table, row)
            if table.key_of(row) in seen:
                findings.append(Finding(table.name, name, None, "the key is given twice"))
            seen.add(table.key_of(row))
            findings.extend(Finding(table.name, name, field, what) for field, what in _row(facts, table.name, row))
    findings.extend(_floors(facts))
    return findings


def _row(facts: Facts, table: str, row: Any) -> Iterator[tuple[str | None, str]]:
    yield from _refs(facts, row)
    unreadable = list(_unreadable(table, row))
    yield from unreadable
    yield from _choices(table, row)
    if not unreadable and table in _OWN:
        yield from _OWN[table](facts, row)


def _unreadable(table: str, row: Any) -> Iterator[tuple[str, str]]:
    for field in _VERSIONS.get(table, ()):
        for value in _values(getattr(row, field)):
            if not is_version(value):
                yield field, f"{value!r} is not a version"
    for field in _CONSTRAINTS.get(table, ()):
        for value in _values(getattr(row, field)):
            try:
                parse_constraint(value, field)
            except UsageError:
                yield field, f"{value!r} is not a version constraint"


def _choices(table: str, row: Any) -> Iterator[tuple[str, str]]:
    for field, allowed in _CHOICES.get(table, {}).items():
        for value in _values(getattr(row, field)):
            if value not in allowed:
                yield field, f"{value!r} is not one of {', '.join(str(name) for name in allowed if name)}"


def _refs(facts: Facts, row: Any) -> Iterator[tuple[str, str]]:
    if not row.refs:
        yield "refs", "the row has no source"
    for ref in row.refs:
        if sources.find(facts.sources, ref) is None:
            yield "refs", f"unknown source {ref!r}"


def _release(facts: Facts, row: Release) -> Iterator[tuple[str, str]]:
    del facts
    yield from ((field, "is missing") for field in ("torchvision", "torchaudio") if getattr(row, field) is None)


def _os(facts: Facts, row: Os) -> Iterator[tuple[str, str]]:
    del facts
    # Without a registry, Docker uses Docker Hub, but Podman the registries of its configuration.
    if "." not in row.image.split("/")[0]:
        yield "image", f"{row.image!r} does not begin with a registry"


def _gpu(facts: Facts, row: Gpu) -> Iterator[tuple[str, str]]:
    del facts
    for field in ("data_center", "arm_host"):
        yield from (
            (field, f"{product!r} is not one of its products")
            for product in getattr(row, field)
            if product not in row.products
        )


def _python(facts: Facts, row: PythonSeries) -> Iterator[tuple[str, str]]:
    del facts
    for field in ("bugfix_until", "eol"):
        yield from _bad(field, (getattr(row, field),), _DAY, "is not a date such as 2028-10-01")
    if row.eol < row.bugfix_until:
        yield "eol", f"{row.eol} is before {row.bugfix_until}, the end of bug fixes"


def _cudnn(facts: Facts, row: Cudnn) -> Iterator[tuple[str, str]]:
    del facts
    yield from _bad("capabilities", row.capabilities, _CAPABILITY, "is not a compute capability")


def _image(facts: Facts, row: CudaImage) -> Iterator[tuple[str, str]]:
    del facts
    yield from _bad("tags", row.tags, _TAG, "is not a tag of nvidia/cuda")
    for tag in row.tags:
        if not tag.startswith(f"{row.cuda}-"):
            yield "tags", f"{tag!r} belongs to another release"


def _base(facts: Facts, row: BaseImage) -> Iterator[tuple[str, str]]:
    if row.tag == EVERY_TAG and (row.torch, row.cuda) != (None, None):
        yield "tag", "a row for every tag is of an image without torch and CUDA"
    if row.os is not None and row.os not in {system.id for system in facts.oses}:
        yield "os", f"{row.os!r} is not a row of oses"
    if row.torch is not None and not any(minor(torch) == row.torch for torch in facts.releases):
        yield "torch", f"releases has no torch {row.torch}"


def _needs(facts: Facts, row: PackageNeeds) -> Iterator[tuple[str, str]]:
    del facts
    yield from _bad("package", (row.package,), _NORMALIZED, "is not a normalized name")
    for field, names in (("deb", row.deb), ("rpm", row.rpm), ("programs", row.programs)):
        yield from _bad(field, names, _SYSTEM_PACKAGE, "is not the name of a system package")
    for field, places, allowed in (("pages", row.pages, _OF_PAGES), ("indexes", row.indexes, _OF_INDEXES)):
        for place in places:
            try:
                unknown = {name for _, name, _, _ in Formatter().parse(place) if name is not None} - allowed
            except ValueError as error:
                yield field, f"{place!r}: {error}"
                continue
            if unknown:
                yield field, f"{place!r} has the unknown placeholder {min(unknown)!r}"


def _installer(facts: Facts, row: Installer) -> Iterator[tuple[str, str]]:
    del facts
    yield from _bad("sha256", (row.sha256,), _SHA256, "is not 64 hex digits")
    if not row.url.endswith(f"/{row.file}"):
        yield "url", f"{row.url!r} does not end with the file name"


def _trap(facts: Facts, row: Trap) -> Iterator[tuple[str, str]]:
    del facts
    yield from (("when", what) for what in check_when(row.when))


def _build(facts: Facts, row: Build) -> Iterator[tuple[str, str]]:
    if row.torch not in facts.releases:
        yield "torch", f"there is no release {row.torch}"
    suffix = "cpu" if row.cuda is None else "cu" + minor(row.cuda).replace(".", "")
    if row.source == "pytorch":
        if row.index is None or not row.index.rstrip("/").endswith(f"/{suffix}"):
            yield "index", f"{row.index!r} does not end with /{suffix}"
        # Older files, and those for aarch64, often have no local version in their names.
        if row.local_version not in (None, f"+{suffix}"):
            yield "local_version", f"{row.local_version!r} is not '+{suffix}'"
    elif row.index is not None:
        yield "index", f"{row.source} has no index URL"
    yield from _sizes(row)
    if row.source.startswith("conda-") != bool(row.channels):
        yield "channels", "conda sources have channels, wheels have none"
    if row.source == "conda-pytorch" and row.cuda and not (row.selector or "").endswith(f"={row.cuda}"):
        yield "selector", f"{row.selector!r} does not select CUDA {row.cuda}"
    if row.cuda is None:
        if row.archs:
            yield "archs", "a CPU build has no cubins"
        return
    if all(minor(toolkit.toolkit) != minor(row.cuda) for toolkit in facts.toolkits if toolkit.linux_min):
        yield "cuda", f"no toolkit row has the driver for CUDA {row.cuda}"
    for field, capabilities in (("archs", row.archs or ()), ("ptx", row.ptx)):
        for capability in capabilities:
            yield from _capability(facts, row.cuda, field, capability)


def _companion(facts: Facts, row: Companion) -> Iterator[tuple[str, str]]:
    del facts
    if row.index not in (PYPI, ROOT) and row.index != folder_of(cuda_of(row.index)):
        yield "index", f"{row.index!r} is not pypi, root, cpu or a folder such as cu130"
    elif row.local_version not in (None, f"+{row.index}"):
        yield "local_version", f"{row.local_version!r} is not '+{row.index}'"
    if row.torch_cuda is not None and row.torch_cuda not in (row.cuda, row.cuda and str(major(row.cuda))):
        yield "torch_cuda", f"{row.torch_cuda!r} is neither its CUDA {row.cuda} nor the major version of it"
    # '+cu130' -> '13.0'; the file name says it, so no other CUDA can be its.
    named = cuda_of((row.local_version or "").removeprefix("+"))
    if row.local_version is not None and row.cuda != named:
        yield "cuda", f"{row.cuda or 'none'} is not that of the file, {row.package} {row.pinned}"
    if "+" in row.version:
        yield "version", f"{row.version!r} has a local version, which is a field of its own: local_version"
    if not row.pythons:
        yield "pythons", "there is no file"
    for python in sorted({python for python in row.pythons if row.pythons.count(python) > 1}):
        yield "pythons", f"there are two files for Python {python}"


def _sizes(row: Build) -> Iterator[tuple[str, str]]:
    for field in ("wheel_size", "pulled_size"):
        size = getattr(row, field)
        if size is not None and size <= 0:
            yield field, f"{size} is not a number of bytes"


def _capability(facts: Facts, cuda: str, field: str, capability: str) -> Iterator[tuple[str, str]]:
    if capability in facts.capabilities_left_out:
        return
    gpu = next((gpu for gpu in facts.gpus if gpu.capability == capability), None)
    if gpu is None:
        yield field, f"no GPU row has the compute capability {capability}"
    elif not _compiles(cuda, gpu):
        yield field, f"CUDA {cuda} cannot compile for {capability}"


def _compiles(cuda: str, gpu: Gpu) -> bool:
    if not (is_version(gpu.first_cuda) and (gpu.last_cuda is None or is_version(gpu.last_cuda))):
        return True  # reported at the GPU row
    return key(cuda) >= key(gpu.first_cuda) and (gpu.last_cuda is None or major(cuda) <= major(gpu.last_cuda))


# Invariants of single tables.
_OWN: dict[str, Callable[[Facts, Any], Iterator[tuple[str, str]]]] = {
    "releases": _release,
    "builds": _build,
    "companions": _companion,
    "gpus": _gpu,
    "oses": _os,
    "pythons": _python,
    "cudnns": _cudnn,
    "cuda_images": _image,
    "base_images": _base,
    "package_needs": _needs,
    "installers": _installer,
    "traps": _trap,
}


def _floors(facts: Facts) -> Iterator[Finding]:
    """Check that later toolkits do not require an older driver than earlier ones."""
    toolkits = [(row.toolkit, row.linux_min) for row in facts.toolkits if row.linux_min]
    compat = [(str(row.cuda_major), row.linux_min) for row in facts.compat if row.linux_min]
    for table, rows in (("toolkits", toolkits), ("compat", compat)):
        readable = [row for row in rows if is_version(row[0]) and is_version(row[1])]
        ordered = sorted(readable, key=lambda row: key(row[0]))
        for (before, lower), (name, driver) in pairwise(ordered):
            if key(driver) < key(lower):
                yield Finding(table, name, "linux_min", f"{driver} is older than the {lower} of {before}")


def _bad(field: str, values: tuple[str, ...], shape: re.Pattern[str], what: str) -> Iterator[tuple[str, str]]:
    for value in values:
        if not shape.fullmatch(value):
            yield field, f"{value!r} {what}"


def _values(value: Any) -> tuple[Any, ...]:
    if value is None:
        return ()
    return value if isinstance(value, tuple) else (value,)
