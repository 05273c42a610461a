"""Layers kept between builds, found by what they are made of and named by their own digest.

    blobs/<digest>     the blob
    layers/<key>.json  which blob a key made, with a digest over the note itself
    new/               blobs in the making, each locked by its writer, and the locks of `flights`

Nothing found here is believed: a blob's bytes are hashed before its first use after every start of the machine and
whenever its stat changed, and what does not fit is removed and made again. Two builds that make the same layer may do
so: the second rename replaces equal bytes. Those that would rather wait for each other ask `LayerCache.flights`.

A shared lock on every blob that was handed out, and on the folder, lasts as long as the cache object: what prunes the
cache leaves alone what it cannot lock.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import signal
import stat
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from envkit.build.single_flight import Flights
from envkit.ground import store
from envkit.image.spec import LayerDigest

_SCHEMA = "envkit.built-layer/1"
_READ = (_SCHEMA, "envkit.layer/1")  # the name that unpacked layers have, too, and that older caches hold
_NOTE_MAX = 4096  # bytes
_PIECE = 1 << 20
_ABANDONED_S = 60.0  # longer than a writer takes from making its file to locking it


@dataclass(frozen=True, slots=True, kw_only=True)
class Cached:
    """A layer of the cache."""

    layer: LayerDigest
    path: Path


class New:
    """A blob in the making: fill `stream`, then set `layer`. `cached` is there when it is kept."""

    layer: LayerDigest
    cached: Cached

    def __init__(self, stream: IO[bytes]) -> None:
        self.stream = stream


class LayerCache:
    """The layers below one folder.

    Args:
        folder: of the cache.
        offer: gets each layer that the cache hands out, made or kept, once its blob is whole; called from any thread,
            so that one layer can be pushed while others are still being made. What it raises ends the work that asked.
    """

    def __init__(self, folder: Path, offer: Callable[[Cached], None] | None = None) -> None:
        """Open or make the cache.

        Raises:
            EnvironmentProblem: the folder cannot be written.
        """
        self._folder, self._offer = folder, offer
        self.flights = Flights.beside(folder)
        self._held: list[int] = []
        self._leases: dict[str, int] = {}
        weakref.finalize(self, _close, self._held, self._leases)
        with _translated(folder):
            for name in ("blobs", "layers", "new"):
                (folder / name).mkdir(mode=0o700, parents=True, exist_ok=True)
            self._held.append(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
            store.lock(self._held[0], shared=True)
            # Writers lock what they make; a file without a lock that has not grown for a minute has no writer any more.
            store.sweep((folder / "new").iterdir(), idle_s=_ABANDONED_S)

    def get(self, key: str) -> Cached | None:
        """Return the layer of a key, None where it is missing or anything about it is wrong; that is then removed."""
        note_path = self._note(key)
        tree = _read_note(note_path)
        layer = _layer(tree, key)
        if tree is None or layer is None:
            _remove(note_path)
            return None
        path = self._blob(layer.digest)
        try:
            with self._held_blob(path) as stream:
                seen = _stamp(stream)
                if tree.get("stamp") != seen or seen["size"] != layer.size:
                    _check(stream, layer)
                    self._write_note(key, layer, seen)
                else:
                    os.utime(note_path)  # when it was used last
        except (FileNotFoundError, _UnusableError):
            _remove(note_path)
            return None
        except OSError as error:
            raise store.unusable(self._folder, error) from error
        return self._offered(Cached(layer=layer, path=path))

    def make(self, key: str, write: Callable[[IO[bytes]], LayerDigest]) -> Cached:
        """Let `write` fill a new blob and keep it under `key`; see `making`."""
        with self.making(key) as new:
            new.layer = write(new.stream)
        return new.cached

    @contextlib.contextmanager
    def making(self, key: str) -> Iterator[New]:
        """Give a new blob, to be filled and described by the end of the `with`, and keep it under `key`.

        Raises:
            EnvironmentProblem: the disk is full or the folder cannot be written; nothing is left behind.
        """
        with _translated(self._folder):
            # Readable as the user's umask says: layouts have this very file.
            with store.fresh_file(self._folder / "new") as (temporary, stream):
                store.lock(stream.fileno(), shared=True)
                new = New(stream)
                yield new
                stream.flush()
                path = self._blob(new.layer.digest)
                with store.locked(path.parent):
                    if not _is_used(path, new.layer):
                        _put(temporary, path)
                    with _open_own(path) as made:
                        self._hold(made)
                        seen = _stamp(made)
            self._write_note(key, new.layer, seen)
        new.cached = self._offered(Cached(layer=new.layer, path=path))

    def place(self, key: str, cached: Cached, target: Path) -> None:
        """Give the blob a second name, or a copy where the file system has no links.

        A link changes the file's stamp, so the note is renewed where nothing else can have changed with it.

        Raises:
            EnvironmentProblem: `target` cannot be written.
        """
        with _translated(target.parent, "name an --output on a larger disk"):
            tree = _read_note(self._note(key))
            try:
                with _open_own(cached.path) as stream:
                    known = self._lease(cached, stream) and tree is not None and tree.get("stamp") == _stamp(stream)
                    target.hardlink_to(cached.path)
                    after = _stamp(stream)
            except (OSError, _UnusableError):
                shutil.copyfile(cached.path, target)
                return
            if known:
                self._write_note(key, cached.layer, after)
            else:
                self._end_lease(cached)

    def settle(self, key: str, cached: Cached) -> None:
        """Renew the stamp after names of the blob went away since `place`, if no process opened it for writing.

        Without the kernel's word for that (a lease, fcntl(2)) the next `get` hashes the blob.
        """
        if not self._end_lease(cached):
            return
        with contextlib.suppress(OSError, _UnusableError), _open_own(cached.path) as stream:
            tree, seen = _read_note(self._note(key)), _stamp(stream)
            if _layer(tree, key) == cached.layer and tree is not None and tree["stamp"] != seen:
                self._write_note(key, cached.layer, seen)

    def _offered(self, cached: Cached) -> Cached:
        if self._offer is not None:
            self._offer(cached)
        return cached

    def _note(self, key: str) -> Path:
        return self._folder / "layers" / f"{key}.json"

    def _blob(self, digest: str) -> Path:
        return self._folder / "blobs" / digest

    @contextlib.contextmanager
    def _held_blob(self, path: Path) -> Iterator[IO[bytes]]:
        """Return a blob and protect it from pruning; an unusable one is removed."""
        with contextlib.ExitStack() as opened:
            with store.locked(path.parent):
                try:
                    stream = opened.enter_context(_open_own(path))
                except _UnusableError:
                    _remove(path)
                    raise
                self._hold(stream)
            try:
                yield stream
            except _UnusableError:
                with store.locked(path.parent), contextlib.suppress(OSError):
                    if os.path.samestat(os.fstat(stream.fileno()), path.lstat()):
                        _remove(path)
                raise

    def _hold(self, stream: IO[bytes]) -> None:
        """Keep others from pruning the blob as long as this object lives."""
        # A duplicate shares the lock (flock(2)) and stays open when the stream is closed.
        self._held.append(os.dup(stream.fileno()))
        store.lock(self._held[-1], shared=True)

    def _lease(self, cached: Cached, stream: IO[bytes]) -> bool:
        """Return whether the kernel will tell if a process opens the blob for writing from now on."""
        if cached.layer.digest in self._leases:
            return True
        descriptor = os.dup(stream.fileno())
        try:
            fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
            fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)  # the usual SIGIO ends a process
        except OSError:
            os.close(descriptor)
            return False
        self._leases[cached.layer.digest] = descriptor
        return True

    def _end_lease(self, cached: Cached) -> bool:
        """Return whether no process opened the blob for writing since the lease was taken; ends it."""
        descriptor = self._leases.pop(cached.layer.digest, None)
        if descriptor is None:
            return False
        try:
            return fcntl.fcntl(descriptor, fcntl.F_GETLEASE) == fcntl.F_RDLCK
        finally:
            os.close(descriptor)

    def _write_note(self, key: str, layer: LayerDigest, seen: Mapping[str, int | str]) -> None:
        """Note which blob a key made. Not flushed to disk: a note that a power cut damages is not believed."""
        tree: dict[str, Any] = {"schema": _SCHEMA, "key": key, **asdict(layer), "stamp": dict(seen)}
        tree["check"] = hashlib.sha256(_canonical(tree)).hexdigest()
        with store.fresh_file(self._folder / "new", mode=0o600) as (temporary, stream):
            stream.write(_canonical(tree))
            stream.flush()
            _put(temporary, self._note(key))


def _is_used(path: Path, layer: LayerDigest) -> bool:
    """Return whether another build has the same blob in its hands: it must not lose it to an equal one."""
    try:
        with _open_own(path) as stream:
            if store.lock(stream.fileno(), wait=False):
                return False
            _check(stream, layer)
    except (OSError, _UnusableError):
        return False
    return True


def _close(descriptors: list[int], leases: Mapping[str, int]) -> None:
    for descriptor in (*descriptors, *leases.values()):
        os.close(descriptor)


class _UnusableError(Exception):
    """The file is not what the cache wrote."""


def _layer(tree: Mapping[str, Any] | None, key: str) -> LayerDigest | None:
    """Return the unchanged layer of a key's note."""
    if tree is None:
        return None
    rest = {name: value for name, value in tree.items() if name != "check"}
    if tree.get("schema") not in _READ or tree.get("key") != key:
        return None
    if tree.get("check") != hashlib.sha256(_canonical(rest)).hexdigest():
        return None
    return LayerDigest(digest=tree["digest"], diff_id=tree["diff_id"], size=tree["size"], tar_size=tree["tar_size"])


def _read_note(path: Path) -> dict[str, Any] | None:
    try:
        with _open_own(path) as stream:
            tree = json.loads(stream.read(_NOTE_MAX))
    except (OSError, ValueError, _UnusableError):
        return None
    return tree if isinstance(tree, dict) else None


@contextlib.contextmanager
def _open_own(path: Path) -> Iterator[IO[bytes]]:
    """Give a regular file of this user, never one behind a link."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EISDIR, errno.EACCES, errno.ENXIO):
            raise _UnusableError from error
        raise
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
        os.close(descriptor)
        raise _UnusableError
    with os.fdopen(descriptor, "rb", buffering=0) as stream:
        yield stream


def _stamp(stream: IO[bytes]) -> dict[str, int | str]:
    """Return what changes when the file does: writes set both times, and a start of the machine ends all trust."""
    status = os.fstat(stream.fileno())
    return {
        "boot": _boot(),
        "device": status.st_dev,
        "inode": status.st_ino,
        "size": status.st_size,
        "mtime": status.st_mtime_ns,
        "ctime": status.st_ctime_ns,
    }


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return f"process {os.getpid()}"


def _check(stream: IO[bytes], layer: LayerDigest) -> None:
    """Read the whole blob."""
    digest = hashlib.sha256()
    size = 0
    while piece := stream.read(_PIECE):
        digest.update(piece)
        size += len(piece)
    if (size, digest.hexdigest()) != (layer.size, layer.digest):
        raise _UnusableError


def _canonical(tree: Mapping[str, Any]) -> bytes:
    return json.dumps(tree, sort_keys=True, separators=(",", ":")).encode()


def _put(temporary: Path, path: Path) -> None:
    """Give a new file its name, also where a folder has it."""
    try:
        temporary.replace(path)
    except IsADirectoryError:
        _remove(path)
        temporary.replace(path)


def _remove(path: Path) -> None:
    """Remove a file of the cache, or a folder in its place."""
    with contextlib.suppress(OSError):
        if not _remove_folder(path):
            path.unlink()


def _remove_folder(path: Path) -> bool:
    """Remove a folder where a file has to be, and return whether there was one: no file can be renamed over it."""
    try:
        is_folder = stat.S_ISDIR(path.lstat().st_mode)
    except OSError:
        return False
    if is_folder:
        shutil.rmtree(path, ignore_errors=True)
    return is_folder


@contextlib.contextmanager
def _translated(folder: Path, larger: str = store.LARGER_CACHE) -> Iterator[None]:
    """Translate what the system refuses; `larger` is the next step where a disk is full."""
    try:
        yield
    except OSError as error:
        raise store.unusable(folder, error, larger=larger) from error
