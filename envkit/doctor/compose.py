"""Check a Compose file: whether its services get GPUs, enough shared memory, and variables that hide no GPU."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from envkit.doctor.images.rules import of_configuration
from envkit.doctor.model import Evidence, Finding, Severity
from envkit.doctor.trees import items, mapping
from envkit.ground import strictyaml
from envkit.ground.errors import UsageError
from envkit.verify.static import image_facts

_SHM = "/dev/shm"  # noqa: S108 - the mount itself
# Compose's own tags, with which a file changes another one: `devices: !override`.
_TAGS = frozenset(["!reset", "!override"])
# What a service is called or runs that has loader workers; a server for inference seldom has them.
_TRAINS = re.compile(
    r"train|tune|tuning|jupyter|notebook|torchrun|accelerate|deepspeed|lightning|dataloader", re.IGNORECASE
)
_GPU_DOCS = ("https://docs.docker.com/compose/how-tos/gpu-support/",)
_SHM_DOCS = ("https://docs.docker.com/reference/compose-file/services/#shm_size",)
_RESERVATION = (
    "deploy: {resources: {reservations: {devices: [{driver: nvidia, count: all, capabilities: [gpu]}]}}}",
    "or, with Compose 2.30 and later: gpus: all",
)


def is_compose(path: Path) -> bool:
    """Return whether a file is a Compose file, by its content."""
    try:
        tree, _ = _read(path)
    except UsageError:
        return False
    return isinstance(mapping(tree).get("services"), dict)


def of_compose(path: Path) -> tuple[list[tuple[str, str]], list[Finding]]:
    """Return the facts and findings of a Compose file.

    Raises:
        UsageError: it cannot be read, or has no services.
    """
    tree, positions = _read(path)
    services = mapping(mapping(tree).get("services"))
    if not services:
        raise UsageError(
            f"{path} has no services", hint="envkit run IMAGE --print compose writes a Compose file with one"
        )
    findings: list[Finding] = []
    with_gpu = []
    for name, value in services.items():
        service, line = mapping(value), positions.get(("services", name), (1, 1))[0]
        devices = items(
            mapping(mapping(mapping(service.get("deploy")).get("resources")).get("reservations")).get("devices")
        )
        findings += _devices(name, [mapping(device) for device in devices], line)
        if _has_gpu(service, devices):
            with_gpu.append(name)
            findings += _memory(name, service, line)
            findings += _variables(name, service, line)
    if not with_gpu:
        findings.append(_no_gpu(services))
    return [("services", ", ".join(services)), ("with a GPU", ", ".join(with_gpu) or "none")], findings


def _has_gpu(service: Mapping[str, Any], devices: list[Any]) -> bool:
    # devices: [nvidia.com/gpu=all]
    by_cdi = any(str(device).startswith("nvidia.com/gpu") for device in items(service.get("devices")))
    reserved = any(
        mapping(device).get("driver") in ("nvidia", "cdi") or "gpu" in items(mapping(device).get("capabilities"))
        for device in devices
    )
    return bool(service.get("gpus")) or service.get("runtime") == "nvidia" or by_cdi or reserved


def _no_gpu(services: Mapping[str, Any]) -> Finding:
    # With nvidia as the host's default runtime, the variable alone is enough.
    by_variable = any(
        "NVIDIA_VISIBLE_DEVICES" in str(mapping(service).get("environment", "")) for service in services.values()
    )
    return Finding(
        id="no-gpu-reserved", severity=Severity.WARN if by_variable else Severity.ERROR,
        title="no service gets a GPU", cause="Compose gives a container GPUs only if its service requests them.",
        fix=_RESERVATION, sources=_GPU_DOCS,
        distinguish="Hosts whose default runtime is nvidia give GPUs to every container with NVIDIA_VISIBLE_DEVICES.",
    )  # fmt: skip


def _devices(name: str, devices: list[Mapping[str, Any]], line: int) -> Iterator[Finding]:
    for device in devices:
        if not device.get("capabilities"):
            yield Finding(
                id="no-capabilities", severity=Severity.ERROR, title=f"{name}: a reserved device has no capabilities",
                evidence=(Evidence(text=f"services.{name}.deploy.resources.reservations.devices", line=line),),
                cause="Compose refuses to start the service.", fix=("capabilities: [gpu]",), sources=_GPU_DOCS,
            )  # fmt: skip
        if "count" in device and "device_ids" in device:
            yield Finding(
                id="count-and-ids", severity=Severity.ERROR, title=f"{name}: count and device_ids exclude each other",
                evidence=(Evidence(text=f"services.{name}.deploy.resources.reservations.devices", line=line),),
                cause="Compose refuses to start the service.", fix=("leave one of them out",), sources=_GPU_DOCS,
            )  # fmt: skip


def _memory(name: str, service: Mapping[str, Any], line: int) -> Iterator[Finding]:
    mounts = " ".join(map(str, (*items(service.get("volumes")), *items(service.get("tmpfs")))))
    # A tmpfs or a volume at /dev/shm has a size of its own.
    if not service.get("shm_size") and service.get("ipc") != "host" and _SHM not in mounts:
        told = f"{name} {service.get('command', '')} {service.get('entrypoint', '')} {service.get('image', '')}"
        yield Finding(
            id="small-shm", severity=Severity.WARN if _TRAINS.search(told) else Severity.INFO,
            title=f"{name}: /dev/shm has 64 MB, too little for loader workers",
            evidence=(Evidence(text=f"services.{name}", line=line),),
            cause="Each worker passes its batches through /dev/shm; when it is full, the worker dies with a bus error.",
            fix=("shm_size: 8gb, or ipc: host",), sources=_SHM_DOCS,
        )  # fmt: skip


def _variables(name: str, service: Mapping[str, Any], line: int) -> Iterator[Finding]:
    """Check the variables of a service with a GPU, as those of an image; a reservation sets what is not there."""
    listed = service.get("environment")
    pairs = [str(row).partition("=") for row in items(listed)]
    rows = mapping(listed) or {key: value for key, sign, value in pairs if sign}
    env = {key: "" if value is None else str(value) for key, value in rows.items()}
    for finding in of_configuration(image_facts({"env": {"NVIDIA_VISIBLE_DEVICES": "all"} | env}), cuda=True):
        evidence = (Evidence(text=f"services.{name}.environment", line=line), *finding.evidence)
        yield replace(finding, title=f"{name}: {finding.title}", evidence=evidence)


def _read(path: Path) -> tuple[strictyaml.Tree, strictyaml.Places]:
    return strictyaml.read_with_places(strictyaml.text_of(path), str(path), aliases=True, tags=_TAGS)
