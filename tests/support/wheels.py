"""Valid and hostile wheels, made byte by byte, equal on every machine."""

from __future__ import annotations

import base64
import hashlib
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Raw:
    """One zip entry. A field that is None is computed from the others."""

    name: str | bytes
    data: bytes = b""
    deflated: bool = True
    mode: int | None = None
    flags: int = 0
    method: int | None = None
    crc: int | None = None
    size: int | None = None
    packed: bytes | None = None
    local_name: bytes | None = None
    extra: bytes = b""
    local_extra: bytes = b""
    offset: int | None = None  # the entry's offset in the directory
    zip64: bool = False
    described_after: bool = False  # the sizes are in a data descriptor after the data


def raw_zip(
    entries: Sequence[Raw], *, comment: bytes = b"", zip64: bool = False, count: int | None = None, gap: bytes = b""
) -> bytes:
    """Return a zip file with these entries."""
    out, directory = bytearray(), bytearray()
    for entry in entries:
        local, central = _entry(entry, len(out))
        out += local
        directory += central
    out += gap
    start, number = len(out), len(entries) if count is None else count
    out += directory
    if zip64:
        end64 = len(out)
        out += struct.pack(
            "<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, number, number, len(directory), start
        ) + struct.pack("<4sLQL", b"PK\6\7", 0, end64, 1)
        number, length, start = 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF
    else:
        length = len(directory)
    out += struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, number, number, length, start, len(comment)) + comment
    return bytes(out)


def _entry(entry: Raw, at: int) -> tuple[bytes, bytes]:
    name = entry.name.encode() if isinstance(entry.name, str) else entry.name
    flags = entry.flags | (0x800 if isinstance(entry.name, str) and not entry.name.isascii() else 0)
    flags |= 0x8 if entry.described_after else 0
    packed = entry.packed
    if packed is None:
        packer = zlib.compressobj(6, zlib.DEFLATED, -15)
        packed = packer.compress(entry.data) + packer.flush() if entry.deflated else entry.data
    size = len(entry.data) if entry.size is None else entry.size
    crc = zlib.crc32(entry.data) if entry.crc is None else entry.crc
    method = (8 if entry.deflated else 0) if entry.method is None else entry.method
    offset = at if entry.offset is None else entry.offset
    mode = (0o40755 if name.endswith(b"/") else 0o100644) if entry.mode is None else entry.mode
    sizes, extra, local_extra = (len(packed), size), entry.extra, entry.local_extra
    if entry.zip64:
        extra += struct.pack("<2H3Q", 1, 24, size, len(packed), offset)
        local_extra += struct.pack("<2H2Q", 1, 16, size, len(packed))
        sizes, offset = (0xFFFFFFFF, 0xFFFFFFFF), 0xFFFFFFFF
    own = name if entry.local_name is None else entry.local_name
    here = (0, 0, 0) if entry.described_after else (crc, *sizes)
    local = struct.pack("<4s5H3L2H", b"PK\3\4", 20, flags, method, 0, 33, *here, len(own), len(local_extra))
    after = struct.pack("<4s3L", b"PK\7\x08", crc, *sizes) if entry.described_after else b""
    central = struct.pack(
        "<4s6H3L5H2L", b"PK\1\2", 0x314, 20, flags, method, 0, 33, crc, *sizes,
        len(name), len(extra), 0, 0, 0, mode << 16, offset,
    )  # fmt: skip
    return local + own + local_extra + packed + after, central + name + extra


def record_line(path: str, data: bytes) -> str:
    """Return a row of RECORD."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{path},sha256={digest},{len(data)}\n"


def wheel_entries(
    files: Mapping[str, bytes],
    *,
    name: str = "demo",
    version: str = "1.0",
    deflated: bool = True,
    executable: frozenset[str] = frozenset(),
    record: str | None = None,
    requires: Sequence[str] = (),
    requires_python: str | None = None,
) -> list[Raw]:
    """Return the entries of a valid wheel with these files; RECORD comes last."""
    info = f"{name}-{version}.dist-info"
    needed = "".join(f"Requires-Dist: {requirement}\n" for requirement in requires)
    needed += f"Requires-Python: {requires_python}\n" if requires_python else ""
    whole = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needed}".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = "".join(record_line(path, data) for path, data in whole.items()) + f"{info}/RECORD,,\n"
    whole[f"{info}/RECORD"] = (rows if record is None else record).encode()
    return [
        Raw(name=path, data=data, deflated=deflated, mode=0o100755 if path in executable else None)
        for path, data in whole.items()
    ]


def write_wheel(folder: Path, entries: Sequence[Raw], *, name: str = "demo", version: str = "1.0") -> Path:
    """Write a wheel file and return its path."""
    path = folder / f"{name}-{version}-py3-none-any.whl"
    path.write_bytes(raw_zip(entries))
    return path
