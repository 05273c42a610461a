"""Read this machine's CDI specification, or its loader cache and /dev, and return a container's GPU edits."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import struct
from dataclasses import replace
from pathlib import Path
from typing import IO

from envkit.ground import strictyaml
from envkit.ground.errors import EnvironmentProblem
from envkit.ground.process import ask
from envkit.run.rootless.gpu_devices import (
    DriverFiles,
    GpuEdits,
    check_present,
    from_cdi,
    from_loader,
    gpu_minors,
    loader_links,
    mig_nodes,
)
from envkit.run.rootless.layered_tree import LayeredTree

# The two folders of the CDI specification; nvidia-ctk writes YAML unless JSON is requested.
_CDI = ("/etc/cdi/nvidia.yaml", "/var/run/cdi/nvidia.yaml", "/etc/cdi/nvidia.json", "/var/run/cdi/nvidia.json")
_DRIVER = Path("/proc/driver/nvidia")
_PATIENCE_S = 10.0  # for ldconfig to print its cache
_HEADER = 64  # bytes of a 64-bit ELF header
_LOAD, _DYNAMIC = 1, 2  # PT_LOAD, PT_DYNAMIC of elf(5)
_STRING_TABLE, _SONAME = 5, 14  # DT_STRTAB, DT_SONAME
# Two sizes in bytes and a number of segments: a damaged file may claim anything.
_MOST_DYNAMIC, _MOST_NAME, _MOST_SEGMENTS = 1 << 16, 256, 128


def host_gpus(gpus: str, stack: LayeredTree) -> GpuEdits:
    """Return the edits that make these GPUs available in a container.

    Raises:
        EnvironmentProblem: this machine has no GPU, or its driver's libraries or device files are missing.
        UsageError: there is no GPU of this name.
    """
    folder = library_folder(stack, platform.machine())
    specification = next((Path(candidate) for candidate in _CDI if Path(candidate).is_file()), None)
    minors = gpu_minors(_texts("gpus/*/information"))
    if specification is not None:
        edits = from_cdi(strictyaml.read_file(specification), gpus, minors=minors, path=str(specification))
        names = [(path, _soname(host) or "") for host, path in edits.mounts if path in edits.libraries]
        edits = replace(edits, links={**loader_links(names, folder), **edits.links})
    else:
        slices = {number: _texts(f"capabilities/gpu{number}/mig/**/access") for number in minors.values()}
        edits = from_loader(
            _listing(),
            os.listdir("/dev"),  # noqa: PTH208 - names alone
            gpus,
            machine=platform.machine(),
            driver=DriverFiles(minors=minors, slices=mig_nodes(slices)),
            folder=folder,
            tool=shutil.which("nvidia-smi"),
        )
    check_present(edits, lambda path: Path(path).exists(), None if specification is None else str(specification))
    # By default Triton looks for libcuda in the image's loader cache, to which nothing can be added.
    return replace(edits, env={"TRITON_LIBCUDA_PATH": folder, **edits.env})


def _texts(pattern: str) -> list[str]:
    """Return the driver's files below /proc/driver/nvidia, none where it is missing."""
    texts = []
    for path in sorted(_DRIVER.glob(pattern)):
        with contextlib.suppress(OSError):
            texts.append(path.read_text(errors="replace"))
    return texts


def library_folder(stack: LayeredTree, machine: str) -> str:
    """Return a folder that the image's loader always searches, whatever its cache contains."""
    multiarch = f"usr/lib/{machine}-linux-gnu"
    chosen = next((path for path in (multiarch, "usr/lib64") if stack.is_folder(path)), multiarch)
    return f"/{chosen}"


def _listing() -> str:
    # On Debian, these folders are not on the PATH of ordinary users.
    program = shutil.which("ldconfig") or shutil.which("ldconfig", path="/sbin:/usr/sbin")
    if program is None:
        return ""
    with contextlib.suppress(EnvironmentProblem):
        return ask([program, "-p"], patience_s=_PATIENCE_S).out
    return ""


def _soname(path: str) -> str | None:
    with contextlib.suppress(OSError), Path(path).open("rb") as file:
        return soname(file)
    return None


def soname(file: IO[bytes]) -> str | None:
    """Return a library's soname; None if the file has none or is not a 64-bit little-endian ELF file."""
    header = file.read(_HEADER)
    # ELFCLASS64 and ELFDATA2LSB. Below: e_phoff, e_phentsize and e_phnum of elf(5).
    if len(header) < _HEADER or header[:6] != b"\x7fELF\x02\x01":
        return None
    (table,), (width, count) = struct.unpack_from("<Q", header, 32), struct.unpack_from("<HH", header, 54)
    segments = []
    for number in range(min(count, _MOST_SEGMENTS)):
        file.seek(table + number * width)
        row = file.read(56)
        if len(row) < 56:  # noqa: PLR2004 - a segment header's size
            return None
        kind, _, offset, address, _, size = struct.unpack_from("<IIQQQQ", row)
        segments.append((kind, offset, address, size))
    for kind, offset, _, size in segments:
        if kind == _DYNAMIC:
            file.seek(offset)
            data = file.read(min(size, _MOST_DYNAMIC))
            entries = dict(struct.iter_unpack("<qQ", data[: len(data) // 16 * 16]))
            return _name(file, segments, entries)
    return None


def _name(file: IO[bytes], segments: list[tuple[int, int, int, int]], entries: dict[int, int]) -> str | None:
    if _STRING_TABLE not in entries or _SONAME not in entries:
        return None
    table = entries[_STRING_TABLE]  # a virtual address
    for kind, offset, address, size in segments:
        if kind == _LOAD and address <= table < address + size:
            file.seek(offset + table - address + entries[_SONAME])
            return file.read(_MOST_NAME).split(b"\0", 1)[0].decode("utf-8", "replace") or None
    return None
