"""Zstandard, for layers that are compressed with it; the only module that knows the library."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, cast

import zstandard

if TYPE_CHECKING:
    from envkit.image.deflate import Readable

VERSION = ".".join(map(str, zstandard.ZSTD_VERSION))
"""Of libzstd, which the package zstandard brings along: it decides the bytes of what is compressed."""
FAULTS: tuple[type[Exception], ...] = (zstandard.ZstdError,)
"""What reading raises where the data is damaged; data that is cut short ends early instead."""
_MOST_WINDOW = 1 << 27  # bytes, as the program zstd takes without being asked; a bomb costs time but never memory


def compress(data: bytes, level: int) -> bytes:
    """One frame."""
    return zstandard.ZstdCompressor(level=level, write_checksum=False, write_content_size=True).compress(data)


def open_zstd(source: Readable) -> IO[bytes]:
    """What all frames of a stream hold, as a stream to read; closing it leaves the source open."""
    return cast(
        "IO[bytes]",
        zstandard.ZstdDecompressor(max_window_size=_MOST_WINDOW).stream_reader(
            source,  # type: ignore[arg-type]  # it calls nothing but read
            read_across_frames=True,
            closefd=False,
        ),
    )
