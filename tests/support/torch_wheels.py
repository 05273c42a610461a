"""Small wheels with the facts of a torch wheel: METADATA, version.py, the architecture string, fat binaries."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from envkit.evidence import elf
from tests.support.wheels import Raw, raw_zip

REQUIRES = (
    "setuptools>=77.0.3",
    'nvidia-cudnn-cu13==9.26.0.51; platform_system == "Linux"',
    'nvidia-nccl-cu13==2.30.7; platform_system == "Linux"',
    'triton~=3.9.0; platform_system == "Linux" and python_version < "3.16"',
)
FLAGS = {
    "x86_64": "sm_75 sm_80 sm_86 sm_90 sm_100 sm_120",
    "aarch64": "sm_80 sm_90 sm_100 sm_110 sm_120",
}
TABLE = "PYTORCH_RELEASES_CODE_CC: dict = {'12.6': {'x86_64': {50, 90}, 'aarch64': {80, 90}}}\n"


def library(*, flags: bytes = b"", glibc: str = "2.28", glibcxx: str = "3.4.22", filling: int = 0) -> bytes:
    """Return the start of an x86-64 ELF file with two version needs in its first segment, then other bytes."""
    needs = b""
    for name, last in ((f"GLIBC_{glibc}", False), (f"GLIBCXX_{glibcxx}", True)):
        needs += struct.pack("<IHHII", elf._hash(name), 0, 3, 17, 0 if last else 16)
    segment = 4096 + len(needs)
    head = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\2\1\1", 3, 62, 1, 0, 64, 0, 0, 64, 56, 1, 64, 0, 0)
    head += struct.pack("<IIQQQQQQ", 1, 4, 0, 0, 0, segment, segment, 4096)
    return head.ljust(4096, b"\0") + needs + b"\1" * filling + b"\0" + flags + b"\0" + b"\2" * 64


def fat_binary(*codes: tuple[int, int], cut: int = 0) -> bytes:
    """Return a fat binary with programs of (kind, capability); `cut` makes the last length too long."""
    body = b""
    for kind, capability in codes:
        body += struct.pack("<HHIQ12xI", kind, 1, 64, 32, capability).ljust(64, b"\0") + b"\5" * 32
    if cut:
        body = body[:-96] + struct.pack("<HHIQ12xI", 2, 1, 64, 32 + cut, 90).ljust(64, b"\0") + b"\5" * 32
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def fat_library(flags: str, *, binaries: int = 13) -> bytes:
    """Return a library whose fat binaries have machine code for the flags."""
    codes = [(2 if word.startswith("sm") else 1, int(word.partition("_")[2])) for word in flags.split()]
    return library() + b"\7" * 100 + fat_binary(*codes) * binaries


@cache
def _zipped(members: tuple[tuple[str, bytes], ...]) -> bytes:
    return raw_zip([Raw(name=name, data=data) for name, data in members])


@dataclass(frozen=True, kw_only=True)
class TorchWheel:
    """A wheel of torch or of a companion."""

    version: str = "2.15.0"
    name: str = "torch"
    python: str = "cp311"
    tag: str = "manylinux_2_28_x86_64"
    cuda: str | None = "13.2"
    requires: Sequence[str] = REQUIRES
    flags: str | None = None  # None = the real wheel's
    more: Mapping[str, bytes] = field(default_factory=dict)  # members to replace or add
    uploaded: str = "2026-10-28T15:16:35Z"
    yanked: bool = False
    build: str = ""  # the build tag

    @property
    def machine(self) -> str:
        return "aarch64" if "aarch64" in self.tag else "x86_64"

    @property
    def file(self) -> str:
        abi = "none" if self.tag == "any" or self.python.startswith("py") else self.python
        build = f"-{self.build}" if self.build else ""
        return f"{self.name}-{self.version}{build}-{self.python}-{abi}-{self.tag}.whl"

    def members(self) -> dict[str, bytes]:
        info = f"{self.name}-{self.version}.dist-info"
        lines = ["Metadata-Version: 2.1", f"Name: {self.name}", f"Version: {self.version}", "Requires-Python: >=3.11"]
        lines += [f"Requires-Dist: {requirement}" for requirement in self.requires]
        files = {f"{info}/METADATA": ("\n".join(lines) + "\n\nA text.\n").encode()}
        if self.name == "torch":
            flags = FLAGS[self.machine] if self.flags is None else self.flags
            local = f"+cu{self.cuda.replace('.', '')}" if self.cuda else "+cpu"
            files |= {
                "torch/version.py": (
                    f"from typing import Optional\n__version__ = '{self.version.partition('+')[0]}{local}'\n"
                    f"debug = False\ncuda: Optional[str] = {self.cuda!r}\nhip: Optional[str] = None\n"
                ).encode(),
                "torch/cuda/__init__.py": TABLE.encode(),
                "torch/lib/libtorch_python.so": library(flags=flags.encode() if self.cuda else b""),
                "torch/lib/libtorch_cuda.so": fat_library(flags),
            }
        elif self.cuda:
            local = f"{self.version}+cu{self.cuda.replace('.', '')}"
            files[f"{self.name}/version.py"] = f"__version__ = '{local}'\ngit_version = '0'\n".encode()
        return {**files, **self.more}

    def data(self) -> bytes:
        return _zipped(tuple(self.members().items()))


def arm(wheel: TorchWheel) -> TorchWheel:
    """Return the same release for aarch64."""
    return replace(wheel, tag="manylinux_2_28_aarch64")


def release(version: str = "2.15.0", **changed: Any) -> list[TorchWheel]:
    """Return the wheels of a release with the facts of 2.15.0, and those of its companions."""
    first = TorchWheel(version=version, **changed)
    pythons = [f"cp3{number}" for number in range(11, 16)]
    wheels = [replace(wheel, python=python) for wheel in (first, arm(first)) for python in pythons]
    vision = TorchWheel(name="torchvision", version="0.29.2", requires=("torch>=2.14.0",), cuda="13.2")
    audio = TorchWheel(name="torchaudio", version="2.11.0", requires=(), cuda="13.0")
    for wheel, last in ((vision, 15), (audio, 14)):
        for python in [f"cp3{number}" for number in range(10, last + 1)]:
            own = replace(wheel, python=python)
            wheels += [own, arm(own)]
    return wheels


def page(name: str, wheels: Sequence[TorchWheel], *, where: str = "../files/", sizes: bool = False) -> bytes:
    """Return the file list of a package in JSON (PEP 691).

    It has no sizes unless `sizes` is set, because the sizes of these wheels differ from those of real ones.
    """
    rows = [
        {
            "filename": wheel.file, "url": where + wheel.file.replace("+", "%2B"),
            "size": len(wheel.data()) if sizes else None,
            "hashes": {"sha256": hashlib.sha256(wheel.data()).hexdigest()}, "upload-time": wheel.uploaded,
            "requires-python": ">=3.11", "yanked": wheel.yanked,
        }
        for wheel in wheels if wheel.name == name
    ]  # fmt: skip
    return json.dumps({"meta": {"api-version": "1.1"}, "name": name, "files": rows}).encode()


def html_page(name: str, wheels: Sequence[TorchWheel]) -> bytes:
    """Return the file list of a package in HTML (PEP 503)."""
    rows = "".join(
        f'<a href="../files/{wheel.file.replace("+", "%2B")}#sha256={hashlib.sha256(wheel.data()).hexdigest()}">x</a>\n'
        for wheel in wheels if wheel.name == name
    )  # fmt: skip
    return f"<!DOCTYPE html><html><body>{rows}</body></html>".encode()
