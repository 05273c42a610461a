"""Download files by SHA-256 into a folder: in parallel, with resumption, verified while they are received.

    <folder>/<sha256>        a complete file with this digest
    <folder>/<sha256>.part   a partial file, locked while it is downloaded; a later run resumes it

Damaged and truncated files are fetched again. Locks of dead processes never block, because the kernel releases them.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import queue
import re
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from envkit.ground import store
from envkit.ground.errors import EngineError, EnvironmentProblem, IntegrityError
from envkit.ground.process import StoppedError
from envkit.registry.retry import Policy, TransientError, persist
from envkit.registry.transport import host, shown, split_login

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from envkit.registry.registry import Registry
    from envkit.registry.transport import Answer, Transport

JOBS = 6  # parallel downloads; one connection rarely uses the whole bandwidth
_PIECE = 1 << 20
_LOOK_S = 0.1  # the longest delay until a signal, the time limit or a failure ends the wait
_ENDING_S = 2.0  # the time for threads to end; those that wait for a silent server are abandoned
_WHOLE, _PARTIAL, _UNSATISFIABLE = 200, 206, 416
_DAMAGED = "run it again; if it repeats, the index or mirror serves other files than the lock has: envkit lock --check"
# Content-Range: `bytes 1000-1999/2000`, or `/*` if the size is unknown (RFC 9110, 14.4).
_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")
_DIGITS = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A file to fetch. `open` requests it from an offset on."""

    name: str  # for messages: 'torch 2.7.1'
    sha256: str
    size: int | None  # bytes; None if unknown
    where: str  # a URL for messages, without secrets
    open: Callable[[int], Answer]


def from_url(
    transport: Transport, *, name: str, url: str, sha256: str, size: int | None, authorization: str | None = None
) -> Item:
    """Return the file at a URL. A login in the URL takes precedence over `authorization`, an Authorization header."""

    def ask(offset: int) -> Answer:
        secret = authorization if split_login(url)[1] is None else None
        headers = {"Range": f"bytes={offset}-"} if offset else {}
        answer = transport.send("GET", url, headers=headers, authorization=secret)
        if answer.status in ((_WHOLE, _PARTIAL, _UNSATISFIABLE) if offset else (_WHOLE,)):
            return answer
        with answer:
            raise EngineError(
                f"{name}: {host(url)} answers {answer.status} for {shown(url)}",
                hint="check the index or mirror; envkit lock updates the addresses",
            )

    return Item(name=name, sha256=sha256, size=size, where=shown(url), open=ask)


def from_registry(registry: Registry, repository: str, *, digest: str, size: int) -> Item:
    """Return a blob of a registry."""
    return Item(
        name=f"layer {digest[:19]} of {registry.name}/{repository}",
        sha256=digest.removeprefix("sha256:"),
        size=size,
        where=f"{registry.name}/{repository}",
        open=lambda offset: registry.blob(repository, digest, offset),
    )


def fetch(
    items: Sequence[Item],
    folder: Path,
    policy: Policy,
    on_bytes: Callable[[int, int], None],
    *,
    offline: bool = False,
    on_file: Callable[[str], None] | None = None,
    check: Callable[[], None] | None = None,
) -> dict[str, Path]:
    """Download the items that are not in the folder; return all files by SHA-256.

    Existing files are used only after their hash was checked. `on_bytes` gets the bytes done and in total, `on_file`
    the SHA-256 of each file as soon as it is complete, and `check` is called during waits. Their exceptions end the
    downloads at once, even if a server is silent.

    Raises:
        IntegrityError: a server's bytes have another digest or size; they are deleted.
        EngineError: a server refuses, or is overloaded for too long.
        EnvironmentProblem: a server cannot be reached, the disk is full, or a file is missing while offline.
        TimeLimitError: a server is repeatedly silent, or the deadline has passed.
    """
    wanted = list({item.sha256: item for item in items}.values())
    for item in wanted:
        if not _DIGITS.fullmatch(item.sha256):  # it becomes a file name, and the file may be overwritten
            raise IntegrityError(f"{item.name}: {item.sha256!r:.100} is not a SHA-256", hint=_DAMAGED)
    with store.translated(folder):
        folder.mkdir(parents=True, exist_ok=True)
    sweep_parts(folder)
    work = _Fetch(folder, policy, on_bytes, sum(item.size or 0 for item in wanted))
    if offline:
        _require(wanted, folder)
    # The largest first: started last, it would be downloaded alone at the end.
    ordered = sorted(wanted, key=lambda item: (-(item.size or 0), item.sha256))
    threads = [
        threading.Thread(target=work.run, name=f"envkit-fetch-{number}", daemon=True)
        for number in range(min(JOBS, len(ordered)))
    ]
    for item in ordered:
        work.waiting.put(item)
    try:
        for thread in threads:
            thread.start()
        for _ in ordered:
            done = work.next_done(check)
            if on_file is not None:
                on_file(done.sha256)
    except BaseException:
        work.end()
        until = time.monotonic() + _ENDING_S
        for thread in threads:
            # A thread that was not started yet cannot be joined.
            if thread.ident is not None:
                thread.join(max(until - time.monotonic(), 0))
        raise
    for thread in threads:
        thread.join()
    return {item.sha256: folder / item.sha256 for item in wanted}


def missing(items: Iterable[Item], folder: Path) -> tuple[Item, ...]:
    """Return the items that are not in the folder with the right size."""
    return tuple(item for item in items if not _has(folder / item.sha256, item.size))


class _Fetch:
    def __init__(self, folder: Path, policy: Policy, on_bytes: Callable[[int, int], None], total: int) -> None:
        self.folder, self.policy, self.stop = folder, policy, threading.Event()
        self._on_bytes, self._total, self._done, self._lock = on_bytes, total, 0, threading.Lock()
        self._answers: set[Answer] = set()
        self.waiting: queue.SimpleQueue[Item] = queue.SimpleQueue()
        self._ended: queue.SimpleQueue[tuple[Item, BaseException | None]] = queue.SimpleQueue()

    def run(self) -> None:
        """Fetch waiting items one after another; runs in each thread."""
        while not self.stop.is_set():
            try:
                item = self.waiting.get_nowait()
            except queue.Empty:
                return
            try:
                self.fetch(item)
            except BaseException as error:  # noqa: BLE001 - raised again by the waiting thread
                self._ended.put((item, error))
            else:
                self._ended.put((item, None))

    def next_done(self, check: Callable[[], None] | None) -> Item:
        """Wait for the next item and return it.

        Raises:
            Exception: raised by its thread or by `check`.
            TimeLimitError: the deadline has passed.
        """
        while True:
            self.policy.check()
            if check is not None:
                check()
            try:
                item, error = self._ended.get(timeout=_LOOK_S)
            except queue.Empty:
                continue
            if error is not None:
                raise error
            return item

    def end(self) -> None:
        """End all downloads, including those that wait for a silent server."""
        self.stop.set()
        with self._lock:
            answers = tuple(self._answers)
        for answer in answers:
            answer.cut()

    def fetch(self, item: Item) -> None:
        """Fetch an item unless the folder has it."""
        path = self.folder / item.sha256
        with store.translated(self.folder):
            if _has(path, item.size):
                if self._hashed(path) == item.sha256:
                    return
                path.unlink(missing_ok=True)
            with locked_part(path) as (part, file):
                self._fill(item, file)
                file.flush()
                # Write the contents before the name, so that no file is incomplete after a power failure.
                os.fsync(file.fileno())
                # The folder is not synced: if this name is lost, the file is only downloaded again.
                Path(part).replace(path)

    def _fill(self, item: Item, file: IO[bytes]) -> None:
        """Download an item into its part, which may have the first bytes already."""
        state = _State(file)
        state.resume(item.size, self._count)
        resumed = state.size > 0
        while True:
            persist(lambda: self._attempt(item, state), self.policy, sleep=self._sleep)
            fault = _fault(item, state)
            if fault is None:
                return
            state.restart(self._count)
            if not resumed:
                raise fault
            resumed = False  # perhaps only the bytes of an earlier run were damaged

    def _attempt(self, item: Item, state: _State) -> None:
        """Request the missing bytes once and write them to the part."""
        # An earlier run was killed after the last byte and before the rename; a range past the end would be refused
        # with 416.
        if item.size is not None and state.size == item.size:
            return
        try:
            self._receive(item, state)
        except TransientError as error:
            if self.stop.is_set():
                raise StoppedError from error
            error.progressed, state.furthest = state.size > state.furthest, max(state.size, state.furthest)
            if not error.final.message.startswith(item.name):
                error.final.message = f"{item.name}: {error.final.message}"
                error.final.args = (error.final.message,)  # what str() returns
            raise

    def _receive(self, item: Item, state: _State) -> None:
        before = state.size
        with item.open(before) as answer, self._watched(answer):
            # A server may ignore the range and send the whole file (RFC 9110, 14.2).
            if before and not _continues(answer, before):
                state.restart(self._count)
                if answer.status != _WHOLE:
                    message = f"{item.name}: {item.where} cannot resume the download"
                    raise TransientError(EngineError(message, hint="run it again"), wait_s=0)
            length = _length(answer)
            if None not in (item.size, length) and item.size != length:
                state.restart(self._count)
                raise _other_size(item, length)
            for piece in answer.pieces():
                if self.stop.is_set():
                    raise StoppedError
                state.add(piece)
                self._count(len(piece))
                # A server may send endless data; `_fault` refuses a file that is too long.
                if item.size is not None and state.size > item.size:
                    return
            expected = item.size if item.size is not None else length
        if expected is not None and state.size < expected:
            message = f"{item.name}: the connection to {item.where} broke after {state.size} of {expected} bytes"
            raise TransientError(EnvironmentProblem(message, hint="run it again to resume the download"))

    @contextlib.contextmanager
    def _watched(self, answer: Answer) -> Iterator[None]:
        with self._lock:
            self._answers.add(answer)
        try:
            yield
        finally:
            with self._lock:
                self._answers.discard(answer)

    def _hashed(self, path: Path) -> str:
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while piece := file.read(_PIECE):
                digest.update(piece)
                self._count(len(piece))
        hexdigest = digest.hexdigest()
        if hexdigest != path.name:
            # These bytes were counted as done, but have to be fetched again.
            self._count(-path.stat().st_size)
        return hexdigest

    def _count(self, size: int) -> None:
        with self._lock:
            self._done += size
            done = self._done
        self._on_bytes(done, max(self._total, done))

    def _sleep(self, seconds: float) -> None:
        if self.stop.wait(seconds):
            raise StoppedError


class _State:
    """The part of an item: its size and hash."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._digest, self.size = file, hashlib.sha256(), 0
        self.furthest = 0  # the largest size in any try, in bytes

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    def resume(self, limit: int | None, count: Callable[[int], None]) -> None:
        """Hash the bytes that an earlier run wrote."""
        self._file.seek(0)
        while piece := self._file.read(_PIECE):
            self._digest.update(piece)
            self.size += len(piece)
            count(len(piece))
        if limit is not None and self.size > limit:
            self.restart(count)

    def add(self, piece: bytes) -> None:
        self._file.write(piece)
        self._digest.update(piece)
        self.size += len(piece)

    def restart(self, count: Callable[[int], None]) -> None:
        """Delete all bytes."""
        count(-self.size)
        self._file.seek(0)
        self._file.truncate()
        self._digest, self.size = hashlib.sha256(), 0


def _continues(answer: Answer, offset: int) -> bool:
    if answer.status != _PARTIAL:
        return False
    match = _RANGE.fullmatch(answer.headers.get("content-range", "").strip())
    return match is not None and int(match[1]) == offset


def _length(answer: Answer) -> int | None:
    """Return the size of the whole file; None if the server does not state it."""
    if answer.status == _PARTIAL:
        match = _RANGE.fullmatch(answer.headers.get("content-range", "").strip())
        return int(match[2]) if match is not None and match[2].isdigit() else None
    text = answer.headers.get("content-length", "")
    return int(text) if text.isdigit() else None


def _fault(item: Item, state: _State) -> IntegrityError | None:
    """Return the error of a complete part; None if it is right."""
    if item.size is not None and state.size != item.size:
        return _other_size(item, f"more than {item.size}" if state.size > item.size else state.size)
    if state.sha256 != item.sha256:
        return IntegrityError(
            f"{item.name}: {item.where} has the SHA-256 {state.sha256}, not {item.sha256}", hint=_DAMAGED
        )
    return None


def _other_size(item: Item, size: object) -> IntegrityError:
    text = f"{item.name}: {item.where} sent {size} bytes instead of {item.size}"
    return IntegrityError(text, hint=_DAMAGED)


def _has(path: Path, size: int | None) -> bool:
    return path.is_file() and not path.is_symlink() and size in (None, path.stat().st_size)


def _require(items: Sequence[Item], folder: Path) -> None:
    lacking = missing(items, folder)
    if lacking:
        raise EnvironmentProblem(
            f"offline, and {len(lacking)} of {len(items)} files are not in {folder}",
            hint="run once without --offline",
            details=tuple(f"{item.name}: {item.where}" for item in lacking),
        )


@contextlib.contextmanager
def locked_part(path: Path) -> Iterator[tuple[Path, IO[bytes]]]:
    """Yield the part of a file, open and locked.

    If another run has the lock, this thread gets its own part. After an error, empty parts are removed.
    """
    part = path.with_name(f"{path.name}.part")
    file = _locked(part)
    if file is None:
        part = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident():x}.part")
        file = _locked(part)
    if file is None:
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), str(part))
    with file:
        try:
            yield part, file
        except BaseException as error:
            # A full disk leaves no partial file. Other errors leave the part, which a later run resumes.
            full = isinstance(error, OSError) and error.errno in store.FULL
            with contextlib.suppress(OSError):
                if full:
                    file.truncate(0)
                file.flush()
                if full or _is_own(part) or not os.fstat(file.fileno()).st_size:
                    part.unlink()
            raise


def _is_own(part: Path) -> bool:
    """Return whether a part belongs to one thread; such parts are never resumed."""
    # SHA256.part has one dot, SHA256.PID-THREAD.part has two.
    return part.name.count(".") > 1


def sweep_parts(folder: Path) -> None:
    """Remove the threads' own parts of killed runs."""
    store.sweep(filter(_is_own, folder.glob("*.part")))


def _locked(part: Path) -> IO[bytes] | None:
    """Open and lock a part; return None if another process has the lock."""
    # The lock is required: with two writers, one would rename the file while the other still writes.
    descriptor = store.lock_file(part, 0o644, needed=True)
    return None if descriptor is None else os.fdopen(descriptor, "r+b")
