"""The names of shared libraries, read from a file made here."""

import io
import struct

import pytest

from envkit.run.rootless.host_gpus import soname


def library(name: bytes = b"libx.so.1", *, dynamic: bool = True) -> bytes:
    strings = b"\0" + name + b"\0"
    at_strings, at_dynamic = 0x200, 0x300
    rows = [(1, 0, 0x1000, 0x400), *([(2, at_dynamic, 0x1000 + at_dynamic, 48)] if dynamic else [])]
    header = b"\x7fELF\x02\x01\x01".ljust(16, b"\0") + struct.pack(
        "<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, 0, 0, 64, 56, len(rows), 0, 0, 0
    )
    segments = b"".join(struct.pack("<IIQQQQQQ", kind, 4, o, a, a, s, s, 8) for kind, o, a, s in rows)
    entries = struct.pack("<qQqQqQ", 5, 0x1000 + at_strings, 14, 1, 0, 0)
    data = (header + segments).ljust(at_strings, b"\0") + strings
    return data.ljust(at_dynamic, b"\0") + entries


def test_a_library_tells_its_name() -> None:
    assert soname(io.BytesIO(library())) == "libx.so.1"


@pytest.mark.parametrize(
    "data", [b"", b"text" * 100, library(dynamic=False), library()[:100], b"\x7fELF\x01" + library()[5:], library(b"")]
)
def test_anything_else_has_none(data: bytes) -> None:
    assert soname(io.BytesIO(data)) is None
