"""Read a layer's blob as the bytes of its tar; the digests of both are checked at the end."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import IO

from envkit.ground.errors import EngineError, IntegrityError
from envkit.image.deflate import GZIP_FAULTS, most_inflated, open_gzip
from envkit.image.document import damaged
from envkit.image.spec import Layer

_PIECE = 1 << 18
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


class _Range:
    """The bytes of a blob, hashed while they are read."""

    def __init__(self, file: IO[bytes], layer: Layer, *, hashed: bool) -> None:
        self._file, self._left = file, layer.descriptor.size
        self.hash = hashlib.sha256()
        self._hashed = hashed
        file.seek(layer.offset)

    def read(self, size: int, /) -> bytes:
        piece = self._file.read(min(size, self._left))
        self._left -= len(piece)
        if self._hashed:
            self.hash.update(piece)
        return piece


class TarBytes:
    """The uncompressed bytes of a layer, hashed while they are read."""

    def __init__(self, pieces: Iterator[bytes], stop: threading.Event, most: int, *, hashed: bool = True) -> None:
        self._pieces, self._ready, self._at, self._stop = pieces, b"", 0, stop
        self._most, self._hashed = most, hashed
        self.hash = hashlib.sha256()
        self.size = 0

    def read(self, size: int, /) -> bytes:
        """Return up to `size` bytes; none at the end."""
        while self._at == len(self._ready):
            if self._stop.is_set():
                raise EngineError("unpacking was stopped")
            piece = next(self._pieces, None)
            if piece is None:
                return b""
            self._ready, self._at = piece, 0
            if self._hashed:
                self.hash.update(piece)
            self.size += len(piece)
            if self.size > self._most:
                raise damaged(
                    f"a layer inflates to more than {self._most} bytes, which is too much for the size of its blob"
                )
        data = self._ready[self._at : self._at + size]
        self._at += len(data)
        return data


@contextmanager
def tar_bytes(layer: Layer, stop: threading.Event, *, verified: bool = False) -> Iterator[TarBytes]:
    """Yield a layer's tar. When the context ends without an error, all of it was read and the digests match.

    With `verified` the digests are not checked, because they were before, as with a base that was just fetched.

    Raises:
        EngineError: the blob's file cannot be read.
        IntegrityError: the blob or its tar does not match its digest, or is not gzip, zstd or tar.
    """
    if layer.blob is None:
        raise EngineError(f"layer {layer.digest} is only in {layer.origin or 'its registry'}", hint="fetch it first")
    try:
        file = layer.blob.open("rb", buffering=0)
    except OSError as error:
        raise EngineError(f"{layer.blob} cannot be read: {error.strerror}", hint=f"ls -l {layer.blob}") from error
    with file:
        file.seek(layer.offset)
        magic = file.read(4)
        raw = _Range(file, layer, hashed=not verified)
        with contextlib.closing(_plain(raw, magic, layer)) as pieces:
            stream = TarBytes(pieces, stop, most_inflated(layer.descriptor.size), hashed=not verified)
            with _naming(layer):
                yield stream
            # The digests cover everything, so read the rest of the tar, then the rest of the blob.
            while stream.read(_PIECE):
                pass
        while raw.read(1 << 20):
            pass
        if verified:
            return
        # An archive of `docker save` has no digest of the blob, only that of the tar.
        if layer.digest and f"sha256:{raw.hash.hexdigest()}" != layer.digest:
            raise damaged(f"blob {layer.digest} has the digest sha256:{raw.hash.hexdigest()}")
        if f"sha256:{stream.hash.hexdigest()}" != layer.diff_id:
            raise damaged(f"layer {layer.diff_id} unpacks to sha256:{stream.hash.hexdigest()}")


@contextmanager
def _naming(layer: Layer) -> Iterator[None]:
    """Add the layer to errors of the tar reader, which knows only the bytes."""
    try:
        yield
    except IntegrityError as error:
        # Errors of the tar reader have no hint; other errors are complete.
        if error.hint is not None:
            raise
        raise IntegrityError(
            f"layer {layer.diff_id}: {error.message}",
            hint="get the image from its source again",
        ) from error


def _plain(raw: _Range, magic: bytes, layer: Layer) -> Generator[bytes, None, None]:
    # By content: archives of `docker save` do not state the compression, and containerd's image store saves layers
    # compressed.
    if magic.startswith(_GZIP):
        return _gunzipped(raw, layer)
    if magic == _ZSTD:
        return _unzstd(raw, layer)
    return (piece for piece in iter(lambda: raw.read(_PIECE), b""))


def _gunzipped(raw: _Range, layer: Layer) -> Generator[bytes, None, None]:
    """Yield the contents of all members of a gzip file."""
    try:
        with open_gzip(raw) as stream:
            while piece := stream.read(_PIECE):
                yield piece
    except GZIP_FAULTS as error:
        name = layer.digest or f"at byte {layer.offset} of {layer.blob}"
        raise damaged(f"blob {name} is a damaged gzip: {error}") from error


def _unzstd(raw: _Range, layer: Layer) -> Generator[bytes, None, None]:
    """Yield the contents of all frames of a zstd file."""
    from envkit.image import zstd  # noqa: PLC0415 - a library that only zstd layers need

    try:
        with zstd.open_zstd(raw) as stream:
            while piece := stream.read(_PIECE):
                yield piece
    except zstd.FAULTS as error:
        raise damaged(f"blob {layer.digest or layer.blob} is a damaged zstd file: {error}") from error
