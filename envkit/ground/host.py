"""What this machine is: its NVIDIA driver, its GPUs, its operating system, its memory.

Reading and parsing are apart: `read` asks nvidia-smi and a few files, the `parse_*` functions are pure.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from envkit.ground.errors import EnvironmentProblem
from envkit.ground.platforms import of_machine

# A driver in trouble can make nvidia-smi hang.
SMI_SECONDS = 20
_VERSION_FILE = "proc/driver/nvidia/version"
_UNLIMITED = 1 << 60  # bytes; version 1 of control groups writes "no limit" as a number
_WSL_TOOLS = "/usr/lib/wsl/lib"
_FIELDS = ("name", "driver_version", "compute_cap")
_MODULE = re.compile(r"Kernel Module(?:\s+for\s+\S+)?\s+([0-9]+\.[0-9]+(?:\.[0-9]+)?)")
_MODEL = re.compile(r"^Model:\s*(.+?)\s*$", re.MULTILINE)

Smi = Callable[[Sequence[str]], str | None]


@dataclass(frozen=True, slots=True)
class HostGpu:
    """One GPU: its product name as the driver prints it, and its compute capability where the driver says it."""

    name: str
    capability: str | None

    @property
    def typed(self) -> str:
        """What to give `--gpu`: `sm_90`, or the name where the capability is not known."""
        return "sm_" + self.capability.replace(".", "") if self.capability else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """This machine; None = not found out."""

    driver: str | None
    gpus: tuple[HostGpu, ...]
    os: str | None  # 'debian12', 'ubuntu22.04', 'rockylinux9'
    os_title: str | None
    machine: str  # 'x86_64'
    platform: str | None  # 'linux-64'

    def need_driver(self) -> str:
        """The driver version.

        Raises:
            EnvironmentProblem: no NVIDIA driver answers.
        """
        if self.driver is None:
            raise EnvironmentProblem(
                "--driver auto: no NVIDIA driver found on this machine",
                hint="use --driver with the version of the machine that will run the image, such as --driver 550.54.15",
            )
        return self.driver

    def need_gpus(self) -> tuple[str, ...]:
        """One word for `--gpu` per kind of GPU.

        Raises:
            EnvironmentProblem: no NVIDIA GPU is visible.
        """
        if not self.gpus:
            raise EnvironmentProblem(
                "--gpu auto: no NVIDIA GPU is visible on this machine",
                hint="use --gpu with the GPU of the machine that will run the image, such as --gpu A100 or --gpu sm_80",
            )
        return tuple(dict.fromkeys(gpu.typed for gpu in self.gpus))


def read(root: Path = Path("/"), smi: Smi | None = None) -> Host:
    """Ask this machine; what cannot be read is None. `smi` runs nvidia-smi with arguments."""
    gpus, driver = _ask(smi or run_smi)
    if driver is None:
        driver = parse_module(_text(root / _VERSION_FILE))
    if not gpus:
        gpus = _from_proc(root / "proc/driver/nvidia/gpus")
    name, title = parse_os_release(_text(root / "etc/os-release"))
    machine = platform.machine()
    return Host(
        driver=driver,
        gpus=gpus,
        os=name,
        os_title=title,
        machine=machine,
        platform=known.name if (known := of_machine(machine)) else None,
    )


def has_driver(root: Path = Path("/")) -> bool:
    """Whether the NVIDIA kernel module is loaded; asks no program, so it costs nothing."""
    return (root / _VERSION_FILE).exists()


def run_smi(arguments: Sequence[str]) -> str | None:
    """Standard output of nvidia-smi, None when it is missing, fails or does not answer in time."""
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), _WSL_TOOLS))
    program = shutil.which("nvidia-smi", path=path)
    if program is None:
        return None
    import subprocess  # noqa: PLC0415 - 2 ms that `envkit resolve`, which asks only `has_driver`, need not wait

    try:
        done = subprocess.run(  # noqa: S603 - the program found above with fixed arguments
            [program, *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SMI_SECONDS,
            check=False,
            env={**os.environ, "LC_ALL": "C"},
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def parse_smi(text: str, fields: Sequence[str]) -> tuple[tuple[HostGpu, ...], str | None]:
    """GPUs and driver version from `--query-gpu=FIELDS --format=csv,noheader`."""
    gpus: list[HostGpu] = []
    driver: str | None = None
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != len(fields):
            continue
        row = dict(zip(fields, cells, strict=True))
        capability = row.get("compute_cap", "")
        known = re.fullmatch(r"[0-9]+\.[0-9]", capability)
        gpus.append(HostGpu(row["name"], capability if known else None))
        if re.fullmatch(r"[0-9]+(?:\.[0-9]+)+", row["driver_version"]):
            driver = row["driver_version"]
    return tuple(gpus), driver


def parse_module(text: str) -> str | None:
    """Driver version from /proc/driver/nvidia/version, of the proprietary or the open kernel module."""
    found = _MODULE.search(text)
    return found.group(1) if found else None


def parse_model(text: str) -> str | None:
    """Product name from /proc/driver/nvidia/gpus/*/information."""
    found = _MODEL.search(text)
    return found.group(1) if found else None


def parse_os_release(text: str) -> tuple[str | None, str | None]:
    """Our name and the printed name of an OS: `('ubuntu22.04', 'Ubuntu 22.04.4 LTS')`."""
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
    names = {"rocky": "rockylinux", "rhel": "ubi"}
    return names.get(kind, kind) + version.split(".")[0], title


def control_groups(root: Path, controller: str) -> list[str]:
    """Return the folders of this process's control group and of all above it, for versions 2 and 1.

    `root` is where the machine's files lie; the folders are absolute paths of the machine.
    """
    base = "/sys/fs/cgroup"
    unified = (root / base.lstrip("/") / "cgroup.controllers").exists()
    paths = {}
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        paths.update(dict.fromkeys(names.split(","), path))
    own = PurePosixPath(paths.get("" if unified else controller, "/"))
    start = base if unified else f"{base}/{controller}"
    return [f"{start}{path}".rstrip("/") for path in (own, *own.parents) if ".." not in path.parts]


def memory_limit(root: Path = Path("/")) -> int | None:
    """Return the lowest memory limit of the control groups above this process, in bytes; None where there is none."""
    found = []
    for name in control_groups(root, "memory"):
        folder = root / name.lstrip("/")
        text = (_text(folder / "memory.max") or _text(folder / "memory.limit_in_bytes")).strip()
        if text.isdigit() and int(text) < _UNLIMITED:
            found.append(int(text))
    return min(found, default=None)


def memory_total(root: Path = Path("/")) -> int | None:
    """Return the machine's memory in bytes."""
    for line in _text(root / "proc/meminfo").splitlines():
        words = line.split()
        if len(words) > 1 and words[0] == "MemTotal:" and words[1].isdigit():
            return int(words[1]) * 1024
    return None


def _ask(smi: Smi) -> tuple[tuple[HostGpu, ...], str | None]:
    for fields in (_FIELDS, _FIELDS[:2]):  # drivers before R510 do not know compute_cap
        text = smi([f"--query-gpu={','.join(fields)}", "--format=csv,noheader"])
        if text is not None:
            gpus, driver = parse_smi(text, fields)
            if gpus:
                return gpus, driver
    return (), None


def _from_proc(folder: Path) -> tuple[HostGpu, ...]:
    try:
        cards = sorted(folder.iterdir())
    except OSError:
        return ()
    names = [parse_model(_text(card / "information")) for card in cards]
    return tuple(HostGpu(name, None) for name in names if name)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
