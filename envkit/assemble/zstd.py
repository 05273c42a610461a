"""Layers compressed with Zstandard, for registries and engines that read them (media type tar+zstd).

The tar is cut at fixed places and each piece is a frame of its own, so the bytes are the same with one core and with
many. They depend on the version of libzstd, which is part of every key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from envkit.assemble.layer import LayerWriter
from envkit.image import zstd
from envkit.image.spec import MTIME

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor

    from envkit.assemble.layer import Sink

_LEVEL = 3
_FRAME = 4 << 20  # bytes of tar


class ZstdWriter(LayerWriter):
    """A `LayerWriter` whose blob is made of the tar alone: deflated data of zip files is compressed anew."""

    def __init__(
        self,
        sink: Sink,
        *,
        mtime: int = MTIME,
        threaded: bool = False,
        on_bytes: Callable[[int], None] | None = None,
        pool: Executor | None = None,
    ) -> None:
        super().__init__(sink, mtime=mtime, threaded=threaded, on_bytes=on_bytes, pool=pool)
        self._frame = bytearray()

    def _next(self, data: bytes) -> None:
        super()._next(data)
        self._frame += data
        while len(self._frame) >= _FRAME:
            self._queue.work(_compressed, bytes(self._frame[:_FRAME]))
            del self._frame[:_FRAME]

    def _pack(self, data: bytes, level: int) -> None:
        """Nothing: the tar's frames hold it."""

    def _to_blob(self, data: bytes) -> None:
        """Nothing: members are gzip's."""

    def _end(self) -> None:
        if self._frame:
            self._queue.work(_compressed, bytes(self._frame))


def _compressed(data: bytes) -> bytes:
    return zstd.compress(data, _LEVEL)
