"""Cache of layers between builds. A key identifies a layer's inputs; its blob is named by the blob's digest.

    LAYERS/<digest>       the blob
    NOTES/<key>.json      the note with the blob of a key, and a checksum of the note itself
    UNFINISHED_LAYERS     blobs that are being written, each locked by its writer, and the locks of `flights`

Nothing in the cache is trusted. A blob is hashed before its first use after each boot and whenever its stat has
changed; a blob that does not match is removed and built again. Two builds may write the same layer at the same time:
the second rename replaces equal bytes. Builds that prefer to wait for each other use `LayerCache.flights`.

The cache object keeps a shared lock on the folder and on every blob that it has returned. Pruning skips what it cannot
lock.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from envkit.ground import store
from envkit.ground.cache import LAYERS, NOTES, UNFINISHED_LAYERS, UNPACKED, UnusableError, open_own, sealed, unsealed
from envkit.ground.store import Flights, Held
from envkit.image.spec import LayerDigest

_SCHEMA = "envkit.built-layer/1"
_READ = (_SCHEMA, "envkit.layer/1")  # the second is the name in older caches, which unpacked layers use as well
_NOTE_MAX = 4096  # bytes
_PIECE = 1 << 20
_ABANDONED_S = 60.0  # longer than a writer takes between creating its file and locking it


@dataclass(frozen=True, slots=True, kw_only=True)
class Cached:
    """A layer in the cache."""

    layer: LayerDigest
    path: Path


class LayerCache:
    """The layers in a cache.

    Args:
        root: XDG_CACHE_HOME/envkit.
        offer: called with each layer that the cache returns, new or old, once its blob is complete, so that it can be
            pushed while other layers are still being built. It is called from any thread, and its exceptions propagate.
    """

    def __init__(self, root: Path, offer: Callable[[Cached], None] | None = None) -> None:
        """Open or create the cache.

        Raises:
            EnvironmentProblem: the folder cannot be written.
        """
        self.root, self._offer = root, offer
        self._folder, self._new = UNPACKED.at(root), UNFINISHED_LAYERS.at(root)
        self.flights = Flights(self._new)
        self._held = Held()
        with store.translated(self._folder):
            for kind in (LAYERS, NOTES, UNFINISHED_LAYERS):
                kind.at(root).mkdir(mode=0o700, parents=True, exist_ok=True)
            self._held.add(os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
            # Writers lock their files. A file that is unlocked and has not changed for a minute has no writer.
            store.sweep(self._new.iterdir(), idle_s=_ABANDONED_S)

    def get(self, key: str) -> Cached | None:
        """Return the layer of a key, None if it is missing. A damaged blob or note is removed and counts as missing."""
        note_path = self._note(key)
        note = _read_note(note_path, key)
        if note is None:
            _remove(note_path)
            return None
        layer, known = note
        path = self._blob(layer.digest)
        try:
            # Locked before it is checked, so that no prune removes it after the check.
            with self._locked_blob(path) as stream:
                stamp = _stamp(stream)
                if known != stamp or stamp["size"] != layer.size:
                    _check(stream, layer)
                    self._write_note(key, layer, stamp)
                else:
                    os.utime(note_path)  # the time of last use, for pruning
        except (FileNotFoundError, UnusableError):
            _remove(note_path)
            return None
        except OSError as error:
            raise store.unusable(self._folder, error) from error
        return self._offered(Cached(layer=layer, path=path))

    def make(self, key: str, write: Callable[[IO[bytes]], LayerDigest]) -> Cached:
        """Store the blob that `write` writes and describes under `key`.

        Raises:
            EnvironmentProblem: the disk is full or the folder cannot be written; nothing is left behind.
        """
        with store.translated(self._folder):
            # With the permissions of the user's umask, because layouts get a hard link to this file.
            with store.fresh_file(self._new) as (temporary, stream):
                # Shared: after the rename, `_lock` locks this file through another descriptor, and would wait forever
                # for an exclusive lock of this one.
                store.lock(stream.fileno(), shared=True)
                layer = write(stream)
                stream.flush()
                path = self._blob(layer.digest)
                # Pruning takes this lock, so it cannot remove the blob between the rename and `_lock`.
                with store.locked(path.parent):
                    # Others have locked that file and know its inode; a replacement would be unlocked and have another
                    # stamp.
                    if not _is_used(path, layer):
                        _put(temporary, path)
                    with open_own(path) as blob:
                        self._lock(blob)
                        stamp = _stamp(blob)
            self._write_note(key, layer, stamp)
        return self._offered(Cached(layer=layer, path=path))

    def _offered(self, cached: Cached) -> Cached:
        if self._offer is not None:
            self._offer(cached)
        return cached

    def _note(self, key: str) -> Path:
        return NOTES.at(self.root, f"{key}.json")

    def _blob(self, digest: str) -> Path:
        return LAYERS.at(self.root, digest)

    @contextlib.contextmanager
    def _locked_blob(self, path: Path) -> Iterator[IO[bytes]]:
        """Open a blob and protect it from pruning. An unusable blob is removed."""
        with contextlib.ExitStack() as opened:
            with store.locked(path.parent):
                try:
                    stream = opened.enter_context(open_own(path))
                except UnusableError:
                    _remove(path)
                    raise
                self._lock(stream)
            try:
                yield stream
            except UnusableError:
                with store.locked(path.parent), contextlib.suppress(OSError):
                    # Another process may have put an intact blob there meanwhile.
                    if os.path.samestat(os.fstat(stream.fileno()), path.lstat()):
                        _remove(path)
                raise

    def _lock(self, stream: IO[bytes]) -> None:
        """Protect a blob from pruning for the lifetime of this object."""
        # A duplicated descriptor shares the lock (flock(2)) and stays open when the stream is closed.
        self._held.add(os.dup(stream.fileno()))

    def _write_note(self, key: str, layer: LayerDigest, stamp: Mapping[str, int | str]) -> None:
        """Write a key's note. It is not synced to the disk: a power failure may damage it, which its checksum shows."""
        with store.fresh_file(self._new, mode=0o600) as (temporary, stream):
            stream.write(sealed({"schema": _SCHEMA, "key": key, **asdict(layer), "stamp": dict(stamp)}))
            stream.flush()
            _put(temporary, self._note(key))


def _is_used(path: Path, layer: LayerDigest) -> bool:
    """Return whether another build uses an intact blob at this path, which must not be replaced by an equal one."""
    try:
        with open_own(path) as stream:
            if store.lock(stream.fileno(), wait=False):
                return False
            _check(stream, layer)
    except (OSError, UnusableError):
        return False
    return True


def _read_note(path: Path, key: str) -> tuple[LayerDigest, Any] | None:
    """Return the layer of a key's note and its blob's stamp, None if the note is missing or damaged."""
    try:
        with open_own(path) as stream:
            tree = unsealed(stream.read(_NOTE_MAX))
    except (OSError, UnusableError):
        return None
    if tree is None or tree.get("schema") not in _READ or tree.get("key") != key:
        return None
    layer = LayerDigest(digest=tree["digest"], diff_id=tree["diff_id"], size=tree["size"], tar_size=tree["tar_size"])
    return layer, tree.get("stamp")


def _stamp(stream: IO[bytes]) -> dict[str, int | str]:
    """Return values that change when the file does: a write sets both times. After a reboot no stamp is equal."""
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
        return f"process {os.getpid()}"  # then a stamp is valid only in this process


def _check(stream: IO[bytes], layer: LayerDigest) -> None:
    """Compare the size and digest of a whole blob with the layer's.

    Raises:
        UnusableError: they differ.
    """
    digest = hashlib.sha256()
    size = 0
    while piece := stream.read(_PIECE):
        digest.update(piece)
        size += len(piece)
    if (size, digest.hexdigest()) != (layer.size, layer.digest):
        raise UnusableError


def _put(temporary: Path, path: Path) -> None:
    """Rename a new file, even if a folder has the name."""
    try:
        temporary.replace(path)
    except IsADirectoryError:
        _remove(path)
        temporary.replace(path)


def _remove(path: Path) -> None:
    """Remove a file of the cache, or a folder with its name, over which no file can be renamed."""
    with contextlib.suppress(OSError):
        if stat.S_ISDIR(path.lstat().st_mode):
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()
