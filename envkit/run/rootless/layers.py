"""Cache of unpacked layers: one folder per diff ID, complete or absent.

    UNPACKED/HEX/tree      the layer's files
    UNPACKED/HEX/note.json its diff ID and size, what it removes, and a fingerprint of the tree
    UNPACKED/.HEX          being unpacked, locked by the process that does it

For root, files belong to the host's users that a container's users are mapped to (`owners`). Otherwise all belong to
this user. A fingerprint covers every entry's path, kind, owner, permissions, size and time; a tree that differs is
unpacked again. The content is checked only when a layer is unpacked, so a change that keeps size and time goes
unnoticed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import queue
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from envkit.ground import store
from envkit.ground.cache import UNPACKED
from envkit.ground.errors import EnvironmentProblem, EnvkitError
from envkit.image.blobs import TarBytes, tar_bytes
from envkit.image.spec import Layer, LayerDigest
from envkit.image.tarstream import Source
from envkit.run.rootless.owners import host_shift, keeps_owners
from envkit.run.rootless.unpack import Contents, unpack

_SCHEMA = "envkit.layer/2"
_TREE, _NOTE = "tree", UNPACKED.note
_WAITING = 32  # pieces of at most 1 MiB that wait to be unpacked
_MOST = 1 << 40  # bytes; the writer of a layer that is received has its own limits
_POLL_S = 0.05  # flock has no time limit, and a signal has to end the wait


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpacked:
    """An unpacked layer. `size` is the size of its tar in bytes."""

    diff_id: str
    tree: Path
    size: int
    contents: Contents


class UnpackedLayers:
    """Unpacked layers in a cache."""

    def __init__(self, cache: Path) -> None:
        self._cache, self._folder = cache, UNPACKED.at(cache)
        self._intact: dict[str, Unpacked] = {}
        self._held = store.Held()

    def find(self, diff_id: str) -> Unpacked | None:
        """Return the layer if the cache has it and it is intact, which is checked once per cache object."""
        if diff_id not in self._intact:
            folder = self._folder / _hex(diff_id)
            unpacked = _read(folder, diff_id) if self._lock(folder) else None
            if unpacked is None:
                return None
            self._intact[diff_id] = unpacked
        return self._intact[diff_id]

    def _lock(self, folder: Path) -> bool:
        """Protect a layer from pruning for the lifetime of this object; return False if it does not exist."""
        try:
            descriptor = store.open_folder(folder)
        except OSError:
            return False
        self._held.add(descriptor)
        with contextlib.suppress(OSError):
            os.utime(folder / _NOTE)  # the time of last use, for pruning
        # The folder may have been pruned after it was opened and before it was locked.
        return store.is_at(descriptor, folder)

    def take(self, layer: Layer, stop: threading.Event) -> Unpacked:
        """Return the layer, unpacking it first if necessary. Only one process unpacks it; others wait.

        Another thread can cancel the work by setting `stop`.

        Raises:
            EngineError: its blob cannot be read, or the work was cancelled.
            IntegrityError: its bytes do not match its digests, or are not a valid layer.
            EnvironmentProblem: the disk is full, or the folder cannot be written.
        """
        cached = self.find(layer.diff_id)
        if cached is not None:
            return cached
        try:
            self._make_folder()
            with _locked(self._folder / f".{_hex(layer.diff_id)}", self._folder / _hex(layer.diff_id)) as staging:
                final = self._folder / _hex(layer.diff_id)
                if staging is not None:
                    # A killed process may have left part of the layer here.
                    _empty(staging)
                    _unpack(layer, staging, stop)
                    if final.exists():  # damaged, or another user's
                        store.remove_tree(final)
                    # Last, so that a folder under the final name is complete even if this process is killed.
                    staging.rename(final)
        except OSError as error:
            raise EnvironmentProblem(
                f"layer {layer.diff_id[:19]} cannot be unpacked below {self._folder}: {error.strerror or error}"
                f" ({store.free_space(self._folder)})",
                hint="envkit cache prune, or set XDG_CACHE_HOME to a folder on another disk",
            ) from error
        # It also takes the lock that protects the layer from pruning.
        unpacked = self.find(layer.diff_id)
        if unpacked is None:
            raise EnvironmentProblem(
                f"layer {layer.diff_id[:19]} in {self._folder} changed while it was in use",
                hint="set XDG_CACHE_HOME to a folder of your own on a local disk",
            )
        return unpacked

    @contextmanager
    def receiving(self) -> Iterator[Receiver | None]:
        """Unpack the tar of a layer while this process makes it, so that nothing has to inflate and hash it again.

        A failure is not raised: the layer is then unpacked when it is first run. None if there is no folder for it.
        """
        with contextlib.ExitStack() as stack:
            try:
                self._make_folder()
                staging = stack.enter_context(UNPACKED.fresh(self._cache))
            except (OSError, EnvironmentProblem):
                yield None
                return
            receiver = Receiver(self._folder, staging)
            stack.callback(receiver.close)  # before the folder is removed
            yield receiver

    def _make_folder(self) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        owner = self._folder.stat().st_uid
        if owner != os.geteuid():
            raise EnvironmentProblem(
                f"{self._folder} belongs to user {owner}; files of other users are not trusted",
                hint="set XDG_CACHE_HOME to a folder of your own",
            )


class Receiver:
    """Unpacks the tar that it gets piece by piece, in a thread of its own."""

    def __init__(self, folder: Path, staging: Path) -> None:
        self._folder, self._staging = folder, staging
        self._waiting: queue.Queue[bytes | None] = queue.Queue(_WAITING)
        self._contents: Contents | None = None
        self._thread = threading.Thread(target=self._run, name="envkit-unpack", daemon=True)
        self._thread.start()

    def write(self, piece: bytes) -> None:
        """Take the next bytes, which do not change afterwards."""
        self._waiting.put(piece)

    def finish(self, layer: LayerDigest) -> None:
        """Put the complete tree into the cache, unless another process has done that meanwhile."""
        self.close()
        if self._contents is not None:
            with contextlib.suppress(OSError):
                _write_note(self._staging, f"sha256:{layer.diff_id}", layer.tar_size, self._contents)
                self._staging.rename(self._folder / layer.diff_id)  # refused if it exists

    def close(self) -> None:
        """End the thread."""
        if self._thread.is_alive():
            self._waiting.put(None)
            self._thread.join()

    def _pieces(self) -> Iterator[bytes]:
        while (piece := self._waiting.get()) is not None:
            yield piece

    def _run(self) -> None:
        pieces = self._pieces()
        try:
            stream = TarBytes(pieces, threading.Event(), _MOST, hashed=False)
            contents = unpack(Source(stream), _make_tree(self._staging), shift=_shift())
        except (EnvkitError, OSError):
            contents = None
        # To the end, because `write` would wait forever for a thread that has ended.
        for _ in pieces:
            pass
        self._contents = contents


def _unpack(layer: Layer, staging: Path, stop: threading.Event) -> None:
    with tar_bytes(layer, stop) as stream:
        contents = unpack(Source(stream), _make_tree(staging), shift=_shift())
    _write_note(staging, layer.diff_id, stream.size, contents)


def _make_tree(staging: Path) -> Path:
    """Make the folder for a layer's files."""
    tree = staging / _TREE
    tree.mkdir(mode=0o755)
    # mkdir(2) applies the umask, but every user of the image has to be able to read its root.
    tree.chmod(0o755)
    return tree


def _write_note(staging: Path, diff_id: str, size: int, contents: Contents) -> None:
    note = {
        "schema": _SCHEMA,
        "shift": _shift(),
        "diff_id": diff_id,
        "size": size,
        "fingerprint": fingerprint(staging / _TREE),
        **asdict(contents),
    }
    (staging / _NOTE).write_text(json.dumps(note))


def _shift() -> int | None:
    """Return the offset added to the IDs in a layer; None if all files belong to this user."""
    return host_shift() if keeps_owners() else None


def fingerprint(tree: Path) -> str:
    """Return a digest over the metadata of every entry of a tree."""
    digest = hashlib.sha256()
    root = os.fspath(tree)
    waiting = [root]
    while waiting:
        folder = waiting.pop()
        with os.scandir(folder) as listing:
            for entry in sorted(listing, key=lambda item: item.name):
                status = entry.stat(follow_symlinks=False)
                is_folder = stat.S_ISDIR(status.st_mode)
                row = (entry.path[len(root) :], status.st_mode, status.st_uid, status.st_gid, status.st_mtime_ns)
                size = 0 if is_folder else status.st_size  # a folder's size depends on the file system
                digest.update(f"{row!r}{size}\n".encode("utf-8", "surrogateescape"))
                if is_folder:
                    waiting.append(entry.path)
    return digest.hexdigest()


def _read(folder: Path, diff_id: str) -> Unpacked | None:
    """Return the layer in a folder; None if it is missing, another user's, or has changed."""
    try:
        if folder.stat().st_uid != os.geteuid():
            return None
        note = json.loads((folder / _NOTE).read_bytes())
        intact = (
            (note["schema"], note["diff_id"], note["shift"]) == (_SCHEMA, diff_id, _shift())
            and note["fingerprint"] == fingerprint(folder / _TREE)
        )  # fmt: skip
        if not intact:
            return None
        contents = Contents(
            whiteouts=tuple(note["whiteouts"]), opaque=tuple(note["opaque"]), overlay=bool(note["overlay"])
        )
        return Unpacked(diff_id=diff_id, tree=folder / _TREE, size=int(note["size"]), contents=contents)
    except (OSError, ValueError, KeyError, TypeError):
        return None


@contextmanager
def _locked(staging: Path, final: Path) -> Iterator[Path | None]:
    """Yield the locked folder to unpack into; None if another process has finished the layer in the meantime.

    The lock is on the folder itself and stays on it when it is renamed, so there is no lock file to remove.
    """
    while True:
        # The process that has the lock may rename the folder between any two of these calls.
        with contextlib.suppress(FileExistsError):
            os.mkdir(staging, 0o700)  # noqa: PTH102 - Path.mkdir would check again whether the existing path is a folder
        try:
            descriptor = store.open_folder(staging)
        except FileNotFoundError:
            continue
        try:
            has_lock = _wait_for_lock(descriptor, staging)
            done = _read(final, f"sha256:{final.name}") is not None
            if has_lock or done:
                if has_lock and done:
                    store.remove_tree(staging)
                yield None if done else staging
                return
        except BaseException:
            if store.is_at(descriptor, staging):
                store.remove_tree(staging)
            raise
        finally:
            os.close(descriptor)


def _wait_for_lock(descriptor: int, staging: Path) -> bool:
    """Wait for the lock on a folder; return False once the folder was replaced or renamed to the final name.

    The process that unpacks the layer keeps the lock until it exits. So an ordinary wait would last that long, and two
    processes that unpack the same layers would wait for each other.
    """
    while store.is_at(descriptor, staging):
        # The lock is required: a fingerprint taken while another process still writes would make a partial layer valid.
        if store.lock(descriptor, wait=False, needed=True):
            return store.is_at(descriptor, staging)
        time.sleep(_POLL_S)
    return False


def _empty(folder: Path) -> None:
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            store.remove_tree(entry)
        else:
            entry.unlink()


def _hex(diff_id: str) -> str:
    return diff_id.removeprefix("sha256:")
