"""Files by SHA-256 into a folder: in parallel, resumed after a break, verified while they stream.

    <folder>/<sha256>        a file that has this digest
    <folder>/<sha256>.part   one that is on its way, locked by its run; a later run goes on with it

A damaged or cut file is fetched again; nothing here waits for a lock that a dead process left, since the kernel
takes those back.
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

JOBS = 6  # downloads at once; one connection seldom fills the line
_PIECE = 1 << 20
_LOOK_S = 0.1  # a signal, the time limit or a failure elsewhere ends the wait within that time
_ENDING_S = 2.0  # for threads to end by themselves; then they are left to a server that says nothing
_WHOLE, _PARTIAL, _UNSATISFIABLE = 200, 206, 416
_DAMAGED = "run it again; if it repeats, the index or mirror serves other files: envkit lock --check"
_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")
_DIGITS = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One file to fetch. `open` asks the server for what follows an offset."""

    name: str  # for messages: 'torch 2.7.1'
    sha256: str
    size: int | None  # bytes; None if unknown
    where: str  # a URL that may be shown
    open: Callable[[int], Answer]


def from_url(
    transport: Transport, *, name: str, url: str, sha256: str, size: int | None, authorization: str | None = None
) -> Item:
    """A file at a URL. A login within the URL comes before `authorization`, which is a header."""

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
    """A blob of a registry."""
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
    """Make sure that every item is in the folder; return the files by SHA-256.

    Files that are there are hashed before they count. `on_bytes` hears bytes done and bytes in all, `on_file` the
    SHA-256 of every file as soon as it is there; `check` is called while nothing happens. What they raise ends the
    downloads at once, although a server may be silent.

    Raises:
        IntegrityError: the server's bytes have another digest or size; they are not kept.
        EngineError: a server refuses, or is overloaded for too long.
        EnvironmentProblem: a server cannot be reached, the disk is full, or `offline` and something is missing.
        TimeLimitError: a server goes silent again and again, or the run's time is over.
    """
    wanted = list({item.sha256: item for item in items}.values())
    for item in wanted:
        if not _DIGITS.fullmatch(item.sha256):  # files are named by it, and what stands there may be replaced
            raise IntegrityError(f"{item.name}: {item.sha256!r:.100} is not a SHA-256", hint=_DAMAGED)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise store.unusable(folder, error) from error
    sweep_parts(folder)
    work = _Fetch(folder, policy, on_bytes, sum(item.size or 0 for item in wanted))
    if offline:
        _require(wanted, folder)
    # The largest first: begun last, it would be downloaded alone.
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
            if thread.ident is not None:
                thread.join(max(until - time.monotonic(), 0))
        raise
    for thread in threads:
        thread.join()
    return {item.sha256: folder / item.sha256 for item in wanted}


def missing(items: Iterable[Item], folder: Path) -> tuple[Item, ...]:
    """Those that are not in the folder with their size."""
    return tuple(item for item in items if not _has(folder / item.sha256, item.size))


class _Fetch:
    def __init__(self, folder: Path, policy: Policy, on_bytes: Callable[[int, int], None], total: int) -> None:
        self.folder, self.policy, self.stop = folder, policy, threading.Event()
        self._on_bytes, self._total, self._done, self._lock = on_bytes, total, 0, threading.Lock()
        self._answers: set[Answer] = set()
        self.waiting: queue.SimpleQueue[Item] = queue.SimpleQueue()
        self._ended: queue.SimpleQueue[tuple[Item, BaseException | None]] = queue.SimpleQueue()

    def run(self) -> None:
        """Fetch what waits, one after another: the work of a thread."""
        while not self.stop.is_set():
            try:
                item = self.waiting.get_nowait()
            except queue.Empty:
                return
            try:
                self.one(item)
            except BaseException as error:  # noqa: BLE001 - raised again by the waiting thread
                self._ended.put((item, error))
            else:
                self._ended.put((item, None))

    def next_done(self, check: Callable[[], None] | None) -> Item:
        """Wait for the next item that is there.

        Raises:
            Exception: what its thread or `check` raised.
            TimeLimitError: the run's time is over.
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
        """Make every download end, those too that wait for a silent server."""
        self.stop.set()
        with self._lock:
            waiting = tuple(self._answers)
        for answer in waiting:
            answer.cut()

    def one(self, item: Item) -> None:
        """Fetch one item, unless it is there already."""
        path = self.folder / item.sha256
        try:
            if _has(path, item.size):
                if self._hashed(path) == item.sha256:
                    return
                path.unlink(missing_ok=True)
            with locked_part(path) as (part, file):
                self._fill(item, file)
                file.flush()
                # Contents before the name: after a power cut, the name must not stand for a file with holes.
                os.fsync(file.fileno())
                Path(part).replace(path)
        except OSError as error:
            raise store.unusable(self.folder, error) from error

    def _fill(self, item: Item, file: IO[bytes]) -> None:
        """Get all bytes of an item into the part, whose old contents may be a beginning of them."""
        state = _State(file)
        state.resume(item.size, self._heard)
        resumed = state.size > 0
        while True:
            persist(lambda: self._attempt(item, state), self.policy, sleep=self._sleep)
            fault = _fault(item, state)
            if fault is None:
                return
            state.restart(self._heard)
            if not resumed:
                raise fault
            resumed = False  # the part of an earlier run may have been damaged

    def _attempt(self, item: Item, state: _State) -> None:
        """Ask once for what is missing and take what comes."""
        if item.size is not None and state.size == item.size:
            return
        try:
            self._take(item, state)
        except TransientError as error:
            if self.stop.is_set():
                raise StoppedError from error
            error.progressed, state.furthest = state.size > state.furthest, max(state.size, state.furthest)
            if not error.final.message.startswith(item.name):
                error.final.message = f"{item.name}: {error.final.message}"
                error.final.args = (error.final.message,)
            raise

    def _take(self, item: Item, state: _State) -> None:
        before = state.size
        with item.open(before) as answer, self._watched(answer):
            # A server may ignore the range, and send the whole file from its beginning (RFC 9110, 14.2).
            if before and not _continues(answer, before):
                state.restart(self._heard)
                if answer.status != _WHOLE:
                    wrong = f"{item.name}: {item.where} cannot resume the download"
                    raise TransientError(EngineError(wrong, hint="run it again"), wait_s=0)
            whole = _length(answer)
            if None not in (item.size, whole) and item.size != whole:
                state.restart(self._heard)
                raise _other_size(item, whole)
            for piece in answer.pieces():
                if self.stop.is_set():
                    raise StoppedError
                state.add(piece)
                self._heard(len(piece))
                # A server may send without end; `_fault` refuses what is too long.
                if item.size is not None and state.size > item.size:
                    return
            promised = item.size if item.size is not None else whole
        if promised is not None and state.size < promised:
            broke = f"{item.name}: the connection to {item.where} broke after {state.size} of {promised} bytes"
            raise TransientError(EnvironmentProblem(broke, hint="run it again to resume the download"))

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
                self._heard(len(piece))
        hexdigest = digest.hexdigest()
        if hexdigest != path.name:
            # These bytes were counted, and are fetched again.
            self._heard(-path.stat().st_size)
        return hexdigest

    def _heard(self, size: int) -> None:
        with self._lock:
            self._done += size
            done = self._done
        self._on_bytes(done, max(self._total, done))

    def _sleep(self, seconds: float) -> None:
        if self.stop.wait(seconds):
            raise StoppedError


class _State:
    """The part: how many bytes it has and what they hash to."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._digest, self.size = file, hashlib.sha256(), 0
        self.furthest = 0  # bytes, over all tries

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    def resume(self, limit: int | None, heard: Callable[[int], None]) -> None:
        """Take over what an earlier run wrote."""
        self._file.seek(0)
        while piece := self._file.read(_PIECE):
            self._digest.update(piece)
            self.size += len(piece)
            heard(len(piece))
        if limit is not None and self.size > limit:
            self.restart(heard)

    def add(self, piece: bytes) -> None:
        self._file.write(piece)
        self._digest.update(piece)
        self.size += len(piece)

    def restart(self, heard: Callable[[int], None]) -> None:
        """Forget everything."""
        heard(-self.size)
        self._file.seek(0)
        self._file.truncate()
        self._digest, self.size = hashlib.sha256(), 0


def _continues(answer: Answer, offset: int) -> bool:
    if answer.status != _PARTIAL:
        return False
    match = _RANGE.fullmatch(answer.headers.get("content-range", "").strip())
    return match is not None and int(match[1]) == offset


def _length(answer: Answer) -> int | None:
    """Bytes of the whole file, None where the server does not say."""
    if answer.status == _PARTIAL:
        match = _RANGE.fullmatch(answer.headers.get("content-range", "").strip())
        return int(match[2]) if match is not None and match[2].isdigit() else None
    text = answer.headers.get("content-length", "")
    return int(text) if text.isdigit() else None


def _fault(item: Item, state: _State) -> IntegrityError | None:
    """What is wrong with a part that is complete."""
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
    """The part of a file, open and locked; one of its own where another run has the lock. Empty ones are removed."""
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
            full = isinstance(error, OSError) and error.errno in store.FULL
            with contextlib.suppress(OSError):
                if full:
                    file.truncate(0)
                file.flush()
                if full or _is_own(part) or not os.fstat(file.fileno()).st_size:
                    part.unlink()
            raise


def _is_own(part: Path) -> bool:
    """Whether a part belongs to one thread, because another run had the common one: no one resumes it."""
    return part.name.count(".") > 1


def sweep_parts(folder: Path) -> None:
    """Remove such parts of runs that were killed."""
    store.sweep(filter(_is_own, folder.glob("*.part")))


def _locked(part: Path) -> IO[bytes] | None:
    """Open a part and lock it; None where another process holds it."""
    # Needed: of two runs that fill one file, the first would give it its name while the second still writes.
    descriptor = store.lock_file(part, 0o644, needed=True)
    return None if descriptor is None else os.fdopen(descriptor, "r+b")
