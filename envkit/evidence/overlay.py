"""Write proved rows as a YAML file for `--facts`, so that a wheel that is not in the facts can be resolved."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from envkit.evidence import yamltext
from envkit.evidence.derive import has_numpy2, row_key
from envkit.evidence.read import PARTNERS
from envkit.facts import model, tables
from envkit.facts.check import name_of
from envkit.facts.companions import torch_cuda
from envkit.facts.model import PYPI

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from envkit.evidence.derive import Release, Row
    from envkit.facts.model import Facts

SOURCE = "proved_files"
_HEAD = """# Rows proved by files (envkit matrix prove --as-overlay), for --facts FILE.
# `null  # ask: ...` marks values that are in no file.
"""


def text_of(releases: Sequence[Release], rows: Iterable[Row], facts: Facts) -> str:
    """Return the overlay of releases: their builds, and the releases themselves if the facts do not have them."""
    proved: dict[str, dict[str, Any]] = {}
    for _, evidence in rows:
        proved.setdefault(evidence.row, {}).setdefault(evidence.field, evidence.value)
    files = "; ".join(f"Files of torch {release.torch}: {_names(release)}" for release in releases)
    tree: dict[str, Any] = {"sources": {SOURCE: {"kind": "package index", "what": files}}}
    new = [release for release in releases if release.torch not in facts.releases]
    if new:
        tree["releases"] = [_plain(_release(release, proved.get(release.torch, {}))) for release in new]
    tree["builds"] = [
        _plain(_build(release, platform, proved, facts)) for release in releases for platform in release.wheels
    ]
    tree["companions"] = [_plain(row) for release in releases for row in _companions(release, proved, facts)]
    lines = ["schema: 1", f"facts_version: '{facts.version}'", "sources:", *yamltext.fields(tree["sources"], 2)]
    for name in ("releases", "builds", "companions"):
        if tree.get(name):
            lines += [f"{name}:", *(line for row in tree[name] for line in yamltext.item(row, 2))]
    return _HEAD + "".join(f"{line}\n" for line in lines)


def _names(release: Release) -> str:
    return ", ".join(f"{proofs.name} ({proofs.sha256})" for proofs in release.wheels.values())


def _release(release: Release, values: dict[str, Any]) -> dict[str, Any]:
    ask = yamltext.Ask("which version goes with this torch?")
    return {
        "torch": release.torch, "released": values.get("released"),
        **{partner: _partner(release, partner) or ask for partner in PARTNERS},
        "triton": values.get("triton"), "setuptools": values.get("setuptools"),
        "numpy2_ok": has_numpy2(release.torch),
        "default_cuda": values.get("default_cuda"), "refs": [SOURCE],
    }  # fmt: skip


def _partner(release: Release, name: str) -> str | None:
    wheels = release.partners.get(name, {})
    return next((proofs.metadata.version for proofs in wheels.values()), None)


def _companions(release: Release, proved: dict[str, dict[str, Any]], facts: Facts) -> Iterable[dict[str, Any]]:
    """Yield the rows of the partners' wheels on the Python index that the facts do not have."""
    known = {name_of(tables.BY_NAME["companions"], row) for row in facts.companions}
    for name, wheels in release.partners.items():
        for platform, proofs in wheels.items():
            row = f"{name} {proofs.metadata.version} {PYPI} {platform}"
            values = proved.get(row, {})
            if row in known or "pythons" not in values:
                continue
            cuda = values.get("cuda")
            yield {
                "package": name, "version": proofs.metadata.version, "index": PYPI, "platform": platform, "cuda": cuda,
                "torch_cuda": torch_cuda(name, cuda, facts), "pythons": values["pythons"],
                "torch": values.get("torch") or f">={release.torch}", "refs": [SOURCE],
            }  # fmt: skip


def _build(release: Release, platform: str, proved: dict[str, dict[str, Any]], facts: Facts) -> dict[str, Any]:
    name = row_key(release, platform, release.wheels[platform])
    known = tables.BY_NAME["builds"]
    old = next((row for row in facts.builds if name_of(known, row) == name), None)
    values = {column: getattr(old, column) for column in known.columns} if old is not None else {}
    measured = proved.get(name, {})
    cuda = measured.get("cuda")
    tag = "cpu" if cuda is None else "cu" + str(cuda).replace(".", "")
    base = {"torch": release.torch, "cuda": cuda or "cpu", "source": release.source, "platform": platform}
    if release.source == "pytorch" and not values:
        values = {"index": f"{_index_root(facts)}/{tag}", "local_version": f"+{tag}"}
    if not values or values.get("pythons") is None:
        python_tag = release.wheels[platform].name.split("-")[-3]  # torch-2.9.0-cp312-cp312-linux_x86_64.whl
        values["pythons"] = (f"{python_tag[2]}.{python_tag[3:]}",) if python_tag.startswith("cp") else None
    # Later ones win: values that the file proves override those of the facts.
    values = {"advertised": True, **values, **measured, **base}
    allowed = [field.name for field in fields(model.Build) if field.name not in ("confidence", "note", "refs")]
    return {**{name: values.get(name) for name in allowed}, "refs": [SOURCE]}


def _index_root(facts: Facts) -> str:
    return next(row.index for row in facts.builds if row.index).rstrip("/").rpartition("/")[0]


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """Return only fields with a value, with lists for tuples.

    An empty `archs` is kept: the files prove that there is no machine code.
    """
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in row.items()
        if value is not None and (value != () or name == "archs")
    }
