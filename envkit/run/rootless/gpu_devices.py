"""Determine what a container needs to use this machine's GPUs: device files, the driver's libraries, and links.

Pure functions over text that the caller has read: a CDI specification if the host has one, else the content of its
loader cache and the names below /dev.
Source: Container Device Interface specification 0.6 (containerEdits); nvidia-ctk's generated nvidia.yaml (hooks
`create-symlinks --link TARGET::LINK`); ldconfig(8), output of -p; NVIDIA's Multi-Instance GPU user guide, "Device Nodes
and Capabilities".
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from envkit.ground.errors import EnvironmentProblem, UsageError
from envkit.ground.platforms import of_machine

KIND = "nvidia.com/gpu"
_HINT = "install nvidia-container-toolkit and run nvidia-ctk cdi generate, or remove --gpus"
_GENERATE = "nvidia-ctk cdi generate --output={}   # as root"
# CUDA starts with neither: cuInit returns 100 without nvidiactl, and 999 without nvidia-uvm.
_REQUIRED = {
    "/dev/nvidiactl": "nvidia-modprobe -c 0   # as root",
    "/dev/nvidia-uvm": "nvidia-modprobe -u -c 0   # as root",
}
_CONTROL = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")
_DRIVER = ("libcuda.so", "libcudadebugger.so", "libnvidia-", "libnvcuvid.so", "libnvoptix.so")
# libcuda.so.1 (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libcuda.so.1
_CACHE_LINE = re.compile(r"^\s+(?P<name>\S+) \((?P<kind>[^)]*)\) => (?P<path>/.+)$")
_CAPABILITY = re.compile(r"^DeviceFileMinor: *(\d{1,6}) *$", re.MULTILINE)
_NUMBERED = re.compile(r"nvidia(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuEdits:
    """Additions to a container for its GPUs. All paths are absolute."""

    devices: tuple[tuple[str, str], ...] = ()  # (host, container)
    mounts: tuple[tuple[str, str], ...] = ()  # (host, container), read-only
    links: Mapping[str, str]  # link in the container -> its target
    env: Mapping[str, str]
    libraries: tuple[str, ...] = ()  # paths in the container that the image's loader has to find


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverFiles:
    """What the driver's files below /proc/driver/nvidia say about GPUs; both empty where they are missing."""

    minors: Mapping[str, int]  # UUID -> number in /dev
    slices: Mapping[int, Sequence[str]]  # number in /dev -> device files of the MIG devices of this GPU


def from_cdi(tree: Any, gpus: str, *, minors: Mapping[str, int], path: str = "the CDI specification") -> GpuEdits:
    """Return the edits of a CDI specification for `gpus` (`all`, or names joined by commas).

    Args:
        tree: the specification.
        gpus: the devices' names, or UUIDs of GPUs.
        minors: UUID -> number in /dev, for specifications without UUIDs.
        path: the specification's path, for messages.

    Raises:
        EnvironmentProblem: the file is not a CDI specification, or it has no device.
        UsageError: it has no device of this name.
    """
    if not isinstance(tree, dict) or tree.get("kind") != KIND:
        raise EnvironmentProblem(f"the CDI specification is not for {KIND}", hint=_HINT)
    named = {str(entry.get("name")): entry for entry in _mappings(tree.get("devices"))}
    wanted = gpus.split(",")
    if gpus == "all" and "all" not in named:
        wanted = list(named)
    wanted = [name if name in named else _named_for(minors.get(name), named) or name for name in wanted]
    missing = [name for name in wanted if name not in named]
    if not named:
        raise EnvironmentProblem("the CDI specification has no GPU", hint=_HINT)
    if missing:
        # nvidia-ctk lists UUIDs only with this strategy, and MIG devices as GPU:DEVICE unless they are created later.
        again = f"; if it exists: nvidia-ctk cdi generate --device-name-strategy=uuid --output={path}"
        raise UsageError(
            f"there is no GPU {', '.join(missing)} in {path}",
            hint=f"--gpus all, or any of {', '.join(named)}" + (again if any(map(_is_uuid, missing)) else ""),
        )
    edits = [section.get("containerEdits") for section in (tree, *(named[name] for name in wanted))]
    # By path in the container, so that a device or mount that is listed for several GPUs is used once.
    devices: dict[str, str] = {}
    mounts: dict[str, str] = {}
    links: dict[str, str] = {}
    env: dict[str, str] = {}
    for edit in (entry for entry in edits if isinstance(entry, dict)):
        for device in _mappings(edit.get("deviceNodes")):
            path = _path(device.get("path"))
            devices[path] = _path(device.get("hostPath") or path)
        for mount in _mappings(edit.get("mounts")):
            mounts[_path(mount.get("containerPath"))] = _path(mount.get("hostPath"))
        for hook in _mappings(edit.get("hooks")):
            links |= _links(hook.get("args"))
        env |= dict(str(item).partition("=")[::2] for item in edit.get("env") or ())
    # Only NVIDIA's container runtime reads this variable; in a container it would be misleading.
    env.pop("NVIDIA_VISIBLE_DEVICES", None)
    return GpuEdits(
        devices=tuple((host, path) for path, host in sorted(devices.items())),
        mounts=tuple((host, path) for path, host in sorted(mounts.items())),
        links=links,
        env=env,
        libraries=tuple(path for path in sorted(mounts) if ".so" in os.path.basename(path)),  # noqa: PTH119
    )


def from_loader(
    listing: str,
    dev: Iterable[str],
    gpus: str,
    *,
    machine: str,
    driver: DriverFiles,
    folder: str,
    tool: str | None = None,
) -> GpuEdits:
    """Return the edits for a host without a CDI specification.

    Args:
        listing: output of `ldconfig -p`.
        dev: names in /dev.
        gpus: `all`, or numbers and UUIDs joined by commas.
        machine: the value of `platform.machine()`.
        driver: what the driver says about the GPUs.
        folder: the folder for libraries in the container.
        tool: path of nvidia-smi, None if it is not installed.

    Raises:
        EnvironmentProblem: there is no GPU or no driver library.
        UsageError: there is no GPU of this name.
    """
    names = set(dev)
    present = sorted(int(match[1]) for name in names if (match := _NUMBERED.fullmatch(name)))
    if not present:
        raise EnvironmentProblem(
            "this machine cannot give GPUs to containers: it has no /dev/nvidia0 and no CDI specification",
            hint=_HINT,
        )
    requested, minors = gpus.split(","), driver.minors
    wanted = present if gpus == "all" else [minors.get(gpu, int(gpu) if gpu.isdigit() else -1) for gpu in requested]
    # Not strict: `all` is one request for several numbers, which are all present.
    missing = [gpu for gpu, number in zip(requested, wanted, strict=False) if number not in present]
    if missing:
        raise _no_such_gpu(missing, present, minors)
    libraries = driver_libraries(listing, machine)
    if "libcuda.so.1" not in libraries:
        raise EnvironmentProblem(
            "this machine cannot give GPUs to containers: libcuda.so.1 is not in its loader cache",
            hint=_HINT,
        )
    devices = [f"/dev/nvidia{number}" for number in dict.fromkeys(wanted)]
    devices += [f"/dev/{name}" for name in _CONTROL if name in names or f"/dev/{name}" in _REQUIRED]
    devices += [path for number in dict.fromkeys(wanted) for path in driver.slices.get(number, ())]
    mounts = [(path, f"{folder}/{name}") for name, path in sorted(libraries.items())]
    mounts += [(tool, "/usr/bin/nvidia-smi")] if tool else []
    return GpuEdits(devices=tuple((path, path) for path in devices), mounts=tuple(mounts), links={}, env={})


def check_present(edits: GpuEdits, exists: Callable[[str], bool], specification: str | None) -> None:
    """Check that the device files and the driver are on this machine.

    Args:
        edits: what a container would get.
        exists: whether a path exists.
        specification: path of the CDI specification that lists them; None without one.

    Raises:
        EnvironmentProblem: one of them is missing.
    """
    for host, path in edits.devices:
        if exists(host):
            continue
        if path in _REQUIRED:
            raise EnvironmentProblem(f"{host} is missing, and CUDA does not start without it", hint=_REQUIRED[path])
        raise _outdated(host, specification)
    for host, _ in edits.mounts:
        # Other files may be missing: not every program needs each of the driver's libraries.
        if os.path.basename(host).startswith("libcuda.so") and not exists(host):  # noqa: PTH119
            raise _outdated(host, specification)


def _outdated(path: str, specification: str | None) -> EnvironmentProblem:
    if specification is None:
        return EnvironmentProblem(f"{path} is missing on this machine", hint="nvidia-modprobe -c 0   # as root")
    return EnvironmentProblem(
        f"{specification} lists {path}, which this machine does not have: it is older than the driver or the GPUs here",
        hint=_GENERATE.format(specification),
    )


def mig_nodes(texts: Mapping[int, Iterable[str]]) -> dict[int, tuple[str, ...]]:
    """Return the device files of MIG devices.

    Args:
        texts: number in /dev of a GPU -> the driver's files /proc/driver/nvidia/capabilities/gpuN/mig/**/access.
    """
    return {
        number: tuple(
            f"/dev/nvidia-caps/nvidia-cap{match[1]}" for text in found for match in _CAPABILITY.finditer(text)
        )
        for number, found in texts.items()
    }


def driver_libraries(listing: str, machine: str) -> dict[str, str]:
    """Return the driver's libraries in a loader cache: name -> path. The first of a name is used, as by the loader."""
    libraries: dict[str, str] = {}
    platform = of_machine(machine)
    kind = platform.loader if platform is not None else machine
    for line in listing.splitlines():
        match = _CACHE_LINE.match(line)
        # A 32-bit library is listed as `libc6` alone.
        if match is None or kind not in match["kind"] or not match["name"].startswith(_DRIVER):
            continue
        if not match["name"].startswith("libnvidia-container"):  # belongs to the container toolkit, not to the driver
            libraries.setdefault(match["name"], match["path"])
    return libraries


def gpu_minors(texts: Iterable[str]) -> dict[str, int]:
    """Return UUID -> number in /dev, from the driver's files /proc/driver/nvidia/gpus/*/information."""
    minors: dict[str, int] = {}
    for text in texts:
        fields = {
            key.strip(): value.strip() for key, sign, value in (line.partition(":") for line in text.splitlines())
        }
        # Lines such as `GPU UUID: GPU-5a1b...` and `Device Minor: 0`.
        if fields.get("GPU UUID") and fields.get("Device Minor", "").isdigit():
            minors[fields["GPU UUID"]] = int(fields["Device Minor"])
    return minors


def loader_links(libraries: Sequence[tuple[str, str]], folder: str) -> dict[str, str]:
    """Return links in `folder` by which the image's loader finds libraries elsewhere: (container path, soname) each."""
    links: dict[str, str] = {}
    for path, soname in libraries:
        link = f"{folder}/{soname}"
        if soname and "/" not in soname and link != path:
            links[link] = path
    return links


def _links(arguments: Any) -> dict[str, str]:
    """Return the links that a `create-symlinks` hook would create."""
    words = [str(argument) for argument in arguments] if isinstance(arguments, list) else []
    if "create-symlinks" not in words:
        return {}
    links: dict[str, str] = {}
    for number, word in enumerate(words):
        text = word.removeprefix("--link=") if word.startswith("--link=") else None
        if word == "--link" and number + 1 < len(words):
            text = words[number + 1]
        if text is not None and "::" in text:
            target, _, link = text.partition("::")
            links[_path(link)] = target
    return links


def _path(value: Any) -> str:
    """Return a normalized path, which must be absolute and without `..`."""
    if not isinstance(value, str) or not value.startswith("/") or ".." in value.split("/") or "\0" in value:
        raise EnvironmentProblem(f"the CDI specification has an invalid path: {str(value)[:200]!r}", hint=_HINT)
    return os.path.normpath(value)


def _mappings(value: Any) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _named_for(minor: int | None, named: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Return the name of the device that is exactly the GPU with this number in /dev, None if there is none."""
    for name, entry in named.items():
        edits = entry.get("containerEdits")
        nodes = _mappings(edits.get("deviceNodes")) if isinstance(edits, dict) else []
        if [node.get("path") for node in nodes if str(node.get("path")).startswith("/dev/nvidia")] == [
            f"/dev/nvidia{minor}"
        ]:
            return name
    return None


def _is_uuid(name: str) -> bool:
    return name.startswith(("GPU-", "MIG-"))


def _no_such_gpu(
    missing: Sequence[str], present: Sequence[int], minors: Mapping[str, int]
) -> UsageError | EnvironmentProblem:
    """Return the error for GPUs that are not found in /dev."""
    known = ", ".join(map(str, present))
    name = missing[0]
    if name.startswith("MIG-") or ":" in name:
        return EnvironmentProblem(
            f"the MIG device {name} can be given to a container only by a CDI specification, and there is none here",
            hint=_GENERATE.format("/etc/cdi/nvidia.yaml") + f", or --gpus {known} for the whole GPU",
        )
    if _is_uuid(name) and not minors:
        return EnvironmentProblem(
            f"which GPU {name} is cannot be found out: /proc/driver/nvidia/gpus is missing or empty here",
            hint=f"--gpus all, or any of {known}",
        )
    return UsageError(
        f"there is no GPU {', '.join(missing)} here", hint=f"--gpus all, or any of {', '.join((known, *minors))}"
    )
