"""Zstandard compression of layers; the only module that imports the library."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, cast

import zstandard

if TYPE_CHECKING:
    from envkit.image.deflate import Readable

VERSION = ".".join(map(str, zstandard.ZSTD_VERSION))
"""The version of libzstd, which zstandard contains. The compressed bytes depend on it."""
FAULTS: tuple[type[Exception], ...] = (zstandard.ZstdError,)
"""The exceptions for damaged data. Data that is cut short raises none: it just ends early."""
_MOST_WINDOW = 1 << 27  # bytes, the default limit of the program zstd, so that a bomb cannot fill the memory


def compress(data: bytes, level: int) -> bytes:
    """Return `data` as one frame."""
    # Without a checksum: the digest of the blob already covers the frame.
    return zstandard.ZstdCompressor(level=level, write_checksum=False, write_content_size=True).compress(data)


def open_zstd(source: Readable) -> IO[bytes]:
    """Return the contents of all frames of a stream as a stream; closing it leaves the source open."""
    return cast(
        "IO[bytes]",
        zstandard.ZstdDecompressor(max_window_size=_MOST_WINDOW).stream_reader(
            source,  # type: ignore[arg-type]  # only `read` is called
            # Blobs have many frames (`compress.ZstdBlob`); by default the reader stops after the first one.
            read_across_frames=True,
            closefd=False,
        ),
    )
