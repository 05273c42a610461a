"""This machine's operating system, CPUs and memory, and whether it has an NVIDIA driver.

`envkit.ground.nvidia` reads the driver and its GPUs.
"""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from envkit.ground.platforms import of_machine

NVIDIA_VERSION = "proc/driver/nvidia/version"
"""File of the NVIDIA kernel module, below the root folder."""
WSL_LIBRARIES = "usr/lib/wsl/lib"
"""Folder of the Windows driver's libraries in WSL2, which has no /proc/driver/nvidia."""
NVML = "libnvidia-ml.so.1"
_UNLIMITED = 1 << 60  # bytes; version 1 of control groups writes "no limit" as a number


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """This machine without its GPUs; None = unknown."""

    os: str | None  # 'debian12', 'ubuntu22.04', 'rockylinux9'
    os_title: str | None
    machine: str  # 'x86_64'
    platform: str | None  # 'linux-64'


def read(root: Path = Path("/")) -> Host:
    """Read this machine's files; values that cannot be read are None."""
    name, title = parse_os_release(text_of(root / "etc/os-release"))
    machine = platform.machine()
    known = of_machine(machine)
    return Host(os=name, os_title=title, machine=machine, platform=known.name if known else None)


def has_nvidia_driver(root: Path = Path("/")) -> bool:
    """Return whether an NVIDIA driver is installed. It runs no program, so it is fast."""
    return (root / NVIDIA_VERSION).exists() or (root / WSL_LIBRARIES / NVML).exists()


def cores() -> int:
    """Return the number of cores that this process may use."""
    # os.cpu_count() is the machine's number; the cpuset of a container, or taskset, may allow fewer.
    return len(os.sched_getaffinity(0))


def root_without(*capabilities: int, root: Path = Path("/")) -> bool:
    """Return whether this is root without one of the capabilities, given by their numbers in linux/capability.h."""
    if os.geteuid() != 0:
        return False
    rows = dict(row.partition(":")[::2] for row in text_of(root / "proc/self/status").splitlines())
    effective = int(rows.get("CapEff", "0"), 16)
    return not all(effective >> number & 1 for number in capabilities)


def parse_os_release(text: str) -> tuple[str | None, str | None]:
    """Return envkit's name and the printed name of an OS: `('ubuntu22.04', 'Ubuntu 22.04.4 LTS')`."""
    values: dict[str, str] = {}
    for line in text.splitlines():
        key, separator, value = line.partition("=")
        if separator and not key.startswith("#"):
            values[key.strip()] = value.strip().strip("\"'")
    kind, version = values.get("ID"), values.get("VERSION_ID", "")
    title = values.get("PRETTY_NAME")
    if not kind:
        return None, title
    if kind == "ubuntu":
        return f"ubuntu{version}", title
    # The names of the base images. Of other systems than Ubuntu they have only the major version.
    names = {"rocky": "rockylinux", "rhel": "ubi"}
    return names.get(kind, kind) + version.split(".")[0], title


def control_groups(root: Path, controller: str) -> list[str]:
    """Return the folders of this process's control group and its parents, for versions 2 and 1.

    `root` is the folder of the machine's files; the returned folders are absolute paths on the machine.
    """
    base = "/sys/fs/cgroup"
    unified = (root / base.lstrip("/") / "cgroup.controllers").exists()
    paths = {}
    for line in text_of(root / "proc/self/cgroup").splitlines():
        # 5:cpu,cpuacct:/docker/1f2e for version 1, 0::/user.slice for version 2
        _, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        paths.update(dict.fromkeys(names.split(","), path))
    own = PurePosixPath(paths.get("" if unified else controller, "/"))
    start = base if unified else f"{base}/{controller}"
    # A group outside of the root of its cgroup namespace is shown as /../other (cgroup_namespaces(7)).
    return [f"{start}{path}".rstrip("/") for path in (own, *own.parents) if ".." not in path.parts]


def memory_limit(root: Path = Path("/")) -> int | None:
    """Return the lowest memory limit of this process's control groups, in bytes; None without a limit."""
    limits = []
    for name in control_groups(root, "memory"):
        folder = root / name.lstrip("/")
        text = (text_of(folder / "memory.max") or text_of(folder / "memory.limit_in_bytes")).strip()
        # Version 2 writes `max`.
        if text.isdigit() and int(text) < _UNLIMITED:
            limits.append(int(text))
    return min(limits, default=None)


def memory_total(root: Path = Path("/")) -> int | None:
    """Return the machine's memory in bytes."""
    for line in text_of(root / "proc/meminfo").splitlines():
        words = line.split()
        if len(words) > 1 and words[0] == "MemTotal:" and words[1].isdigit():
            return int(words[1]) * 1024
    return None


def text_of(path: Path) -> str:
    """Return the text of a file of the kernel or the system, empty if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
