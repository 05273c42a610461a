"""The NVIDIA driver of this machine and its GPUs: asked through NVML, else through nvidia-smi, else read from /proc.

NVML comes first: nvidia-smi is not in every container, and prints no compute capability before driver R510. `read`
asks; the `parse_*` functions are pure.
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

from envkit.ground.errors import EnvironmentProblem
from envkit.ground.host import text_of
from envkit.ground.text import neutral

# Without persistence mode, initializing many GPUs takes seconds; a driver in trouble can hang.
PATIENCE_S = 20.0
_VERSION_FILE = "proc/driver/nvidia/version"
_GPUS_FOLDER = "proc/driver/nvidia/gpus"
_WSL = "usr/lib/wsl/lib"  # the Windows driver's files in WSL2, which has no /proc/driver/nvidia
_DXG = "dev/dxg"  # the device through which WSL2 reaches the Windows driver
_LIBRARY = "libnvidia-ml.so.1"
_MISMATCH = 18  # NVML_ERROR_LIB_RM_VERSION_MISMATCH
_FIELDS = ("name", "driver_version", "compute_cap")
_MODULE = re.compile(r"Kernel Module(?:\s+for\s+\S+)?\s+([0-9]+\.[0-9]+(?:\.[0-9]+)?)")
_MODEL = re.compile(r"^Model:\s*(.+?)\s*$", re.MULTILINE)
_VERSION = re.compile(r"[0-9]+(?:\.[0-9]+)+")
_CAPABILITY = re.compile(r"[0-9]+\.[0-9]")
_CHILD = "import sys; sys.path.insert(0, sys.argv[1]); from envkit.ground.nvml_child import main; main(sys.argv[2:])"
_DOCTOR = "envkit doctor looks for the reason"


@dataclass(frozen=True, slots=True)
class HostGpu:
    """A GPU of this machine. What nvidia-smi and /proc do not tell keeps its default."""

    name: str  # the product as the driver prints it
    capability: str | None  # '8.0'; None = not known
    memory: int | None = None  # bytes
    slices: tuple[str, ...] = ()  # names of its MIG devices that this process may use
    is_virtual: bool = False  # a vGPU: a part of a GPU of the hypervisor

    def __str__(self) -> str:
        known = [f"sm_{self.capability.replace('.', '')}" if self.capability else ""]
        known += [f"{self.memory / 2**30:.0f} GiB" if self.memory else "", "vGPU" if self.is_virtual else ""]
        known += [name.removeprefix(f"{self.name} ") for name in self.slices]
        text = ", ".join(filter(None, known))
        return f"{self.name} ({text})" if text else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """The NVIDIA driver of this machine."""

    version: str | None  # None = there is none, or it does not answer
    gpus: tuple[HostGpu, ...]
    source: str | None  # 'NVML', 'nvidia-smi' or '/proc/driver/nvidia'
    cuda: str | None = None  # newest CUDA version that it runs natively, '12.4'; NVML alone tells
    is_windows: bool = False  # this is WSL2: the driver is that of Windows, and so is its version
    notes: tuple[str, ...] = ()  # what is wrong with the driver or a GPU, each with the next step

    def __str__(self) -> str:
        kinds = dict.fromkeys(self.gpus)
        named = [f"{self.gpus.count(gpu)} x {gpu}" if self.gpus.count(gpu) > 1 else str(gpu) for gpu in kinds]
        newest = f" for CUDA up to {self.cuda}" if self.cuda else ""
        windows = " of Windows (WSL2)" if self.is_windows else ""
        driver = f"driver {self.version}{windows}{newest}" if self.version else "no driver"
        return f"{', '.join(named) or 'no GPU'}; {driver}" + (f"; from {self.source}" if self.source else "")

    def need_version(self) -> str:
        """The driver version.

        Raises:
            EnvironmentProblem: no NVIDIA driver answers.
        """
        if self.version is None:
            raise EnvironmentProblem(
                "--driver auto: no NVIDIA driver found on this machine",
                hint="use --driver with the version of the machine that will run the image, such as --driver 550.54.15",
                details=self.notes,
            )
        return self.version

    def need_gpus(self) -> tuple[HostGpu, ...]:
        """One GPU of each kind.

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
    """Ask for the driver and GPUs of this machine.

    Args:
        root: of the files that are read, and of the libraries in WSL2.
        patience_s: seconds for each program that is asked.
    """
    module = parse_module(text_of(root / _VERSION_FILE))
    is_windows = (root / _DXG).exists()
    answer = _from_nvml(root, patience_s)
    if "fault" not in answer and "absent" not in answer:
        return _driver(answer, is_windows=is_windows)
    hopeless = answer.get("hangs") or answer.get("code") == _MISMATCH  # nvidia-smi would hang or fail in the same way
    gpus, version = ((), None) if hopeless else _from_smi(root, patience_s)
    source = "nvidia-smi" if gpus else "/proc/driver/nvidia"
    gpus, version = gpus or _from_proc(root / _GPUS_FOLDER), version or module
    if not gpus and version is None:
        return Driver(version=None, gpus=(), source=None, notes=_failed(answer, module, None))
    notes = _failed(answer, module, source)
    return Driver(version=version, gpus=gpus, source=source, is_windows=is_windows, notes=notes)


def has_driver(root: Path = Path("/")) -> bool:
    """Whether an NVIDIA driver is there; asks no program, so it costs nothing."""
    return (root / _VERSION_FILE).exists() or (root / _WSL / _LIBRARY).exists()


def parse_smi(text: str, fields: Sequence[str]) -> tuple[tuple[HostGpu, ...], str | None]:
    """GPUs and driver version from `--query-gpu=FIELDS --format=csv,noheader`."""
    gpus: list[HostGpu] = []
    driver: str | None = None
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != len(fields):
            continue
        row = dict(zip(fields, cells, strict=True))
        gpus.append(HostGpu(neutral(row["name"]), _matching(_CAPABILITY, row.get("compute_cap"))))
        driver = _matching(_VERSION, row["driver_version"]) or driver
    return tuple(gpus), driver


def parse_module(text: str) -> str | None:
    """Driver version from /proc/driver/nvidia/version, of the proprietary or the open kernel module."""
    match = _MODULE.search(text)
    return match.group(1) if match else None


def parse_model(text: str) -> str | None:
    """Product name from /proc/driver/nvidia/gpus/*/information."""
    match = _MODEL.search(text)
    return match.group(1) if match else None


def _from_nvml(root: Path, patience_s: float) -> dict[str, Any]:
    """The document of `envkit.ground.nvml_child`, with a `fault` also where that process crashes or hangs (`hangs`)."""
    from envkit.ground import process  # noqa: PLC0415 - `envkit resolve`, which asks only `has_driver`, need not wait

    own = str(Path(__file__).resolve().parents[2])
    libraries = [str(root / _WSL / _LIBRARY), _LIBRARY]
    # -I and -S: no file of the current folder and no variable of the user decides which Python code runs. The folder is
    # /, so that an empty or relative entry of LD_LIBRARY_PATH does not load a library from a checkout: CI runs as root.
    argv = [sys.executable, "-I", "-S", "-c", _CHILD, own, *libraries]
    try:
        answer = process.ask(argv, patience_s=patience_s, folder="/")
    except process.NoAnswerError:
        return {"fault": f"no answer within {patience_s:g} s", "hangs": True}
    except EnvironmentProblem as error:
        return {"fault": error.message}
    if answer.code < 0:
        return {"fault": f"{_LIBRARY} crashed (signal {-answer.code})"}
    try:
        document = json.loads(answer.out)
    except ValueError:
        document = None
    return document if isinstance(document, dict) else {"fault": f"{_LIBRARY} ended the process that asked it"}


def _driver(document: dict[str, Any], *, is_windows: bool) -> Driver:
    """The driver as NVML tells it."""
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
    from envkit.ground import process  # noqa: PLC0415 - as above

    # It loads the library itself, so it runs in / as well. An entry of PATH that is not absolute may be a checkout, and
    # must not hide the driver's own program.
    places = [entry for entry in os.environ.get("PATH", os.defpath).split(os.pathsep) if entry.startswith("/")]
    program = shutil.which("nvidia-smi", path=os.pathsep.join((*places, str(root / _WSL))))
    if program is None:
        return (), None
    for fields in (_FIELDS, _FIELDS[:2]):  # drivers before R510 do not know compute_cap
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
    """Why NVML does not answer, and what answered instead."""
    if "absent" in document:  # no driver, or a container that was given nvidia-smi alone
        return ()
    if document.get("code") == _MISMATCH and module:
        library = document["library"] or "of another version"
        text = f"the NVIDIA driver's kernel module is {module} and its library {library}, so no CUDA program starts"
        return (f"{text}; {module} is used here. Restart this machine, or this container if it is one",)
    instead = f"{source} answers instead" if source else "nothing else answers"
    return (f"NVML: {neutral(document['fault'])}; {instead}; {_DOCTOR}",)


def _matching(pattern: re.Pattern[str], text: str | None) -> str | None:
    return text if text is not None and pattern.fullmatch(text) else None
