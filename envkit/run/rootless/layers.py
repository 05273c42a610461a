"""The cache of unpacked layers: one folder for each digest of a tar, whole or not there at all.

    CACHE/layers/HEX/tree      what the layer holds
    CACHE/layers/HEX/note.json its digest, its size, what it removes, and a fingerprint of the tree
    CACHE/layers/.HEX          being unpacked, under a lock that ends with the process that holds it

As root, files belong to the host's users that the container's are (`owners`), else to the one user there is.
A fingerprint covers every entry's path, kind, permissions, size and time; a tree that differs is unpacked again.
Bytes changed behind a file's time are not noticed: content is checked when a layer is unpacked.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from envkit.ground import store
from envkit.ground.errors import EnvironmentProblem
from envkit.image.blobs import tar_bytes
from envkit.image.spec import Layer
from envkit.image.tarstream import Source
from envkit.run.rootless.owners import host_shift
from envkit.run.rootless.unpack import Contents, unpack

_SCHEMA = "envkit.layer/2"
_TREE, _NOTE = "tree", "note.json"
_LOOK_AGAIN_S = 0.05  # flock has no time limit, and a signal has to end the wait


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpacked:
    """A layer that lies unpacked; `size` is that of its tar, in bytes."""

    diff_id: str
    tree: Path
    size: int
    contents: Contents


class LayerCache:
    """Unpacked layers below a folder of this user's own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "layers"
        self._sound: dict[str, Unpacked] = {}
        self._held: list[int] = []
        weakref.finalize(self, _close, self._held)

    def find(self, diff_id: str) -> Unpacked | None:
        """The layer if it lies here whole. Every entry is looked at once for each cache object."""
        if diff_id not in self._sound:
            folder = self._folder / _hex(diff_id)
            unpacked = _read(folder, diff_id) if self._hold(folder) else None
            if unpacked is None:
                return None
            self._sound[diff_id] = unpacked
        return self._sound[diff_id]

    def _hold(self, folder: Path) -> bool:
        """Keep what prunes the cache from taking a layer as long as this object lives; False where it is not there."""
        try:
            descriptor = store.open_folder(folder)
        except OSError:
            return False
        self._held.append(descriptor)
        store.lock(descriptor, shared=True)
        with contextlib.suppress(OSError):
            os.utime(folder / _NOTE)  # when it was used last
        # A prune may have removed the folder between its opening and the lock.
        return store.is_at(descriptor, folder)

    def take(self, layer: Layer, stop: threading.Event) -> Unpacked:
        """The layer, unpacked now where it was not. Processes that want the same one wait for each other.

        `stop` set by another thread gives the work up.

        Raises:
            EngineError: its blob cannot be read, or the work was given up.
            IntegrityError: its bytes are not what its digests promise, or are not a layer.
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
                    _empty(staging)
                    _unpack(layer, staging, stop)
                    if final.exists():  # damaged, or another user's
                        store.remove_tree(final)
                    # Last: under the final name a folder is complete, whenever this process is killed.
                    staging.rename(final)
        except OSError as error:
            raise EnvironmentProblem(
                f"layer {layer.diff_id[:19]} cannot be unpacked below {self._folder}: {error.strerror or error}"
                f" ({store.free_space(self._folder)})",
                hint="envkit cache prune, or set XDG_CACHE_HOME to a folder elsewhere",
            ) from error
        unpacked = self.find(layer.diff_id)
        if unpacked is None:
            raise EnvironmentProblem(
                f"layer {layer.diff_id[:19]} changed below {self._folder} while it was being used",
                hint="set XDG_CACHE_HOME to a folder of your own on a local disk",
            )
        return unpacked

    def sweep(self) -> None:
        """Remove what runs that ended left half unpacked."""
        store.sweep(self._folder.glob(".[0-9a-f]*"))

    def _make_folder(self) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        owner = self._folder.stat().st_uid
        if owner != os.geteuid():
            raise EnvironmentProblem(
                f"{self._folder} belongs to user {owner}, and files of others are not trusted",
                hint="set XDG_CACHE_HOME to a folder of your own",
            )


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _unpack(layer: Layer, staging: Path, stop: threading.Event) -> None:
    tree = staging / _TREE
    tree.mkdir(mode=0o755)
    # mkdir(2) obeys the umask, and the image's root has to be readable by every user of the image.
    tree.chmod(0o755)
    with tar_bytes(layer, stop) as stream:
        contents = unpack(Source(stream), tree, shift=_shift())
    note = {
        "schema": _SCHEMA,
        "shift": _shift(),
        "diff_id": layer.diff_id,
        "size": stream.size,
        "fingerprint": fingerprint(tree),
        **asdict(contents),
    }
    (staging / _NOTE).write_text(json.dumps(note))


def _shift() -> int | None:
    """What is added to the IDs in a layer; None where all files belong to the one user there is."""
    return host_shift() if os.geteuid() == 0 else None


def fingerprint(tree: Path) -> str:
    """A digest over every entry of a tree, without its content."""
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
                size = 0 if is_folder else status.st_size  # a folder's depends on the file system
                digest.update(f"{row!r}{size}\n".encode("utf-8", "surrogateescape"))
                if is_folder:
                    waiting.append(entry.path)
    return digest.hexdigest()


def _read(folder: Path, diff_id: str) -> Unpacked | None:
    """A layer's folder, None when it is not there, not ours, or not as it was left."""
    try:
        if folder.stat().st_uid != os.geteuid():
            return None
        note = json.loads((folder / _NOTE).read_bytes())
        sound = (
            (note["schema"], note["diff_id"], note["shift"]) == (_SCHEMA, diff_id, _shift())
            and note["fingerprint"] == fingerprint(folder / _TREE)
        )  # fmt: skip
        if not sound:
            return None
        contents = Contents(
            whiteouts=tuple(note["whiteouts"]), opaque=tuple(note["opaque"]), overlay=bool(note["overlay"])
        )
        return Unpacked(diff_id=diff_id, tree=folder / _TREE, size=int(note["size"]), contents=contents)
    except (OSError, ValueError, KeyError, TypeError):
        return None


@contextmanager
def _locked(staging: Path, final: Path) -> Iterator[Path | None]:
    """The folder to unpack into, locked; None when another process has put a sound layer there meanwhile.

    The lock is on the folder itself and goes with it when it is renamed, so nothing is left to be cleaned.
    """
    while True:
        # A process that holds the folder may rename it between any two of these calls.
        with contextlib.suppress(FileExistsError):
            os.mkdir(staging, 0o700)  # noqa: PTH102 - Path.mkdir looks again whether what exists is a folder
        try:
            descriptor = store.open_folder(staging)
        except FileNotFoundError:
            continue
        try:
            mine = _waited_for(descriptor, staging)
            done = _read(final, f"sha256:{final.name}") is not None
            if mine or done:
                if mine and done:
                    store.remove_tree(staging)
                yield None if done else staging
                return
        except BaseException:
            if store.is_at(descriptor, staging):
                store.remove_tree(staging)
            raise
        finally:
            os.close(descriptor)


def _waited_for(descriptor: int, staging: Path) -> bool:
    """Lock a folder that others may hold; False once it is another one or has become the layer itself.

    The process that unpacked it holds it until it ends, so a plain wait for the lock would last as long, and two
    processes that unpack the same layers would wait for each other.
    """
    while store.is_at(descriptor, staging):
        # Needed: a fingerprint taken while another process writes below the folder would make its half a sound layer.
        if store.lock(descriptor, wait=False, needed=True):
            return store.is_at(descriptor, staging)
        time.sleep(_LOOK_AGAIN_S)
    return False


def _empty(folder: Path) -> None:
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            store.remove_tree(entry)
        else:
            entry.unlink()


def _hex(diff_id: str) -> str:
    return diff_id.removeprefix("sha256:")
