"""Parts of a file: on this machine, or behind a server that serves ranges (RFC 9110, section 14).

A part has to be exactly what was asked for, and all parts have to be of one file.
"""

from __future__ import annotations

import os
import re
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from envkit.ground.errors import EngineError, EnvironmentProblem, IntegrityError, TimeLimitError
from envkit.image.zip_entries import Opened, Source
from envkit.registry.retry import Policy, TransientError, persist
from envkit.registry.transport import shown

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from envkit.registry.transport import Answer, Transport

PIECE = 1 << 20
"""Bytes of one request while a file is read from front to back."""
PATIENCE = Policy(tries=3, first_s=0.5, longest_s=10.0, total_s=90.0, silence_s=20.0)
"""Limits of a transport that reads indexes: a person waits for the answer."""
_TAIL = 72 << 10  # holds the end records of a zip file with the longest comment
_WHOLE_MAX = 1 << 20  # a server without ranges may send a file of this size whole
_PARTIAL, _WHOLE = 206, 200
_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
_ENV_INDEX = "use an index that serves ranges of its files: ENVKIT_PYTHON_INDEX=URL"


@dataclass(slots=True)
class Traffic:
    """What was asked and received so far, and the most that may be received."""

    limit: int  # bytes
    requests: int = 0
    received: int = 0  # bytes

    def check(self, what: str, size: int) -> None:
        """Refuse a request that would exceed the limit.

        Raises:
            EnvironmentProblem: it would.
        """
        if self.received + size > self.limit:
            raise EnvironmentProblem(
                f"{what}: reading on would take more than {self.limit / 1e6:.0f} MB",
                hint="name one release: --torch V; or read less: without --deep",
            )


@contextmanager
def as_environment() -> Iterator[None]:
    """Raise what a server does wrong as an environment problem, which is what it is for a reader of facts.

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
    """Open a file of this machine.

    Raises:
        EnvironmentProblem: it cannot be read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise EnvironmentProblem(f"{path} cannot be read: {error.strerror}", hint=f"ls -l {path}") from error
    try:
        yield Opened(descriptor)
    finally:
        os.close(descriptor)


@dataclass(slots=True, kw_only=True)
class RemoteFile:
    """A file behind a server. Its end is read first and kept; that request also tells its size."""

    transport: Transport
    name: str  # for messages
    url: str
    traffic: Traffic
    led_by: str | None = None  # the index that named the URL
    authorization: str | None = None
    expected: int | None = None  # bytes, as the index has it
    _size: int = -1
    _validator: str | None = None
    _kept: bytes = b""  # of the end
    _policy: Policy = field(default_factory=lambda: PATIENCE)

    @property
    def size(self) -> int:
        """Bytes of the whole file.

        Raises:
            EnvironmentProblem: the server cannot be asked, or serves no ranges.
            IntegrityError: the index has another size.
        """
        if self._size < 0:
            self._open()
        return self._size

    def read(self, offset: int, length: int) -> bytes:
        """The bytes from an offset on, fewer at the end of the file.

        Raises:
            EnvironmentProblem: the server cannot be asked, or more was read than is allowed.
            IntegrityError: it sends another part or another file than was asked for.
        """
        end = min(offset + length, self.size)
        kept_at = self.size - len(self._kept)
        if end <= offset:
            return b""
        if offset >= kept_at:
            return self._kept[offset - kept_at : end - kept_at]
        return self._part(f"bytes={offset}-{end - 1}", offset, end - offset)

    def _open(self) -> None:
        ask = f"bytes=-{_TAIL}" if self.expected is None or self.expected > _TAIL else f"bytes=0-{self.expected - 1}"
        self._kept = self._part(ask, None, _TAIL)

    def _part(self, asked: str, offset: int | None, length: int) -> bytes:
        self.traffic.check(self.name, length)
        with as_environment():
            return persist(lambda: self._once(asked, offset, length), self._policy)

    def _once(self, asked: str, offset: int | None, length: int) -> bytes:
        headers = {"Range": asked} | ({"If-Range": self._validator} if self._validator else {})
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
            # Not before the part is there: a first part that breaks off is asked for again as the first.
            self._size, self._validator = total, _validator(answer)
            return data

    def _check(self, answer: Answer, offset: int | None, length: int) -> tuple[int, int]:
        """The sizes of the file and of the part that is sent, which has to be the requested one of the same file."""
        text = answer.headers.get("content-range", "")
        match = _RANGE.fullmatch(text.strip())
        if match is None:
            raise self._other(f"the range {text!r:.80}")
        first, last, total = (int(part) for part in match.groups())
        if self._size < 0:
            if self.expected is not None and total != self.expected:
                raise self._other(f"a file of {total} bytes where the index has {self.expected}")
            offset, length = max(0, total - length), min(length, total)
        if (self._size, total) != (total, self._size) and self._size >= 0:
            raise self._changed()
        if (first, last - first + 1) != (offset, length):
            raise self._other(f"the range {first}-{last}, not the one that was requested")
        if self._size >= 0 and _validator(answer) != self._validator:
            raise self._changed()
        return total, length

    def _whole(self, answer: Answer, offset: int | None, length: int) -> bytes:
        """A server that ignores ranges; a small file may come whole."""
        if self._validator is not None:
            raise self._changed()
        promised = answer.headers.get("content-length", "")
        size = int(promised) if promised.isdigit() else self.expected
        if size is None or size > _WHOLE_MAX:
            raise EnvironmentProblem(
                f"{self.name}: {shown(self.url)} does not serve ranges, and the whole file is "
                + (f"{size / 1e6:.1f} MB" if size else "of unknown size"),
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
    """What tells that two parts are of one file: a strong ETag, else the date of the last change."""
    tag = answer.headers.get("etag")
    return tag if tag and not tag.startswith("W/") else answer.headers.get("last-modified")


def pieces(source: Source, offset: int, length: int) -> Iterator[bytes]:
    """A stretch of a file in pieces of at most 1 MiB. Raises as `read` of the source."""
    end = offset + length
    while offset < end:
        piece = source.read(offset, min(PIECE, end - offset))
        if not piece:
            return
        yield piece
        offset += len(piece)
