"""The cache of this user: the kinds of entries, where they are, who locks them, and what a prune may remove.

No other module names a folder of the cache. An entry is removed only while its lock is held. Folders are renamed first,
so no process finds one half removed.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import secrets
import stat
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path
from typing import IO, Any

from envkit.ground import store
from envkit.ground.errors import EnvironmentProblem
from envkit.ground.state import OWN_IMAGES

ROWS = {
    "layers": "layers made from packages",
    "unpacked": "unpacked layers for running images",
    "downloads": "downloaded packages",
    "bases": "layers of base images and of pulled images",
    "built": "wheels built from source",
    "listings": "file lists of packages, digests of compressed layers",
    "repodata": "channel data of the conda solver",
    "leftovers": "files and folders of killed runs",
    "images": "images in the state folder",
}
"""What `envkit cache` calls the entries."""
LEFTOVERS = "leftovers"
_HEX = r"[0-9a-f]{64}"
_NAMED = rf"(?P<hex>{_HEX})"
_FRESH_S = 3600.0  # repodata has no lock, so it is kept this long after its last use
_YOUNG_S = 60.0  # entries without a note are kept this long: a build writes the file first and its note afterwards
USUAL_S = 30 * 86400.0  # the default limit: an entry unused for a month is unlikely to be used again


class LockedBy(Enum):
    """What keeps an entry that is in use from being removed."""

    ENTRY = auto()  # its users lock the entry itself
    FOLDER = auto()  # the same, and the folder is locked while one is added or opened
    BUILDS = auto()  # it has no lock: builds and downloads hold a shared lock on CACHE/layers
    AGE = auto()  # the same for builds, and others have used it within the last hour


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of entries: children of one folder of the cache."""

    row: str  # of ROWS
    folder: str  # below the cache
    locked_by: LockedBy
    names: str = "(?s).*"  # a pattern of the entries' names; other children belong to other kinds
    hides: bool = False  # an entry has a name with a dot and is locked by its writer until it is complete
    note: str = ""  # the file in an entry whose time is that of the last use
    notes: Kind | None = None  # such files in a folder of their own: each has the entry's name in `digest`
    whole: bool = False  # the folder itself is the only entry
    of_state: bool = False  # it is below the state folder instead
    carried: str = ""  # a pattern of the files that an archive of the cache may hold; the group `hex` is their SHA-256

    def at(self, cache: Path, *names: str) -> Path:
        """Return the folder of these entries, or a path below it."""
        return cache.joinpath(self.folder, *names)

    def member(self, name: str) -> str:
        """Return the name of a file of this kind in an archive of the cache."""
        return f"{self.folder}/{name}"

    def carries(self, member: str) -> re.Match[str] | None:
        """Match the name of a file in an archive of the cache if such files of this kind are carried."""
        return re.fullmatch(f"{self.folder}/(?P<name>{self.carried})", member) if self.carried else None

    def sweep(self, cache: Path) -> None:
        """Remove what killed runs have left unfinished."""
        store.sweep(filter(self._is_unfinished, _children(self.at(cache))))

    @contextlib.contextmanager
    def fresh(self, cache: Path, *, shared: bool = False) -> Iterator[Path]:
        """Make a folder for an entry, locked for the length of a `with` and removed at its end unless it was renamed.

        Args:
            cache: XDG_CACHE_HOME/envkit.
            shared: whether a child process locks it too.

        Raises:
            OSError: the folder cannot be created.
        """
        above = self.at(cache)
        above.mkdir(mode=0o700, parents=True, exist_ok=True)
        with store.fresh_folder(above, prefix="." if self.hides else "", shared=shared) as folder:
            yield folder

    def read(self, cache: Path, name: str, schema: str) -> Any:
        """Return the JSON value that was written under this name, None if it is missing or damaged."""
        try:
            with open_own(self.at(cache, f"{name}.json")) as stream:
                tree = unsealed(stream.read())
        except (OSError, UnusableError):
            return None
        is_this = tree is not None and (tree.get("schema"), tree.get("name")) == (schema, name)
        return tree.get("says") if tree is not None and is_this else None

    def write(self, cache: Path, name: str, schema: str, value: object) -> None:
        """Write a JSON value that is expensive to compute; do nothing if the folder is not writable."""
        path = self.at(cache, f"{name}.json")
        with contextlib.suppress(OSError):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Without fsync: a file that a power failure damages does not match its checksum and is computed again.
            with store.replacing(path, durable=False) as stream:
                stream.write(sealed({"schema": schema, "name": name, "says": value}))

    def entries(self, cache: Path) -> Iterator[tuple[str, Path, tuple[Path, ...]]]:
        """Yield the row, the path and the notes of each entry."""
        notes = _notes(self.notes.at(cache)) if self.notes else {}
        folder = self.at(cache)
        for path in _children(folder.parent if self.whole else folder):
            if self._is_unfinished(path):
                yield LEFTOVERS, path, ()
            elif path == folder if self.whole else re.fullmatch(self.names, path.name):
                own = (path / self.note,) if self.note and path.is_dir() else tuple(notes.pop(path.name, ()))
                yield self.row, path, own
        for rows in notes.values():  # notes whose entry is gone
            yield from ((LEFTOVERS, note, ()) for note in rows)

    def _is_unfinished(self, path: Path) -> bool:
        return self.row == LEFTOVERS or (self.hides and path.name.startswith("."))


NOTES = Kind(row=LEFTOVERS, folder="layers/layers", locked_by=LockedBy.ENTRY, carried=rf"{_HEX}\.json")
"""Which layer has a key."""
LAYERS = Kind(row="layers", folder="layers/blobs", locked_by=LockedBy.FOLDER, notes=NOTES, carried=_NAMED)
"""Layers made from packages, by digest; see `envkit.engines.layer_cache`."""
UNPACKED = Kind(row="unpacked", folder="layers", locked_by=LockedBy.ENTRY, names=_HEX, hides=True, note="note.json")
"""Unpacked layers, by diff ID."""
UNFINISHED_LAYERS = Kind(row=LEFTOVERS, folder="layers/new", locked_by=LockedBy.ENTRY)
"""Layers while they are written, and the locks of those who make them."""
STAGING = Kind(row=LEFTOVERS, folder="conda/staging", locked_by=LockedBy.ENTRY)
"""Conda packages while they are installed."""
RUNS = Kind(row=LEFTOVERS, folder="runs", locked_by=LockedBy.ENTRY)
"""Folders of runs."""
BUILT_WHEELS = Kind(
    row="built", folder="built", locked_by=LockedBy.BUILDS, hides=True,
    carried=rf"{_HEX}/(?:note\.json|[A-Za-z0-9._+-]{{1,200}}\.whl)",
)  # fmt: skip
"""Wheels that were built from source, by the key of their build."""
DOWNLOADS = Kind(row="downloads", folder="downloads", locked_by=LockedBy.BUILDS, carried=_NAMED)
"""Downloaded packages, by SHA-256."""
BASES = Kind(row="bases", folder="blobs", locked_by=LockedBy.BUILDS, carried=_NAMED)
"""Documents and layers from registries, by SHA-256."""
CONDA_LISTINGS = Kind(row="listings", folder="conda/listings", locked_by=LockedBy.BUILDS)
"""Lists of the files in conda packages, by SHA-256."""
LISTINGS = Kind(row="listings", folder="listings", locked_by=LockedBy.BUILDS)
"""Lists of the files in wheels, by the key of their layer."""
PACKED = Kind(row="listings", folder="packed", locked_by=LockedBy.BUILDS)
"""Digests of an engine's layers after compression, from earlier pushes."""
EVIDENCE = Kind(row="listings", folder="evidence", locked_by=LockedBy.BUILDS)
"""Facts read from wheels."""
REPODATA = Kind(row="repodata", folder="repodata", locked_by=LockedBy.AGE, hides=True, whole=True)
"""Channel data of the conda solver."""
IMAGES = Kind(
    row="images", folder=OWN_IMAGES, locked_by=LockedBy.BUILDS, hides=True, note="index.json", of_state=True
)  # fmt: skip
"""Images that were pushed or built without --output."""
REFERENCES = Kind(row=LEFTOVERS, folder="images", locked_by=LockedBy.ENTRY)
"""By image ID, the name under which an image was last opened. A prune keeps these small files."""
PODMAN = Kind(row=LEFTOVERS, folder="podman", locked_by=LockedBy.ENTRY)
"""An empty folder, locked while an image is lent to Podman."""
KINDS = (
    LAYERS, UNPACKED, UNFINISHED_LAYERS, STAGING, RUNS, BUILT_WHEELS, DOWNLOADS, BASES, CONDA_LISTINGS, LISTINGS,
    PACKED, EVIDENCE, REPODATA, IMAGES,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A file or folder of the cache or the state folder."""

    row: str  # of ROWS
    kind: Kind
    path: Path
    notes: tuple[Path, ...] = ()  # files that refer to it
    size: int  # bytes
    used: float  # seconds since 1970; only to the day with the mount option relatime


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Limits for pruning; None is no limit. Leftovers of killed runs are always removed."""

    keep: int | None = None  # bytes to keep
    older_than_s: float | None = None  # seconds since the last use
    everything: bool = False
    images: bool = False  # include images in the state folder


@dataclass(slots=True, kw_only=True)
class Pruned:
    """The result of a prune."""

    removed: list[Entry] = field(default_factory=list)
    in_use: list[Entry] = field(default_factory=list)
    freed: int = 0  # bytes
    held: int = 0  # bytes of removed entries that stay on the disk: hard links to them exist in images


def entries(cache: Path, state: Path | None = None) -> tuple[Entry, ...]:
    """Return all entries of the two folders, least recently used first. Files with several names are counted once."""
    seen: set[tuple[int, int]] = set()
    rows: list[Entry] = []
    for kind in KINDS:
        root = state if kind.of_state else cache
        for row, path, notes in kind.entries(root) if root is not None else ():
            with contextlib.suppress(FileNotFoundError):
                size, used = _measure(path, notes, seen)
                rows.append(Entry(row=row, kind=kind, path=path, notes=notes, size=size, used=used))
    return tuple(sorted(rows, key=lambda entry: (entry.used, str(entry.path))))


def remove(entry: Entry, *, idle: bool) -> tuple[int, int] | None:
    """Remove an entry. Return the bytes that became free and those that other hard links keep; None if it is in use.

    Args:
        entry: the entry to remove.
        idle: whether no build is running, from `builds_excluded`.
    """
    locked_by = LockedBy.ENTRY if entry.row == LEFTOVERS else entry.kind.locked_by
    try:
        match locked_by:
            case LockedBy.FOLDER:
                with store.locked(entry.path.parent):
                    return _remove_claimed(entry)
            case LockedBy.ENTRY:
                return _remove_claimed(entry)
            case LockedBy.AGE if time.time() - entry.used < _FRESH_S:
                return None
            case _:
                return _remove(entry) if idle else None
    # Another prune has removed it, or another user owns it. It counts as in use.
    except OSError:
        return None


@contextlib.contextmanager
def run_folder(cache: Path) -> Iterator[Path]:
    """Make a folder below the cache for one run. It is removed at the end, or by a later run if this one is killed.

    Raises:
        EnvironmentProblem: the cache cannot be written.
    """
    with contextlib.ExitStack() as stack:
        try:
            RUNS.sweep(cache)
            folder = stack.enter_context(RUNS.fresh(cache))
        except OSError as error:
            raise EnvironmentProblem(
                f"{RUNS.at(cache)} cannot be written: {error.strerror or error}",
                hint="set XDG_CACHE_HOME to a folder of your own",
            ) from error
        yield folder


@contextlib.contextmanager
def in_use(cache: Path) -> Iterator[None]:
    """Keep entries without locks of their own from being pruned until the context ends.

    Raises:
        OSError: the cache cannot be written.
    """
    folder = UNPACKED.at(cache)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with store.locked(folder, shared=True):
        yield


@contextlib.contextmanager
def builds_excluded(cache: Path) -> Iterator[bool]:
    """Yield whether no build is running; if so, new builds wait until the context ends."""
    try:
        descriptor = os.open(UNPACKED.at(cache), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield True
        return
    try:
        # Builds hold a shared lock on this folder (`LayerCache`), and so do downloads (`in_use`).
        yield store.claim(descriptor)
    finally:
        os.close(descriptor)


def chosen(rows: Sequence[Entry], rule: Rule, now: float) -> tuple[Entry, ...]:
    """Return the entries that a rule removes, in order. `rows` are sorted, least recently used first."""
    candidates = [entry for entry in rows if rule.images or entry.row != IMAGES.row]
    total = sum(entry.size for entry in candidates)
    removed = []
    for candidate in candidates:
        is_old = rule.older_than_s is not None and candidate.used < now - rule.older_than_s
        too_much = rule.keep is not None and total > rule.keep
        if rule.everything or is_old or too_much or candidate.row == LEFTOVERS:
            removed.append(candidate)
            total -= candidate.size
    return tuple(removed)


def prune(cache: Path, state: Path, rule: Rule) -> Pruned:
    """Remove the entries that a rule selects, except those that a build or run is using.

    Args:
        cache: XDG_CACHE_HOME/envkit.
        state: XDG_STATE_HOME/envkit.
        rule: the limits.
    """
    done = Pruned()
    with builds_excluded(cache) as idle:
        for entry in chosen(entries(cache, state), rule, time.time()):
            sizes = remove(entry, idle=idle)
            if sizes is None:
                done.in_use.append(entry)
                continue
            done.removed.append(entry)
            done.freed += sizes[0]
            done.held += sizes[1]
    return done


def _notes(folder: Path) -> dict[str, list[Path]]:
    """Return the notes of each blob, by digest."""
    notes: dict[str, list[Path]] = {}
    for note in _children(folder):
        try:
            tree = json.loads(note.read_bytes())
            digest = str(tree["digest"])
        except (OSError, ValueError, KeyError, TypeError):
            digest = ""
        notes.setdefault(digest, []).append(note)
    return notes


def _children(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _measure(path: Path, notes: Iterable[Path], seen: set[tuple[int, int]]) -> tuple[int, float]:
    """Return the size of the files that are not in `seen` (by device and inode), and the time of the latest use."""
    size, used = 0, 0.0
    for note in notes:
        with contextlib.suppress(FileNotFoundError):
            used = max(used, note.stat().st_mtime)
    for status in _files(path):
        # Users of an entry with notes touch a note. For other entries, the access time shows the latest use.
        if not used or path.is_dir():
            used = max(used, status.st_mtime, status.st_atime if not notes else 0.0)
        if (status.st_dev, status.st_ino) not in seen:
            seen.add((status.st_dev, status.st_ino))
            size += status.st_size
    return size, used or path.lstat().st_mtime


def _files(path: Path) -> Iterator[os.stat_result]:
    status = path.lstat()
    if not path.is_dir() or path.is_symlink():
        yield status
        return
    for folder, _, files in os.walk(path):
        for name in files:
            with contextlib.suppress(FileNotFoundError):
                yield os.lstat(os.path.join(folder, name))  # noqa: PTH118 - many files


def _remove_claimed(entry: Entry) -> tuple[int, int] | None:
    """Remove an entry that its users lock, unless it is locked."""
    with store.claimed(entry.path) as status:
        if status is None or (not entry.notes and time.time() - status.st_mtime < _YOUNG_S):
            return None
        return _remove(entry)


def _remove(entry: Entry) -> tuple[int, int]:
    free = shared = 0
    for status in _files(entry.path):
        if status.st_nlink > 1:
            shared += status.st_size
        else:
            free += status.st_size
    if entry.path.is_dir():
        # No other process looks for this name, and if this prune is killed, the next one removes it as a leftover.
        hidden = entry.path.with_name(f".{entry.path.name.lstrip('.')}.{secrets.token_hex(4)}.tmp")
        entry.path.rename(hidden)
        store.remove_tree(hidden)
    else:
        # The notes first: without them, no build looks for the blob.
        for path in (*entry.notes, entry.path):
            path.unlink(missing_ok=True)
    return free, shared


class UnusableError(Exception):
    """The file is not what the cache wrote."""


@contextlib.contextmanager
def open_own(path: Path) -> Iterator[IO[bytes]]:
    """Open a regular file of this user without following links.

    Raises:
        UnusableError: it is something else.
    """
    try:
        # O_NONBLOCK: opening a pipe of that name must not block.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EISDIR, errno.EACCES, errno.ENXIO):
            raise UnusableError from error
        raise
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
        os.close(descriptor)
        raise UnusableError
    with os.fdopen(descriptor, "rb", buffering=0) as stream:
        yield stream


def sealed(tree: Mapping[str, Any]) -> bytes:
    """Return a note as JSON with a checksum of itself, which detects damage, but not a forgery by another user."""
    return _canonical({**tree, "check": hashlib.sha256(_canonical(tree)).hexdigest()})


def unsealed(data: bytes) -> dict[str, Any] | None:
    """Return the note in these bytes, None if they are damaged."""
    try:
        tree = json.loads(data)
        check = tree.pop("check")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return tree if check == hashlib.sha256(_canonical(tree)).hexdigest() else None


def _canonical(tree: Mapping[str, Any]) -> bytes:
    return json.dumps(tree, sort_keys=True, separators=(",", ":")).encode()
