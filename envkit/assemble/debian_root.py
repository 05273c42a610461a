"""The bootstrapped base of a lock: exactly its Debian packages, made by mmdebstrap, kept as one layer.

The layer is cached under what the lock says, so mmdebstrap runs once for each list of packages, whichever engines
build on it.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO, TYPE_CHECKING

from envkit.assemble.layer import WRITER_VERSION
from envkit.assemble.root import LEVEL, write_root
from envkit.build import bootstrap
from envkit.build.journal import Journal
from envkit.ground.process import StoppedError
from envkit.image import spec
from envkit.image.spec import MTIME, LayerDigest

if TYPE_CHECKING:
    from envkit.assemble.cache import Cached, LayerCache
    from envkit.build.log import BuildLog
    from envkit.ground.progress import Reporter
    from envkit.lock.model import LockedBase


def from_packages(
    base: LockedBase,
    *,
    mirror: str | None,
    cache: LayerCache,
    log: BuildLog,
    reporter: Reporter,
    state: Path | None,
    anew: bool = False,
    limit_s: float | None = None,
    stop: threading.Event | None = None,
    engine: str = "embedded",
) -> tuple[spec.Base, str, Cached]:
    """The base of one layer that a lock's Debian packages make, the layer's key in the cache, and the layer.

    Safe on any thread beside other work: nothing of it is shared but the cache, whose files are renamed into place,
    and log and reporter, to which it alone may write meanwhile.

    Args:
        base: of the lock, kind 'bootstrap'.
        mirror: URL of a Debian mirror; None = the host's own apt configuration.
        cache: where the layer is kept.
        log: takes mmdebstrap's lines.
        reporter: hears the step.
        state: folder for the note of what is being made.
        anew: make it although it is kept.
        limit_s: time limit in seconds.
        stop: ends the making when another thread sets it.
        engine: whose note it is; the next run with this engine ends what a killed one left working.

    Raises:
        As `envkit.build.bootstrap.make`.
        StoppedError: `stop` was set.
    """
    key = layer_key(base)

    def write(sink: IO[bytes]) -> LayerDigest:
        with Journal(state, engine) as notes, tempfile.TemporaryDirectory(
            prefix="envkit-", ignore_cleanup_errors=True
        ) as folder:  # fmt: skip
            notes.folder(Path(folder))
            Path(folder).chmod(0o755)  # apt's own user has to reach what is inside
            reporter.step(f"make the base of {len(base.packages)} Debian packages")
            return _written(base, Path(folder), sink, mirror=mirror, log=log, notes=notes, limit_s=limit_s, stop=stop)

    def check() -> None:
        if stop is not None and stop.is_set():
            raise StoppedError

    with cache.flights.all([key], check):
        cached = (None if anew else cache.get(key)) or cache.make(key, write)
    layer = spec.layer(cached.layer, cached.path, f"envkit: {base.reference}")
    return spec.Base(name=base.reference, layers=(layer,), config={"Env": [f"PATH={bootstrap.PATH}"]}), key, cached


def layer_key(base: LockedBase) -> str:
    """The name in the layer cache of what these packages make."""
    rows = [(one.name, one.version, one.arch, one.sha256) for one in base.packages]
    tree = {
        "recipe": bootstrap.RECIPE,
        "writer": WRITER_VERSION,
        "level": LEVEL,
        "mtime": MTIME,
        "suite": base.suite,
        "packages": rows,
    }
    return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()


def _written(
    base: LockedBase,
    folder: Path,
    sink: IO[bytes],
    *,
    mirror: str | None,
    log: BuildLog,
    notes: Journal,
    limit_s: float | None,
    stop: threading.Event | None,
) -> LayerDigest:
    """Make the root and write its layer, which begins while mmdebstrap still removes its own copy."""
    assert base.suite is not None
    given_up = threading.Event()
    packing: list[Future[LayerDigest]] = []
    with ThreadPoolExecutor(1, thread_name_prefix="envkit-root") as thread:
        try:
            bootstrap.make(
                base.suite,
                base.packages,
                folder,
                mirror=mirror,
                log=log,
                notes=notes,
                limit_s=limit_s,
                stop=stop,
                on_tar=lambda tar: packing.append(
                    thread.submit(write_root, tar, _Stoppable(sink, (given_up, stop)), mtime=MTIME)
                ),
            )
            return packing[0].result()
        except BaseException:
            given_up.set()
            raise


class _Stoppable:
    """A sink that takes nothing more once one of the events is set."""

    def __init__(self, sink: IO[bytes], events: tuple[threading.Event | None, ...]) -> None:
        self._sink, self._events = sink, events

    def write(self, data: bytes, /) -> int:
        """Take all of `data`."""
        if any(event is not None and event.is_set() for event in self._events):
            raise StoppedError
        return self._sink.write(data)
