"""Read and unpack the archive of a conda package so that no file from outside of it can get into the image.

An installer that follows a link of the archive would copy a file of this machine into the image. So links are made
last, when every file is below real folders, and only if `info/paths.json` lists them as links. Each listed file must be
a regular file of the archive with the listed size and SHA-256, which are computed while it is written.
Source: conda's package specification, `.tar.bz2` and `.conda`.
"""

from __future__ import annotations

import bz2
import hashlib
import json
import os
import re
import threading
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from envkit.assemble.compress import Digest, HashThread
from envkit.ground import imagepaths
from envkit.ground.errors import IntegrityError
from envkit.ground.progress import counted
from envkit.image import zstd
from envkit.image.deflate import Readable, most_inflated
from envkit.image.tarstream import Entry, Kind, Source, entries

PATHS, LINK = "info/paths.json", "info/link.json"
FAULTS: tuple[type[Exception], ...] = (zipfile.BadZipFile, EOFError, OSError, *zstd.FAULTS)
"""The exceptions that a damaged archive raises in addition to IntegrityError."""
# Small files are queued for a single writer thread: on ext4, two threads that create files block each other.
_WAITING, _SMALL = 64, 256 << 10  # queued files, bytes of a queued file
_MAX_INFO = 32 << 20  # bytes of one document; the list of pytorch's 12,000 files has 3 MB
_PART = re.compile(r"(info|pkg)-.*\.tar\.zst", re.DOTALL)
_FILE, _SOFT_LINK, _FOLDER = "hardlink", "softlink", "directory"
_NAMES = {_FILE: "a file", _SOFT_LINK: "a link", _FOLDER: "a folder"}


@dataclass(frozen=True, slots=True)
class _File:
    """A file that was written."""

    size: int
    sha256: str


@dataclass(slots=True)
class _Tree:
    root: str
    writers: _Writers
    files: dict[str, Callable[[], _File]] = field(default_factory=dict)  # each waits until its file is written
    links: dict[str, str] = field(default_factory=dict)  # path -> target; made last
    folders: set[str] = field(default_factory=set)

    def kind(self, path: str) -> str | None:
        """Return what the archive has at the path, as a path_type of paths.json."""
        if path in self.folders:
            return _FOLDER
        return _FILE if path in self.files else _SOFT_LINK if path in self.links else None


def documents(archive: Path, names: tuple[str, ...]) -> dict[str, Any]:
    """Return the JSON documents of these names in `info/`, without those that do not exist.

    Raises:
        IntegrityError: a document is too large or not JSON, or the archive is invalid.
        Exception: one of `FAULTS` if the archive is damaged.
    """
    trees: dict[str, Any] = {}
    with _tars(archive, ("info",)) as tars:
        for source in tars:
            for entry in entries(source):
                name = _plain(entry.name)
                if name in names and entry.kind is Kind.FILE:
                    trees[name] = _json(name, source.exactly(_small(name, entry.size)))
                    if len(trees) == len(names):
                        return trees  # the rest need not be inflated
    return trees


def unpack(archive: Path, folder: Path, *, most: int | None = None) -> list[dict[str, Any]]:
    """Unpack the archive into `folder`, which must not exist; return the rows of its list of paths.

    `most` limits the unpacked bytes; None is 100 times the archive's size, and at least 1 GiB.

    Raises:
        IntegrityError: the archive has contents that are not allowed in a package, or differ from its list.
        OSError: the disk is full.
        Exception: one of `FAULTS` if the archive is damaged.
    """
    folder.mkdir(parents=True)
    # Another thread creates the small files: creating 12,000 files takes as long as inflating them.
    with ThreadPoolExecutor(1) as pool, _tars(archive, ("info", "pkg"), most) as tars:
        tree = _Tree(os.fspath(folder), _Writers(pool))
        for source in tars:
            for entry in entries(source):
                _place(tree, entry, source)
        # This raises the errors of the writer thread.
        for wait in tree.files.values():
            wait()
    rows = rows_of(_json(PATHS, (folder / PATHS).read_bytes()) if PATHS in tree.files else None)
    _compare(tree, rows)
    # Links come last, so that no file is written through one to a path outside of `folder`.
    for path in tree.links:
        _make_parents(tree, path)
    for path, target in tree.links.items():
        os.symlink(target, f"{tree.root}/{path}")  # noqa: PTH211 - the unchanged text; Path would normalize it
    return rows


def rows_of(tree: Any) -> list[dict[str, Any]]:
    """Return the rows of paths.json.

    Raises:
        IntegrityError: it is missing or invalid.
    """
    if tree is None:
        raise IntegrityError(f"it has no {PATHS}")
    rows = tree.get("paths") if isinstance(tree, dict) else None
    if not isinstance(rows, list):
        raise IntegrityError(f"{PATHS} is not a list of paths")
    for row in rows:
        if not isinstance(row, dict) or not isinstance(row.get("_path"), str):
            raise IntegrityError(f"{PATHS} is not a list of paths")
        if row.get("path_type") not in _NAMES:
            raise IntegrityError(f"{PATHS}: {row['_path']!r:.200} has the unknown type {row.get('path_type')!r:.40}")
        if not isinstance(row.get("size_in_bytes", 0), int | None) or not isinstance(row.get("sha256", ""), str | None):
            raise IntegrityError(f"{PATHS}: {row['_path']!r:.200} has an invalid size or hash")
    return rows


def _place(tree: _Tree, entry: Entry, source: Source) -> None:
    """Write one entry; links are only recorded."""
    path = _plain(entry.name)
    if not path:
        return
    if why := imagepaths.fault(path):
        raise IntegrityError(why)
    if entry.kind is Kind.FOLDER:
        _make_folder(tree, path)
        return
    if tree.kind(path) is not None:
        raise IntegrityError(f"it contains {path!r:.200} twice")
    if entry.kind is Kind.LINK:
        if not entry.target or "\0" in entry.target:
            raise IntegrityError(f"{path!r:.200} is a link without a valid target")
        # Other files in info/ (a recipe, tests) are never installed, so their links are not needed.
        if not path.startswith("info/"):
            tree.links[path] = entry.target
        return
    if entry.kind is Kind.FILE:
        _make_parents(tree, path)
        if path.startswith("info/") and path.endswith(".json"):
            _small(path, entry.size)
        tree.files[path] = _file(tree, path, entry, source)
        return
    if entry.kind is not Kind.HARD_LINK:
        raise IntegrityError(f"{path!r:.200} is a {entry.kind.value}, which packages may not contain")
    _make_parents(tree, path)
    target = _plain(entry.target)
    if target not in tree.files:
        raise IntegrityError(f"{path!r:.200} is a hard link to {entry.target!r:.200}, which is not an earlier file")
    tree.files[target]()  # the file has to be written before it can be linked
    os.link(f"{tree.root}/{target}", f"{tree.root}/{path}", follow_symlinks=False)
    tree.files[path] = tree.files[target]


def _file(tree: _Tree, path: str, entry: Entry, source: Source) -> Callable[[], _File]:
    """Write a file, a small one in the writer thread; return a function that waits for it."""
    full = f"{tree.root}/{path}"
    if entry.size <= _SMALL:
        return tree.writers.write(full, source.exactly(entry.size), entry.mode)
    # The hash is computed in its own thread, so that inflating does not wait for it.
    with closing(HashThread()) as digest:
        written = _written(full, source.pieces(entry.size), entry.mode, digest)
    return lambda: written


class _Writers:
    """Writes small files in a thread; keeps at most `_WAITING` of them in memory."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool
        self._room = threading.BoundedSemaphore(_WAITING)

    def write(self, full: str, data: bytes, mode: int) -> Callable[[], _File]:
        """Queue a file; return a function that waits until it is written and raises its error."""
        # Waits here, so that an archive that inflates faster than the disk writes cannot fill the memory.
        self._room.acquire()
        return self._pool.submit(self._write, full, data, mode).result

    def _write(self, full: str, data: bytes, mode: int) -> _File:
        try:
            return _written(full, (data,), mode, hashlib.sha256())
        finally:
            self._room.release()


def _written(full: str, pieces: Iterable[bytes], mode: int, digest: Digest) -> _File:
    size = 0
    # O_EXCL and O_NOFOLLOW: every file is new, and nothing is written through a link.
    descriptor = os.open(full, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        for piece in pieces:
            digest.update(piece)
            size += len(piece)
            view = memoryview(piece)
            while view:
                view = view[os.write(descriptor, view) :]
        os.fchmod(descriptor, mode & 0o777 | 0o400)  # the installer has to read it
    finally:
        os.close(descriptor)
    return _File(size, digest.hexdigest())


def _make_parents(tree: _Tree, path: str) -> None:
    above = path.rpartition("/")[0]
    if above:
        _make_folder(tree, above)


def _make_folder(tree: _Tree, path: str) -> None:
    """Make a folder and its parents, none of which may be a file or link of the archive."""
    if path in tree.folders:
        return
    if (kind := tree.kind(path)) is not None:
        raise IntegrityError(f"{path!r:.200} is {_NAMES[kind]} and a folder")
    _make_parents(tree, path)
    os.mkdir(f"{tree.root}/{path}", 0o755)  # noqa: PTH102 - paths are plain strings here, for speed
    tree.folders.add(path)


def _compare(tree: _Tree, rows: list[dict[str, Any]]) -> None:
    """Refuse an archive that differs from its list of paths."""
    listed_links = {listed["_path"] for listed in rows if listed["path_type"] == _SOFT_LINK}
    for row in rows:
        path, kind = row["_path"], row["path_type"]
        archive_kind = tree.kind(path)
        if archive_kind != kind and (archive_kind is not None or kind != _FOLDER):
            what = "not in the archive" if archive_kind is None else _NAMES[archive_kind]
            raise IntegrityError(f"{path!r:.200} is listed as {_NAMES[kind]}, but is {what}")
        if kind == _FILE:
            _compare_file(path, tree.files[path](), row)
    for path, target in tree.links.items():
        if path not in listed_links:
            raise IntegrityError(f"{path!r:.200} is a link to {target!r:.200}, which {PATHS} does not list as a link")


def _compare_file(path: str, file: _File, row: Mapping[str, Any]) -> None:
    """Compare size and hash if the list has them.

    Packages from before 2017 may lack them; the digest in the lock still covers the whole archive.
    """
    size, sha256 = row.get("size_in_bytes"), row.get("sha256")
    if size is not None and size != file.size:
        raise IntegrityError(f"{path!r:.200} differs from {PATHS}: it has {file.size} bytes, not {size}")
    if sha256 is not None and sha256.lower() != file.sha256:
        raise IntegrityError(f"{path!r:.200} differs from {PATHS}: its SHA-256 is {file.sha256}, not {sha256:.80}")


def _plain(name: str) -> str:
    """Return the path of a tar entry without a leading `./` and a trailing slash; empty for the root."""
    return name.removeprefix("./").rstrip("/") if name != "." else ""


def _small(name: str, size: int) -> int:
    if size > _MAX_INFO:
        raise IntegrityError(f"{name:.200} has {size} bytes, more than {_MAX_INFO}")
    return size


def _json(name: str, data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise IntegrityError(f"{name} is not JSON") from error


@contextmanager
def _tars(archive: Path, wanted: tuple[str, ...], most: int | None = None) -> Iterator[Iterator[Source]]:
    """Yield the tars of the wanted parts ('info', 'pkg'); together they may inflate to at most `most` bytes."""
    budget = _Budget(most_inflated(archive.stat().st_size) if most is None else most)
    with ExitStack() as opened:
        streams: Iterator[Readable]
        if archive.name.endswith(".conda"):
            packed = opened.enter_context(zipfile.ZipFile(archive))
            parts = [(match[1], member) for member in packed.infolist() if (match := _PART.fullmatch(member.filename))]
            # With two tars of a kind, readers could disagree about which one counts.
            if sorted(part for part, _ in parts) != ["info", "pkg"]:
                raise IntegrityError(
                    f"it contains {counted(len(parts), 'tar')} instead of one with info and one with the package"
                )
            members = [dict(parts)[part] for part in wanted]
            streams = (zstd.open_zstd(opened.enter_context(packed.open(member))) for member in members)
        else:
            streams = iter((opened.enter_context(bz2.open(archive)),))
        yield (Source(_Watched(stream, budget)) for stream in streams)


@dataclass(slots=True)
class _Budget:
    """The limit of unpacked bytes."""

    most: int
    used: int = 0


@dataclass(frozen=True, slots=True)
class _Watched:
    stream: Readable
    budget: _Budget

    def read(self, size: int, /) -> bytes:
        piece = self.stream.read(size)
        self.budget.used += len(piece)
        if self.budget.used > self.budget.most:
            raise IntegrityError(f"it inflates to more than {self.budget.most} bytes")
        return piece
