"""Make the layers of wheels and conda packages.

Layers in the cache are reused. Of the others, this process makes those that no other process is making, on all cores,
the largest first; then it waits for the other processes and uses the layers that they made.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from typing import IO, TYPE_CHECKING, Generic, Protocol, Self, TypeVar

from envkit.assemble.compress import GZIP, recipe
from envkit.assemble.layer import WRITER_VERSION, LayerWriter
from envkit.ground.errors import RAISE_TIMEOUT, TimeLimitError
from envkit.ground.host import cores
from envkit.ground.process import StoppedError
from envkit.ground.progress import counted
from envkit.image.spec import MTIME, canonical

if TYPE_CHECKING:
    from types import TracebackType

    from envkit.assemble.wheel import Scheme
    from envkit.engines.layer_cache import Cached, LayerCache
    from envkit.ground.progress import Reporter
    from envkit.image.spec import LayerDigest


class Package(Protocol):
    """The properties of a package that `make_layers` uses."""

    @property
    def name(self) -> str:
        """The normalized name."""

    @property
    def version(self) -> str:
        """The version."""

    @property
    def size(self) -> int:
        """Bytes to download."""


P = TypeVar("P", bound=Package)


class Kind(Protocol[P]):
    """A kind of packages, as `make_layers` uses it. A group is the packages of one layer."""

    name: str  # for messages: 'wheels'
    threaded_from: int  # bytes to download; for smaller layers, hash threads cost more than they save

    def key(self, group: tuple[P, ...]) -> str:
        """Return the cache key of a layer."""

    def provide(
        self, groups: Sequence[tuple[P, ...]], progress: Progress, ready: Callable[[tuple[P, ...]], object]
    ) -> None:
        """Fetch the files of the groups; call `ready` with each group as soon as its files are here."""

    def write(self, group: tuple[P, ...], layer: LayerWriter, progress: Progress) -> None:
        """Write the packages of one layer; called in any thread."""

    def made(self, group: tuple[P, ...]) -> None:
        """Remove files that are not needed once the layer is made."""


class Receiver(Protocol):
    """Gets the tar of one layer while it is written."""

    def write(self, piece: bytes) -> object:
        """Take the next bytes, which do not change afterwards."""

    def finish(self, layer: LayerDigest) -> object:
        """Note that the tar is complete; without this call, what was received is dropped."""


Receive = Callable[[], AbstractContextManager[Receiver | None]]
"""Starts receiving a layer, for example to unpack it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Made(Generic[P]):
    """A layer of packages."""

    packages: tuple[P, ...]
    cached: Cached


def layer_key(
    packages: tuple[str, ...], scheme: Scheme, *, compression: str = GZIP, bytecode: str | None = None
) -> str:
    """Return the cache key of a layer of packages, which are given by hash in the order of installation.

    `bytecode` is the key of the interpreter that compiles their modules; None if nothing does.
    """
    tree: dict[str, object] = {"writer": WRITER_VERSION, "packages": packages, "scheme": asdict(scheme), "mtime": MTIME}
    made_by = recipe(compression)
    if made_by is not None:
        tree["recipe"] = made_by
    if bytecode is not None:
        tree["bytecode"] = bytecode
    return hashlib.sha256(canonical(tree)).hexdigest()


class Progress:
    """Bytes done and expected over all threads. Ends all work after a failure, on request, or at the time limit.

    Args:
        reporter: gets the bytes.
        check: raises to end the work from outside; called with every piece, in any thread.
        deadline: on the monotonic clock.
        quiet: report nothing until `unmute`, while a download uses the reporter.
    """

    def __init__(
        self,
        reporter: Reporter,
        check: Callable[[], None] | None = None,
        *,
        deadline: float | None = None,
        quiet: bool = False,
    ) -> None:
        self._reporter, self._outside, self._deadline = reporter, check, deadline
        self._lock = threading.Lock()
        self._done = 0
        self._expected: int | None = None
        self._stopped = False
        self._quiet = quiet

    def expect(self, count: int) -> None:
        """Add to the expected total of bytes; a negative number subtracts."""
        with self._lock:
            self._expected = (self._expected or 0) + count

    def add(self, count: int) -> None:
        """Add bytes that are done; raises as `check`."""
        self.check()
        with self._lock:
            self._done += count
            if not self._quiet:
                total = None if self._expected is None else max(self._done, self._expected)
                self._reporter.advance(self._done, total)

    def check(self) -> None:
        """Raise if this thread should stop.

        Raises:
            StoppedError: another thread failed.
            TimeLimitError: the time limit is reached.
        """
        if self._stopped:
            raise StoppedError
        if self._outside is not None:
            self._outside()
        if self._deadline is not None and time.monotonic() > self._deadline:
            raise TimeLimitError("the build reached its time limit", hint=RAISE_TIMEOUT)

    def unmute(self) -> None:
        """Report bytes from now on."""
        self._quiet = False

    def stop(self) -> None:
        """Make every later `add` and `check` raise."""
        self._stopped = True


def make_layers(
    kind: Kind[P],
    groups: Sequence[tuple[P, ...]],
    *,
    cache: LayerCache,
    progress: Progress,
    reporter: Reporter,
    compression: str = GZIP,
    no_cache: bool = False,
    workers: int | None = None,
    receive: Receive | None = None,
) -> tuple[Made[P], ...]:
    """Return the layers of the groups, in their order.

    Args:
        kind: the kind of the packages.
        groups: the packages of each layer, from the bottom up.
        cache: the layer cache.
        progress: counts bytes and ends the work.
        reporter: gets a step while waiting for another build.
        compression: of the blobs, one of `compress.COMPRESSIONS`.
        no_cache: make every layer again.
        workers: threads; None = one per core.
        receive: called for each layer that is made.

    Raises:
        Exception: the first failure of a layer, after all other work has ended.
    """
    keys = {group: kind.key(group) for group in groups}
    done = {} if no_cache else _cached(groups, keys, cache)
    while left := [group for group in groups if group not in done]:
        # Each layer has its own lock instead of one for the whole cache: builds that share packages make every shared
        # layer once, and wait only for these.
        with cache.flights.free(map(keys.__getitem__, left)) as free:
            mine = [group for group in left if keys[group] in free]
            # Another process may have made some of them since the last lookup.
            done |= {} if no_cache else _cached(mine, keys, cache)
            # The largest first: started last, it would keep one core busy while the others are idle.
            missing = sorted((group for group in mine if group not in done), key=lambda group: -download_size(group))
            if missing:
                with _Workers(kind, keys, cache, progress, compression, workers or cores(), receive) as making:
                    # The pool makes layers in the order in which they are submitted.
                    kind.provide(missing, progress, partial(making.pool.submit, making.make))  # type: ignore[call-arg]
                    progress.unmute()
                done |= making.made
        if waiting := [group for group in left if group not in done]:
            reporter.step(f"wait for {counted(len(waiting), 'layer')} of {kind.name} that another build is making")
            # One layer is enough: the loop then looks for all of them again, and makes those of a build that has
            # failed.
            cache.flights.wait(keys[waiting[0]], progress.check)
            done |= {} if no_cache else _cached(waiting, keys, cache)
    return tuple(Made(packages=group, cached=done[group]) for group in groups)


def download_size(group: Sequence[Package]) -> int:
    """Return the bytes to download for the packages of a layer."""
    return sum(package.size for package in group)


def _cached(
    groups: Sequence[tuple[P, ...]], keys: Mapping[tuple[P, ...], str], cache: LayerCache
) -> dict[tuple[P, ...], Cached]:
    """Return the layers that are in the cache. After a reboot the cache hashes each of them again."""
    with ThreadPoolExecutor(cores(), thread_name_prefix="envkit-cache") as pool:
        layers = pool.map(lambda group: cache.get(keys[group]), groups)
        return {group: cached for group, cached in zip(groups, layers, strict=True) if cached is not None}


class _Workers(Generic[P]):
    """Threads that make layers; the `with` statement ends when all are made. The first failure ends the others.

    Threads run in parallel because inflating, hashing, reading and writing release the interpreter's lock. With more
    than one thread, a second pool of the same size compresses.
    """

    def __init__(  # noqa: PLR0917 - one caller
        self,
        kind: Kind[P],
        keys: Mapping[tuple[P, ...], str],
        cache: LayerCache,
        progress: Progress,
        compression: str,
        threads: int,
        receive: Receive | None,
    ) -> None:
        self._receive = receive
        self._kind, self._keys, self._cache, self._progress = kind, keys, cache, progress
        self._compression = compression
        self.pool = ThreadPoolExecutor(threads, thread_name_prefix="envkit-layer")
        # A separate pool, because threads that make layers wait for compressed pieces. In a common pool they could
        # occupy all threads, and the pieces that they wait for would never start.
        self._packers = ThreadPoolExecutor(threads, thread_name_prefix="envkit-deflate") if threads > 1 else None
        self._errors: list[BaseException] = []
        self.made: dict[tuple[P, ...], Cached] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            try:
                self.pool.shutdown()
            except BaseException:  # a signal ends the wait
                self._end()
                raise
        self._end(failed=error is not None)
        # The failure of one layer stops the others and the download. Raise it, not their StoppedError.
        errors, self._errors = self._errors, []
        try:
            if errors and (error is None or isinstance(error, StoppedError)):
                raise next((failure for failure in errors if not isinstance(failure, StoppedError)), errors[0])
        finally:
            # The errors refer to this frame. This cycle would keep the locks of the cache until a garbage collection.
            del errors

    def _end(self, *, failed: bool = True) -> None:
        if failed:
            self._progress.stop()
        for pool in (self.pool, self._packers):
            if pool is not None:
                pool.shutdown(cancel_futures=True)

    def make(self, group: tuple[P, ...]) -> None:
        """Make one layer."""

        def write(sink: IO[bytes]) -> LayerDigest:
            with (
                self._receive() if self._receive is not None else nullcontext() as receiver,
                LayerWriter(
                    sink,
                    compression=self._compression,
                    threaded=self._packers is not None and download_size(group) >= self._kind.threaded_from,
                    on_bytes=self._progress.add,
                    pool=self._packers,
                    tee=None if receiver is None else receiver.write,
                ) as layer,
            ):
                self._kind.write(group, layer, self._progress)
                digest = layer.close()
                if receiver is not None:
                    receiver.finish(digest)
            return digest

        try:
            self._progress.check()
            self.made[group] = self._cache.make(self._keys[group], write)
            self._kind.made(group)
        except BaseException as error:  # noqa: BLE001 - raised again by `__exit__`
            self._errors.append(error)
            self._progress.stop()
