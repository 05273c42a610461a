"""Check the edited YAML tables for errors that are not visible in the snapshot."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from envkit.facts import edited, snapshot, sources
from envkit.facts.check import Finding
from envkit.facts.tables import SOURCES

_KEYS = {
    "torch_releases": ("torch",),
    "torch_cuda_variants": ("torch", "cuda", "source", "platform"),
    "gpu_arch": ("capability",),
    "oses": ("id",),
    "pythons": ("python",),
    "companions": ("package", "version"),
    "docker_tags": ("cuda",),
    "base_images": ("image", "tag"),
    "package_needs": ("package",),
    "cudnn_cuda": ("cudnn", "cuda_major", "linux_min_driver"),
    "traps": ("id",),
}
# (table, list) -> the required fields and the optional fields of its rows.
_FIELDS = {
    ("torch_releases", "rows"): (
        "torch released matrix_live requires_python torchvision torchaudio triton setuptools numpy2_ok pypi refs",
        "torchvision_also built_with_numpy compile_max_python note",
    ),
    ("torch_cuda_variants", "rows"): (
        "torch cuda source refs",
        """index local_version local_version_aarch64 index_lacks advertised pypi_default files arch ptx arch_aarch64
        cudnn nccl confidence note arch_refs arch_aarch64_refs cudnn_refs selector channels pythons torchvision
        torchaudio platform glibc recipe_period""",
    ),
    ("companions", "rows"): ("package version torch refs", "linux-64 linux-aarch64 note"),
    ("cuda_drivers", "toolkits"): ("toolkit linux_min refs", "linux_bundled windows_bundled confidence note"),
    ("cuda_drivers", "minor_compat"): ("cuda_major linux_min refs", "note"),
    ("gpu_arch", "rows"): (
        "capability family first_cuda last_cuda min_driver_branch last_driver_branch products amp refs",
        "confidence data_center arm_host integrated note",
    ),
    ("oses", "rows"): (
        "id title family glibc pythons image codename cuda_suffix eol platforms refs",
        "aliases mirrors_ended confidence note",
    ),
    ("pythons", "rows"): ("python bugfix_until eol refs", "confidence note"),
    ("cudnn_cuda", "rows"): ("cudnn cuda_major cuda_minors linux_min_driver capabilities refs", "confidence note"),
    ("docker_tags", "rows"): (
        "cuda status cudnn_tag_part oses refs",
        "require_branches require_geforce confidence note",
    ),
    ("base_images", "rows"): ("image tag torch build cuda python os refs", "confidence note"),
    ("package_needs", "rows"): ("package deb rpm pages refs", "programs indexes confidence note"),
    ("traps", "rows"): ("id title when effect fix severity refs", "confidence"),
}
_LEVELS = ("inferred", "conflict", "unknown")

Tree = dict[str, Any]


def check_tables() -> list[Finding]:
    """Return every broken invariant of the YAML tables; also a finding if the snapshot is out of date."""
    known = edited.read("sources")["sources"]
    findings: list[Finding] = []
    for name in edited.NAMES:
        findings.extend(_walk(name, edited.read(name), (), known))
        findings.extend(_duplicates(name))
    findings.extend(_fields())
    findings.extend(_aliases(known))
    # The checks below read required fields without looking whether they exist.
    if not findings:
        findings.extend(_variants())
    if not findings and not _snapshot_is_current():
        findings.append(Finding("snapshot.json", None, None, "is out of date; run python -m envkit.facts.snapshot"))
    return findings


def _snapshot_is_current() -> bool:
    text = snapshot.text(snapshot.tree())
    return snapshot.PATH.exists() and snapshot.PATH.read_text(encoding="utf-8") == text


def _fields() -> Iterator[Finding]:
    """Check that no row lacks a required field or has an unknown one."""
    for (name, rows), (needed, possible) in _FIELDS.items():
        for index, row in enumerate(edited.read(name)[rows]):
            row_path = f"{rows}.{index}"
            yield from (Finding(name, row_path, field, "is missing") for field in needed.split() if field not in row)
            known = {*needed.split(), *possible.split()}
            yield from (
                Finding(name, row_path, field, "is not a field of this table") for field in row if field not in known
            )


def _walk(name: str, value: Any, path: tuple[str, ...], known: Tree) -> Iterator[Finding]:
    """Check that every row has sources, that every source is known, and that every confidence is a valid level."""
    row_path = ".".join(path) or None
    if isinstance(value, list):
        for index, item in enumerate(value):
            item_path = (*path, str(index))
            if isinstance(item, dict) and not item.get("refs"):
                yield Finding(name, ".".join(item_path), "refs", "the row has no source")
            yield from _walk(name, item, item_path, known)
    elif isinstance(value, dict):
        for field, item in value.items():
            if field == "refs" or field.endswith("_refs"):
                yield from (
                    Finding(name, row_path, field, f"unknown source {ref!r}")
                    for ref in item
                    if not sources.find(known, ref)
                )
            elif field == "confidence":
                levels = item.values() if isinstance(item, dict) else (item,)
                yield from (
                    Finding(name, row_path, field, f"{level!r} is not one of {', '.join(_LEVELS)}")
                    for level in levels
                    if level not in _LEVELS
                )
            else:
                yield from _walk(name, item, (*path, field), known)


def _duplicates(name: str) -> Iterator[Finding]:
    seen: set[tuple[Any, ...]] = set()
    for row in edited.rows(name) if name in _KEYS else ():
        key = tuple(row.get(field) for field in _KEYS[name])
        if key in seen:
            yield Finding(name, " ".join(str(part) for part in key if part), None, "the row is given twice")
        seen.add(key)


def _aliases(known: Tree) -> Iterator[Finding]:
    for name, source in known.items():
        if "kind" not in source:
            yield Finding("sources", name, "kind", "is missing")
        for other in source.get("of", ()):
            if other not in known:
                yield Finding("sources", name, "of", f"unknown source {other!r}")


def _variants() -> Iterator[Finding]:
    """Check that variant rows have known tags and sources and match the measured default wheel of their release."""
    table = edited.read("torch_cuda_variants")
    releases = {row["torch"]: row for row in edited.rows("torch_releases")}
    defaults: dict[str, int] = dict.fromkeys(releases, 0)
    for row in table["rows"]:
        name = f"{row['torch']} {row['cuda']} {row['source']}"
        if row["source"] not in SOURCES:
            yield Finding(
                "torch_cuda_variants", name, "source", f"{row['source']!r} is not one of {', '.join(SOURCES)}"
            )
        for tag in row.get("files") or {}:
            if tag not in table["platform_tags"]:
                yield Finding("torch_cuda_variants", name, "files", f"the tag {tag!r} is not in platform_tags")
        release = releases.get(row["torch"])
        if release is None:
            yield Finding("torch_cuda_variants", name, "torch", "torch_releases has no row for it")
        elif row.get("pypi_default"):
            defaults[row["torch"]] += 1
            for field in ("cuda", "arch", "cudnn", "nccl"):
                measured = release["pypi"][field]
                # One file, two tables: a row of the index, and the measured default wheel of the release.
                if measured is not None and measured != row[field]:
                    yield Finding(
                        "torch_cuda_variants",
                        name,
                        field,
                        f"{row[field]}, but the measured wheel has {measured}",
                    )
    for torch, count in defaults.items():
        if count != 1:
            yield Finding("torch_releases", torch, "pypi", f"{count} variant rows are marked as its default wheel")
