"""The environment of a run as labels and values with units, and records without GPU identifiers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from envkit.checks.reading import Tree, is_number, mapping, sequence

HIDDEN = "hidden"
_IDENTIFIER = re.compile(r"\b(?:GPU|MIG)-[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_FEWEST = 8  # characters; replacing a shorter text would change unrelated words

# Field -> label and unit.
_HOST = {
    "cpu_model": ("Processor", ""),
    "machine": ("Architecture", ""),
    "logical": ("Logical CPUs", ""),
    "affinity": ("CPUs this process may use", ""),
    "quota_cpus": ("CPU quota of the container", "CPUs"),
    "effective": ("Effective CPUs", ""),
    "numa_nodes": ("NUMA nodes", ""),
    "ram_gb": ("Memory", "GB"),
    "memcg_gb": ("Memory limit of the container", "GB"),
    "shm_mb": ("Shared memory", "MiB"),
    "memlock": ("Limit of locked memory", "bytes"),
    "kernel": ("Linux kernel", ""),
    "virt": ("Virtualization", ""),
    "cgroup": ("cgroup version", ""),
    "libc": ("C library", ""),
}
_GPU = {
    "name": ("Model", ""),
    "uuid": ("UUID", ""),
    "cc": ("Compute capability", ""),
    "mem_mib": ("Memory", "MiB"),
    "torch_mem_mib": ("Memory visible to torch", "MiB"),
    "sms": ("Multiprocessors", ""),
    "driver": ("Driver", ""),
    "mig": ("MIG", ""),
    "ecc": ("ECC", ""),
    "cc_mode": ("Confidential computing", ""),
    "power_limit_w": ("Power limit", "W"),
    "pci_id": ("PCI vendor and device", ""),
    "pci_bus": ("PCI address", ""),
    "numa_node": ("NUMA node", ""),
    "local_cpus": ("CPUs of its node", ""),
}
_SOFTWARE = {
    "python": ("Python", ""),
    "torch": ("PyTorch", ""),
    "torch_error": ("torch cannot be imported", ""),
    "torch_cuda": ("CUDA of PyTorch", ""),
    "cudnn_runtime": ("cuDNN, loaded", ""),
    "cudnn_compile": ("cuDNN, compiled with", ""),
    "nccl": ("NCCL", ""),
    "triton": ("Triton", ""),
    "numpy": ("NumPy", ""),
    "arch_list": ("Compiled for", ""),
    "threads": ("Threads of PyTorch", ""),
    "loaded_libs": ("Loaded libraries", ""),
    "openmp": ("OpenMP runtimes", ""),
}
_SUBJECT = {
    "image": ("Image", ""),
    "id": ("Image ID", ""),
    "tags": ("Tags", ""),
    "plan": ("Plan", ""),
    "name": ("Name in the plan", ""),
    "architecture": ("Architecture", ""),
    "size_bytes": ("Size unpacked", "bytes"),
    "promise": ("Promise", ""),
    "spec": ("Expected", ""),
}
_RUN = {
    "id": ("Run", ""),
    "started": ("Started", ""),
    "duration_s": ("Duration", "s"),
    "tier": ("Tier", ""),
    "runner": ("Runner", ""),
    "gpus": ("GPUs requested", ""),
    "argv": ("Command", ""),
    "selected": ("Checks", ""),
    "suite_version": ("Version of the checks", ""),
    "suite_sha256": ("Digest of the checks", ""),
    "timing_trusted": ("Timing is reliable", ""),
}
_PRINTS = {"hw": ("Hardware", ""), "sw": ("Software", ""), "policy": ("Settings", "")}
_BINARY = {"bytes": ((1 << 30, "GiB"), (1 << 20, "MiB")), "MiB": ((1 << 10, "GiB"),)}


def parts(record: Tree) -> list[tuple[str, Tree, bool]]:
    """Return the sections of the environment: title, labels with values, and whether the page shows it unfolded."""
    env, run = record["env"], record["run"]
    cards = [mapping(card) for card in sequence(env["gpu"])]
    sections = {
        "Image": _labeled(record["subject"], _SUBJECT),
        "Run": _labeled({key: value for key, value in run.items() if key != "payload"}, _RUN),
        "Host": _labeled(env["host"], _HOST),
        "GPUs": {f"GPU {index}": _card(card) for index, card in enumerate(cards)},
        "Software": _labeled(env["sw"], _SOFTWARE),
        "Settings": mapping(env["flags"]),
        "Fingerprints": _labeled(env["fingerprint"], _PRINTS),
    }
    return [(name, part, name in ("Host", "GPUs", "Software")) for name, part in sections.items() if part]


def _card(card: Tree) -> Tree:
    link = mapping(card.get("link"))
    links = {
        "Link": _link(link.get("gen"), link.get("width")),
        "Fastest link": _link(link.get("gen_max"), link.get("width_max")),
    }
    return {**_labeled({key: value for key, value in card.items() if key != "link"}, _GPU), **links}


def _link(generation: object, width: object) -> str:
    return f"PCIe {generation}.0 x{width}" if generation and width else ""


def _labeled(part: Any, labels: dict[str, tuple[str, str]]) -> Tree:
    """Return the values by label: known fields first, then the others with their field name as label."""
    tree = mapping(part)
    order = [*(key for key in labels if key in tree), *(key for key in tree if key not in labels)]
    rows = ((*labels.get(key, (str(key).replace("_", " "), "")), tree[key]) for key in order)
    return {name: _with_unit(value, unit) for name, unit, value in rows}


def _with_unit(value: Any, unit: str) -> Any:
    if not unit or not is_number(value):
        return value
    for factor, larger in _BINARY.get(unit, ()):
        if value >= factor:
            return f"{value / factor:.4g} {larger}"
    return f"{value:g} {unit}"


def without_identifiers(tree: Tree) -> Tree:
    """Return a record in which all UUIDs of GPUs and MIG slices are replaced."""
    # The longest first: the older name of a MIG slice, MIG-GPU-UUID/1/0, contains that of its GPU.
    known = sorted({identifier for identifier in _uuids(tree) if len(identifier) >= _FEWEST}, key=len, reverse=True)
    replaced: Tree = _replaced(tree, known)
    return replaced


def _uuids(tree: Any) -> Iterator[str]:
    if isinstance(tree, dict):
        for key, value in tree.items():
            if key == "uuid" and isinstance(value, str):
                yield value
            yield from _uuids(value)
    elif isinstance(tree, list | tuple):
        for value in tree:
            yield from _uuids(value)


def _replaced(tree: Any, known: list[str]) -> Any:
    if isinstance(tree, dict):
        return {_replaced(key, known): _replaced(value, known) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [_replaced(value, known) for value in tree]
    if not isinstance(tree, str):
        return tree
    for identifier in known:
        tree = tree.replace(identifier, HIDDEN)
    # Texts such as the end of stderr may name GPUs that have no entry of their own.
    return _IDENTIFIER.sub(HIDDEN, tree)
