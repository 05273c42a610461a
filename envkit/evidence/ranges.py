"""Read parts of a file, local or on a server with range requests (RFC 9110, section 14).

A part must be exactly the requested range, and all parts must come from the same version of the file.
"""

from __future__ import annotations

import os
import re
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from envkit.ground.errors import EngineError, EnvironmentProblem, IntegrityError, TimeLimitError
from envkit.ground.sizes import shown_size
from envkit.image.zip_entries import Opened, Source
from envkit.registry.retry import Policy, TransientError, persist
from envkit.registry.transport import shown

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from envkit.registry.transport import Answer, Transport

PIECE = 1 << 20
"""Bytes of one request while a file is read sequentially."""
PATIENCE = Policy(tries=3, first_s=0.5, longest_s=10.0, total_s=90.0, silence_s=20.0)
"""Retry limits for reading indexes; short, because a person waits for the result."""
_TAIL = 72 << 10  # bytes; enough for the end records of a zip file with the longest comment
_WHOLE_MAX = 1 << 20  # bytes; a server without ranges may send a file up to this size
_PARTIAL, _WHOLE = 206, 200
_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
_ENV_INDEX = "use an index that serves ranges of its files: ENVKIT_PYTHON_INDEX=URL"


@dataclass(slots=True)
class Traffic:
    """The requests and bytes so far, and the limit of bytes."""

    limit: int  # bytes
    requests: int = 0
    received: int = 0  # bytes

    def check(self, what: str, size: int) -> None:
        """Check that another `size` bytes are within the limit.

        Raises:
            EnvironmentProblem: they are not.
        """
        if self.received + size > self.limit:
            raise EnvironmentProblem(
                f"{what}: the download would exceed {shown_size(self.limit)}",
                hint="select one release with --torch V, or read less without --deep",
            )


@contextmanager
def as_environment() -> Iterator[None]:
    """Raise errors of a server as environment problems.

    Raises:
        EnvironmentProblem: the server refuses, is overloaded, or is silent.
    """
    try:
        yield
    except (EngineError, TimeLimitError) as error:
        hint = error.hint or "try again later"
        raise EnvironmentProblem(error.message, hint=hint, details=error.details) from error


@contextmanager
def local_file(path: Path) -> Iterator[Source]:
    """Open a local file.

    Raises:
        EnvironmentProblem: the file cannot be read.
    """
    try:
        # O_NONBLOCK: opening a pipe of that name must not block.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise EnvironmentProblem(f"{path} cannot be read: {error.strerror}", hint=f"ls -l {path}") from error
    try:
        yield Opened(descriptor)
    finally:
        os.close(descriptor)


@dataclass(slots=True, kw_only=True)
class RemoteFile:
    """A file on a server. The first request reads and keeps its end, and also gives its size."""

    transport: Transport
    name: str  # for messages
    url: str
    traffic: Traffic
    led_by: str | None = None  # the index with the link to the file
    authorization: str | None = None
    expected: int | None = None  # size in bytes according to the index
    _size: int = -1
    _validator: str | None = None
    _kept: bytes = b""  # the end of the file
    _policy: Policy = field(default_factory=lambda: PATIENCE)

    @property
    def size(self) -> int:
        """Bytes of the whole file.

        Raises:
            EnvironmentProblem: the server is unreachable or does not support range requests.
            IntegrityError: the size differs from that of the index.
        """
        if self._size < 0:
            self._open()
        return self._size

    def read(self, offset: int, length: int) -> bytes:
        """Return bytes from an offset on, fewer at the end of the file.

        Raises:
            EnvironmentProblem: the server is unreachable, or the download limit is reached.
            IntegrityError: the server sends another part or another file.
        """
        end = min(offset + length, self.size)
        kept_at = self.size - len(self._kept)
        if end <= offset:
            return b""
        if offset >= kept_at:
            return self._kept[offset - kept_at : end - kept_at]
        return self._part(f"bytes={offset}-{end - 1}", offset, end - offset)

    def _open(self) -> None:
        if self.expected is None or self.expected > _TAIL:
            range_header = f"bytes=-{_TAIL}"
        else:
            range_header = f"bytes=0-{self.expected - 1}"
        self._kept = self._part(range_header, None, _TAIL)

    def _part(self, range_header: str, offset: int | None, length: int) -> bytes:
        self.traffic.check(self.name, length)
        with as_environment():
            return persist(lambda: self._once(range_header, offset, length), self._policy)

    def _once(self, range_header: str, offset: int | None, length: int) -> bytes:
        # If-Range: if the file has changed, the server sends all of it (200), which `_whole` reports.
        headers = {"Range": range_header} | ({"If-Range": self._validator} if self._validator else {})
        self.traffic.requests += 1
        with self.transport.send(
            "GET", self.url, headers=headers, authorization=self.authorization, led_by=self.led_by
        ) as answer:
            if answer.status == _WHOLE:
                return self._whole(answer, offset, length)
            if answer.status != _PARTIAL:
                raise EnvironmentProblem(
                    f"{self.name}: {shown(self.url)} answers {answer.status}",
                    hint="check the index: envkit config shows which one is set",
                )
            total, size = self._check(answer, offset, length)
            try:
                data = answer.read(size)
            except EngineError as error:
                raise self._other(f"more than the {size} bytes that were requested") from error
            self.traffic.received += len(data)
            if len(data) != size:
                raise TransientError(self._other(f"{len(data)} of {size} bytes"))
            # Set only after the part is complete: if the first request fails, its retry is also a first request.
            self._size, self._validator = total, _validator(answer)
            return data

    def _check(self, answer: Answer, offset: int | None, length: int) -> tuple[int, int]:
        """Check that the answer is the requested part of the same file; return the sizes of the file and the part."""
        text = answer.headers.get("content-range", "")
        match = _RANGE.fullmatch(text.strip())
        if match is None:
            raise self._other(f"the range {text!r:.80}")
        first, last, total = (int(part) for part in match.groups())
        if self._size < 0:
            if self.expected is not None and total != self.expected:
                raise self._other(f"a file of {total} bytes where the index has {self.expected}")
            # The first request is for the end of the file, whose size was not known yet.
            offset, length = max(0, total - length), min(length, total)
        if self._size >= 0 and self._size != total:
            raise self._changed()
        if (first, last - first + 1) != (offset, length):
            raise self._other(f"the range {first}-{last}, not the one that was requested")
        if self._size >= 0 and _validator(answer) != self._validator:
            raise self._changed()
        return total, length

    def _whole(self, answer: Answer, offset: int | None, length: int) -> bytes:
        """Return the requested part from the answer of a server that ignores ranges, if the file is small."""
        # The server sent ranges of this file before, so the whole file means that another one has taken its place.
        if self._validator is not None:
            raise self._changed()
        declared = answer.headers.get("content-length", "")
        size = int(declared) if declared.isdigit() else self.expected
        if size is None or size > _WHOLE_MAX:
            raise EnvironmentProblem(
                f"{self.name}: {shown(self.url)} does not serve ranges, and the whole file is "
                + (shown_size(size) if size else "of unknown size"),
                hint=_ENV_INDEX,
            )
        if self._size < 0 and self.expected is not None and size != self.expected:
            raise self._other(f"a file of {size} bytes where the index has {self.expected}")
        data = answer.read(_WHOLE_MAX)
        self.traffic.received += len(data)
        self._size, self._kept = len(data), data
        return data[offset : offset + length] if offset is not None else data

    def _other(self, what: str) -> IntegrityError:
        return IntegrityError(f"{self.name}: {shown(self.url)} sends {what}", hint="run it again, or use another index")

    def _changed(self) -> IntegrityError:
        return IntegrityError(
            f"{self.name}: {shown(self.url)} changed while it was read", hint="run it again, or use another index"
        )


def _validator(answer: Answer) -> str | None:
    """Return the validator that all parts of one file share: a strong ETag, else the modification date."""
    # RFC 9110, section 13.1.5: a weak ETag must not be used in If-Range.
    tag = answer.headers.get("etag")
    return tag if tag and not tag.startswith("W/") else answer.headers.get("last-modified")


def pieces(source: Source, offset: int, length: int) -> Iterator[bytes]:
    """Yield a section of a file in pieces of at most 1 MiB. Raises as `read` of the source."""
    end = offset + length
    while offset < end:
        piece = source.read(offset, min(PIECE, end - offset))
        if not piece:
            return
        yield piece
        offset += len(piece)
