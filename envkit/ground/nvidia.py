"""Read the NVIDIA driver of this machine and its GPUs: with NVML, else with nvidia-smi, else from /proc.

NVML comes first, because nvidia-smi is not in every container and prints no compute capability before driver R510. The
`parse_*` functions are pure.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envkit.ground import process
from envkit.ground.errors import EnvironmentProblem
from envkit.ground.host import NVIDIA_VERSION, NVML, WSL_LIBRARIES, text_of
from envkit.ground.sizes import shown_size
from envkit.ground.text import neutral

# Without persistence mode, initializing many GPUs takes seconds; a broken driver can hang.
PATIENCE_S = 20.0
_GPUS_FOLDER = "proc/driver/nvidia/gpus"
_DXG = "dev/dxg"  # WSL2's device for the Windows driver
_MISMATCH = 18  # NVML_ERROR_LIB_RM_VERSION_MISMATCH
_FIELDS = ("name", "driver_version", "compute_cap")
# NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024
# NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15  Release Build  (...)
_MODULE = re.compile(r"Kernel Module(?:\s+for\s+\S+)?\s+([0-9]+\.[0-9]+(?:\.[0-9]+)?)")
_MODEL = re.compile(r"^Model:\s*(.+?)\s*$", re.MULTILINE)
_VERSION = re.compile(r"[0-9]+(?:\.[0-9]+)+")
_CAPABILITY = re.compile(r"[0-9]+\.[0-9]")
_CHILD = "import sys; sys.path.insert(0, sys.argv[1]); from envkit.ground.nvml_child import main; main(sys.argv[2:])"
_DOCTOR = "run envkit doctor to find the cause"


@dataclass(frozen=True, slots=True)
class HostGpu:
    """A GPU of this machine. The optional fields are known only from NVML."""

    name: str  # the product as the driver prints it
    capability: str | None  # '8.0'; None = unknown
    memory: int | None = None  # bytes
    slices: tuple[str, ...] = ()  # names of its MIG devices that this process may use
    is_virtual: bool = False  # a vGPU: a part of the hypervisor's GPU

    def __str__(self) -> str:
        known = [f"sm_{self.capability.replace('.', '')}" if self.capability else ""]
        known += [shown_size(self.memory, "GiB") if self.memory else "", "vGPU" if self.is_virtual else ""]
        known += [name.removeprefix(f"{self.name} ") for name in self.slices]
        text = ", ".join(filter(None, known))
        return f"{self.name} ({text})" if text else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """The NVIDIA driver of this machine."""

    version: str | None  # None = there is no driver, or it does not answer
    gpus: tuple[HostGpu, ...]
    source: str | None  # 'NVML', 'nvidia-smi' or '/proc/driver/nvidia'
    cuda: str | None = None  # newest CUDA version that it runs natively, '12.4'; known only from NVML
    is_windows: bool = False  # whether this is WSL2, where driver and version are those of Windows
    notes: tuple[str, ...] = ()  # problems with the driver or a GPU, each with the next step

    def __str__(self) -> str:
        kinds = dict.fromkeys(self.gpus)
        named = [f"{self.gpus.count(gpu)} x {gpu}" if self.gpus.count(gpu) > 1 else str(gpu) for gpu in kinds]
        newest = f" for CUDA up to {self.cuda}" if self.cuda else ""
        windows = " of Windows (WSL2)" if self.is_windows else ""
        driver = f"driver {self.version}{windows}{newest}" if self.version else "no driver"
        return f"{', '.join(named) or 'no GPU'}; {driver}" + (f"; from {self.source}" if self.source else "")

    def need_version(self) -> str:
        """Return the driver version.

        Raises:
            EnvironmentProblem: there is no NVIDIA driver, or it does not answer.
        """
        if self.version is None:
            raise EnvironmentProblem(
                "--driver auto: no NVIDIA driver found on this machine",
                hint="use --driver with the version of the machine that will run the image, such as --driver 550.54.15",
                details=self.notes,
            )
        return self.version

    def need_gpus(self) -> tuple[HostGpu, ...]:
        """Return one GPU of each kind.

        Raises:
            EnvironmentProblem: no NVIDIA GPU is visible.
        """
        if not self.gpus:
            raise EnvironmentProblem(
                "--gpu auto: no NVIDIA GPU is visible on this machine",
                hint="use --gpu with the GPU of the machine that will run the image, such as --gpu A100 or --gpu sm_80",
                details=self.notes,
            )
        return tuple(dict.fromkeys(self.gpus))


def read(root: Path = Path("/"), *, patience_s: float = PATIENCE_S) -> Driver:
    """Read the driver and the GPUs of this machine.

    Args:
        root: folder of the machine's files and, in WSL2, of its libraries.
        patience_s: time limit for each program that is run.
    """
    module = parse_module(text_of(root / NVIDIA_VERSION))
    is_windows = (root / _DXG).exists()
    answer = _from_nvml(root, patience_s)
    if "fault" not in answer and "absent" not in answer:
        return _driver(answer, is_windows=is_windows)
    skip_smi = answer.get("hangs") or answer.get("code") == _MISMATCH  # nvidia-smi would hang or fail in the same way
    gpus, version = ((), None) if skip_smi else _from_smi(root, patience_s)
    source = "nvidia-smi" if gpus else "/proc/driver/nvidia"
    gpus, version = gpus or _from_proc(root / _GPUS_FOLDER), version or module
    if not gpus and version is None:
        return Driver(version=None, gpus=(), source=None, notes=_failed(answer, module, None))
    notes = _failed(answer, module, source)
    return Driver(version=version, gpus=gpus, source=source, is_windows=is_windows, notes=notes)


def parse_smi(text: str, fields: Sequence[str]) -> tuple[tuple[HostGpu, ...], str | None]:
    """Return the GPUs and the driver version from the output of `--query-gpu=FIELDS --format=csv,noheader`."""
    gpus: list[HostGpu] = []
    driver: str | None = None
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        # nvidia-smi also prints messages to stdout, such as "No devices were found".
        if len(cells) != len(fields):
            continue
        row = dict(zip(fields, cells, strict=True))
        gpus.append(HostGpu(neutral(row["name"]), _matching(_CAPABILITY, row.get("compute_cap"))))
        driver = _matching(_VERSION, row["driver_version"]) or driver
    return tuple(gpus), driver


def parse_module(text: str) -> str | None:
    """Return the driver version in /proc/driver/nvidia/version, of the proprietary or the open kernel module."""
    match = _MODULE.search(text)
    return match.group(1) if match else None


def parse_model(text: str) -> str | None:
    """Return the product name in /proc/driver/nvidia/gpus/*/information."""
    match = _MODEL.search(text)
    return match.group(1) if match else None


def _from_nvml(root: Path, patience_s: float) -> dict[str, Any]:
    """Return the document of `envkit.ground.nvml_child`; if that process crashes or hangs, one with a `fault`."""
    package_folder = str(Path(__file__).resolve().parents[2])
    libraries = [str(root / WSL_LIBRARIES / NVML), NVML]
    # -I and -S: neither files of the current folder nor variables of the user can change which Python code runs. The
    # working folder is /, so that an empty or relative entry of LDNVML_PATH cannot load a library from a checkout;
    # CI often runs as root.
    argv = [sys.executable, "-I", "-S", "-c", _CHILD, package_folder, *libraries]
    try:
        answer = process.ask(argv, patience_s=patience_s, folder="/")
    except process.NoAnswerError:
        return {"fault": f"no answer within {patience_s:g} s", "hangs": True}
    except EnvironmentProblem as error:
        return {"fault": error.message}
    # Popen's code for a signal.
    if answer.code < 0:
        return {"fault": f"{NVML} crashed (signal {-answer.code})"}
    try:
        document = json.loads(answer.out)
    except ValueError:
        document = None
    return document if isinstance(document, dict) else {"fault": f"{NVML} ended the process that asked it"}


def _driver(document: dict[str, Any], *, is_windows: bool) -> Driver:
    """Return the driver from NVML's document."""
    gpus: list[HostGpu] = []
    notes: list[str] = []
    for index, row in enumerate(document["gpus"]):
        if "fault" in row:
            notes.append(f"GPU {index} does not answer: {neutral(row['fault'])}; {_DOCTOR}")
            continue
        name = neutral(row["name"])
        gpus.append(
            HostGpu(
                name,
                _matching(_CAPABILITY, row["capability"]),
                memory=None if row["memory_mib"] is None else row["memory_mib"] << 20,
                slices=tuple(neutral(mig_slice) for mig_slice in row["slices"]),
                is_virtual=row["virtual"],
            )
        )
        if row["mig"] and not row["slices"]:
            notes.append(
                f"GPU {index} ({name}) is in MIG mode and has no MIG device, so CUDA programs do not see it; "
                "nvidia-smi mig -lgip lists the devices that it can have"
            )
    return Driver(
        version=_matching(_VERSION, document["driver"]), gpus=tuple(gpus), source="NVML", cuda=document["cuda"],
        is_windows=is_windows, notes=tuple(notes),
    )  # fmt: skip


def _from_smi(root: Path, patience_s: float) -> tuple[tuple[HostGpu, ...], str | None]:
    # nvidia-smi loads the library too, so it also runs in /. Relative entries of PATH are ignored, because a checkout
    # could contain another program of that name.
    folders = [entry for entry in os.environ.get("PATH", os.defpath).split(os.pathsep) if entry.startswith("/")]
    program = shutil.which("nvidia-smi", path=os.pathsep.join((*folders, str(root / WSL_LIBRARIES))))
    if program is None:
        return (), None
    for fields in (_FIELDS, _FIELDS[:2]):  # before R510, nvidia-smi has no compute_cap
        argv = [program, f"--query-gpu={','.join(fields)}", "--format=csv,noheader"]
        try:
            answer = process.ask(argv, patience_s=patience_s, folder="/")
        except EnvironmentProblem:
            return (), None
        gpus, version = parse_smi(answer.out if answer.code == 0 else "", fields)
        if gpus:
            return gpus, version
    return (), None


def _from_proc(folder: Path) -> tuple[HostGpu, ...]:
    try:
        cards = sorted(folder.iterdir())
    except OSError:
        return ()
    names = [parse_model(text_of(card / "information")) for card in cards]
    return tuple(HostGpu(neutral(name), None) for name in names if name)


def _failed(document: dict[str, Any], module: str | None, source: str | None) -> tuple[str, ...]:
    """Return a note on why NVML does not answer, and what answered instead."""
    if "absent" in document:  # no driver, or a container with nvidia-smi but without the library
        return ()
    if document.get("code") == _MISMATCH and module:
        library = document["library"] or "of another version"
        text = f"the NVIDIA driver's kernel module is {module} and its library {library}, so no CUDA program starts"
        return (f"{text}; envkit uses {module}. Restart this machine, or the container",)
    instead = f"using {source} instead" if source else "no other source answers"
    return (f"NVML: {neutral(document['fault'])}; {instead}; {_DOCTOR}",)


def _matching(pattern: re.Pattern[str], text: str | None) -> str | None:
    return text if text is not None and pattern.fullmatch(text) else None
