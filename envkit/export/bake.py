"""A BuildKit bake file: a target for each image over its rendered build context."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from envkit.export.contexts import build_context, oci_platform
from envkit.export.model import LONGEST_TAG, Option, Order, needs_gpu
from envkit.fleet.model import Cell
from envkit.ground.errors import UsageError
from envkit.ground.naming import LABEL_PREFIX
from envkit.render.texts import text_of

FILE = "docker-bake.hcl"
FOLDER = "contexts"
OPTIONS: Mapping[str, Option] = {
    "attest": Option(
        default="max", about="provenance that BuildKit attaches: max, min or none", pattern="max|min|none"
    ),
    "cache": Option(
        default="registry", about="where builders share their cache: registry or none", pattern="registry|none"
    ),
}
_CACHE = "-cache"


def export(order: Order) -> dict[str, str]:
    """Return the bake file and every file of the build contexts.

    Raises:
        UsageError: two images have the same target name, or a template or a mirror is invalid.
    """
    cache = order.options["cache"] == "registry" and order.registry is not None
    targets = [_target(order, cell) for cell in order.cells]
    names = [target["name"] for target in targets]
    duplicate = next((name for name in names if names.count(name) > 1), None)
    if duplicate is not None:
        raise UsageError(f"two images have the bake target {duplicate!r}", hint="rename one of the definitions")
    values = {
        "command": order.command,
        "registry": order.registry or "envkit",
        "cache": cache,
        "attest": order.options["attest"] != "none",
        "attestations": _attestations(order.options["attest"]),
        "targets": targets,
        "groups": _groups(order.cells, names),
    }
    files = {FILE: text_of(f"export/{FILE}.j2", values, order.template_dirs)}
    for cell in order.cells:
        files |= {f"{FOLDER}/{cell.name}/{name}": text for name, text in build_context(order, cell).items()}
    return files


def _target(order: Order, cell: Cell) -> dict[str, Any]:
    # The Dockerfile sets the labels of the plan; these two are not part of a plan.
    labels = {f"{LABEL_PREFIX}.version": order.version, f"{LABEL_PREFIX}.cell": cell.name}
    return {
        "name": _target_name(cell.name),
        "title": cell.plan.title,
        "context": f"{FOLDER}/{cell.name}",
        "platform": oci_platform(cell),
        "tags": [cell.name, *cell.also],
        "cache": _cache_tag(cell.name),
        "labels": [list(pair) for pair in labels.items()],
    }


def _target_name(name: str) -> str:
    """Return the name of a cell as a target name, which must not contain dots."""
    return re.sub(r"[^A-Za-z0-9_-]", "-", name)


def _cache_tag(name: str) -> str:
    if len(name) + len(_CACHE) <= LONGEST_TAG:
        return name + _CACHE
    # Cut off, two long names could get the same tag.
    return hashlib.sha256(name.encode()).hexdigest() + _CACHE


def _attestations(provenance: str) -> list[str]:
    # With none, the variable ATTEST is false by default; setting it gives the whole provenance.
    return [f"type=provenance,mode={'max' if provenance == 'none' else provenance}", "type=sbom"]


def _groups(cells: Sequence[Cell], taken: Sequence[str]) -> list[dict[str, Any]]:
    """Return groups of targets: one for each value of an axis, `gpu` and `cpu`; without groups named like a target."""
    groups: dict[str, list[str]] = {}
    for cell in cells:
        names = [f"{axis}-{value}" for axis, value in cell.axes] + ["gpu" if needs_gpu(cell) else "cpu"]
        for name in dict.fromkeys(map(_target_name, names)):
            groups.setdefault(name, []).append(_target_name(cell.name))
    return [
        {"name": name, "targets": targets}
        for name, targets in sorted(groups.items())
        # The file has a group `default` with all targets.
        if len(targets) < len(cells) and name not in taken and name != "default"
    ]
