"""The output of `kubectl get nodes -o json`, with the node labels of NVIDIA's GPU feature discovery.

Source: NVIDIA GPU feature discovery, "Generated labels" (`nvidia.com/gpu.product`, `nvidia.com/cuda.driver.*`,
`nvidia.com/cuda.driver-version.*`, `nvidia.com/gpu.compute.*`); Kubernetes API reference, NodeSystemInfo.
"""

from __future__ import annotations

from typing import Any

from envkit.cover.hosts import Gpu, Host, Inventory
from envkit.ground.errors import UsageError

_N = "nvidia.com/"
_ARCH, _OS = "kubernetes.io/arch", "kubernetes.io/os"


def is_nodes(tree: Any) -> bool:
    """Return whether a document is a list of nodes, or one node."""
    if not isinstance(tree, dict):
        return False
    rows = tree.get("items")
    first = rows[0] if isinstance(rows, list) and rows else tree
    return isinstance(first, dict) and (first.get("kind") == "Node" or tree.get("kind") in ("NodeList", "Node"))


def parse(tree: Any, where: str) -> Inventory:
    """Return the nodes that have an NVIDIA GPU; the others are counted in a note.

    Raises:
        UsageError: it is not a list of nodes.
    """
    if not is_nodes(tree) and not (isinstance(tree, dict) and isinstance(tree.get("items"), list)):
        raise UsageError(f"{where} has no Kubernetes nodes", hint="kubectl get nodes -o json")
    rows = tree["items"] if isinstance(tree.get("items"), list) else [tree]
    hosts, without, foreign = [], 0, 0
    for number, row in enumerate(rows, 1):
        metadata, status = _mapping(_mapping(row).get("metadata")), _mapping(_mapping(row).get("status"))
        labels, node_info = _mapping(metadata.get("labels")), _mapping(status.get("nodeInfo"))
        if str(labels.get(_OS) or node_info.get("operatingSystem") or "linux").lower() != "linux":
            foreign += 1
            continue
        gpus = _gpus(labels)
        # NVIDIA's device plugin sets this number, also on clusters without GPU feature discovery and its labels.
        capacity = _mapping(status.get("capacity")).get(f"{_N}gpu")
        if not gpus and str(capacity or "0") == "0":
            without += 1
            continue
        name = str(metadata.get("name") or f"node {number}")
        hosts.append(
            Host(
                name=name,
                where=f"node {name}",
                gpus=gpus,
                driver=_driver(labels),
                machine=_text(labels.get(_ARCH)) or _text(node_info.get("architecture")),
                os=_text(node_info.get("osImage")),
            )
        )
    notes = [f"nodes without an NVIDIA GPU: {without}"] if without else []
    notes += [f"nodes that do not run Linux: {foreign}"] if foreign else []
    return Inventory(hosts=tuple(hosts), form="kubectl", notes=tuple(notes))


def _gpus(labels: dict[str, Any]) -> tuple[Gpu, ...]:
    product = _text(labels.get(f"{_N}gpu.product"))
    major, minor = _text(labels.get(f"{_N}gpu.compute.major")), _text(labels.get(f"{_N}gpu.compute.minor"))
    capability = f"{major}.{minor}" if major and minor else None
    if product is None and capability is None:
        return ()
    return (Gpu(name=product or f"sm_{major}{minor}", capability=capability),)


def _driver(labels: dict[str, Any]) -> str | None:
    """Return the driver version from the newer labels or the older ones."""
    full = _text(labels.get(f"{_N}cuda.driver-version.full"))
    if full:
        return full
    for names in (
        (f"{_N}cuda.driver-version.major", f"{_N}cuda.driver-version.minor", f"{_N}cuda.driver-version.revision"),
        (f"{_N}cuda.driver.major", f"{_N}cuda.driver.minor", f"{_N}cuda.driver.rev"),
    ):
        parts = [part for name in names if (part := _text(labels.get(name)))]
        if parts:
            return ".".join(parts)
    return None


def _text(value: Any) -> str | None:
    return str(value).strip() or None if value is not None else None


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
