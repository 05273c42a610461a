"""Unpack a layer's tar into a folder so that nothing can be written outside of it.

No other process writes to the folder, and every parent of an entry has to be a folder that the same tar created. So no
link is ever followed, whatever the tar contains. Set-user-ID bits are dropped, devices are refused outside of /dev
(where a container has its own), and what the layer removes from lower layers is recorded.
Source: OCI image specification 1.1, "Image Layer Filesystem Changeset" (whiteouts, opaque whiteouts).
"""

from __future__ import annotations

import contextlib
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

from envkit.ground import imagepaths
from envkit.ground.errors import IntegrityError
from envkit.image.tarstream import Entry, Kind, Source, entries
from envkit.run.rootless.owners import host_id

_MODES = 0o1777  # permissions and the sticky bit; neither set-user-id nor set-group-id


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """The effect of an unpacked layer on lower layers. Paths are relative to the tree."""

    whiteouts: tuple[str, ...]  # paths of lower layers that this one removes
    opaque: tuple[str, ...]  # folders that hide the content of lower layers
    overlay: bool  # whether the tree has the kernel's whiteouts, so that it can be a layer of an overlay


@dataclass(slots=True)
class _Tree:
    root: str
    shift: int | None
    kinds: dict[str, Kind | None] = field(default_factory=dict)  # None: an entry that was skipped
    folders: dict[str, Entry] = field(default_factory=dict)
    whiteouts: list[str] = field(default_factory=list)
    opaque: list[str] = field(default_factory=list)


def unpack(source: Source, root: Path, *, shift: int | None) -> Contents:
    """Write a tar's entries below `root`, an empty folder of this user.

    `shift` is added to every user and group ID (for root); with None everything belongs to this process's user.

    Raises:
        IntegrityError: the tar is damaged, or an entry would be outside, below a link, or a device.
        OSError: the disk is full, or a file cannot be written.
    """
    tree = _Tree(os.fspath(root), shift)
    for entry in entries(source):
        _place(tree, entry, source)
    overlay = _note_removed(tree)
    # After all entries, deepest folder first: writing to a folder changes its time, and its final mode may lock us out.
    for path in sorted(tree.folders, key=lambda folder: folder.count("/"), reverse=True):
        entry, full = tree.folders[path], f"{tree.root}/{path}"
        _own(tree, full, entry)
        os.chmod(full, (entry.mode & _MODES) | (stat.S_IRWXU if shift is None else 0))  # noqa: PTH101
        os.utime(full, (entry.mtime, entry.mtime))
    # A whiteout applies to lower layers only. An entry of this layer at the same path stays, in any order in the tar.
    removed = tuple(sorted(whiteout for whiteout in tree.whiteouts if whiteout not in tree.kinds))
    return Contents(whiteouts=removed, opaque=tuple(sorted(tree.opaque)), overlay=overlay)


def plain_path(name: str) -> str:
    """Return an entry's path relative to the tree, '' for the tree itself.

    Raises:
        IntegrityError: it is absolute, has `..`, or is too long.
    """
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts:
        raise IntegrityError(f"a layer has an entry outside of its root: {name[:200]!r}")
    path = "/".join(parts)
    if len(os.fsencode(path)) > imagepaths.LONGEST_PATH or any(
        len(os.fsencode(part)) > imagepaths.LONGEST_NAME for part in parts
    ):
        raise IntegrityError(f"a layer has an entry with too long a name: {name[:200]!r}…")
    return path


def _place(tree: _Tree, entry: Entry, source: Source) -> None:
    path = plain_path(entry.name)
    if not path:
        return  # the root folder itself, which is created elsewhere
    _parents(tree, path.rpartition("/")[0])
    removal = imagepaths.removal(path)
    if removal is not None:
        if not imagepaths.is_note(path):
            (tree.opaque if removal.is_opaque else tree.whiteouts).append(removal.path)
        return
    full = f"{tree.root}/{path}"
    before = tree.kinds.get(path)
    if before is Kind.FOLDER and entry.kind is Kind.FOLDER:
        tree.folders[path] = entry
        return
    if before is Kind.FOLDER:
        raise IntegrityError(f"a layer has both a folder and a {entry.kind.value} at {entry.name[:200]!r}")
    if before is not None:
        # As in tar, the last entry of a path wins. Not written over, because hard links to it may exist by now.
        os.unlink(full)  # noqa: PTH108
    tree.kinds[path] = entry.kind
    if entry.kind is Kind.FOLDER:
        os.mkdir(full, 0o700)  # noqa: PTH102
        tree.folders[path] = entry
    elif entry.kind is Kind.FILE:
        _write(tree, full, entry, source)
    elif entry.kind is Kind.LINK:
        _link(tree, full, entry)
    elif entry.kind is Kind.HARD_LINK:
        _hard_link(tree, path, entry)
    elif path.startswith("dev/"):
        tree.kinds[path] = None
    else:
        raise IntegrityError(f"a layer has a {entry.kind.value} at {entry.name[:200]!r}, which is not allowed")


def _parents(tree: _Tree, path: str) -> None:
    """Check that a path is a folder of this tar. A folder that the tar omits is created, readable for all."""
    if not path or tree.kinds.get(path) is Kind.FOLDER:
        return
    if path in tree.kinds:
        raise IntegrityError(f"a layer has an entry below {path[:200]!r}, which is not a folder in the layer")
    _parents(tree, path.rpartition("/")[0])
    os.mkdir(f"{tree.root}/{path}", 0o755)  # noqa: PTH102
    os.chmod(f"{tree.root}/{path}", 0o755)  # noqa: PTH101, S103 - whatever the umask
    if tree.shift is not None:
        os.chown(f"{tree.root}/{path}", host_id(0, tree.shift), host_id(0, tree.shift))
    tree.kinds[path] = Kind.FOLDER


def _write(tree: _Tree, full: str, entry: Entry, source: Source) -> None:
    descriptor = os.open(full, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        for piece in source.pieces(entry.size):
            view = memoryview(piece)
            while view:
                view = view[os.write(descriptor, view) :]
        if tree.shift is not None:
            os.fchown(descriptor, host_id(entry.uid, tree.shift), host_id(entry.gid, tree.shift))
        os.fchmod(descriptor, entry.mode & _MODES)
        os.utime(descriptor, (entry.mtime, entry.mtime))
    finally:
        os.close(descriptor)


def _link(tree: _Tree, full: str, entry: Entry) -> None:
    if not entry.target or "\0" in entry.target:
        raise IntegrityError(f"a layer has a link without a valid target at {entry.name[:200]!r}")
    os.symlink(entry.target, full)  # noqa: PTH211 - a plain string, as everywhere here
    _own(tree, full, entry)
    os.utime(full, (entry.mtime, entry.mtime), follow_symlinks=False)


def _hard_link(tree: _Tree, path: str, entry: Entry) -> None:
    target = plain_path(entry.target)
    kind = tree.kinds.get(target)
    if kind is None and target in tree.kinds:
        tree.kinds[path] = None  # a link to a device that was skipped
        return
    if target == path or kind not in (Kind.FILE, Kind.LINK, Kind.HARD_LINK):
        raise IntegrityError(
            f"a layer has a hard link {entry.name[:200]!r} to {entry.target[:200]!r}, which is not a file in the layer"
        )
    os.link(f"{tree.root}/{target}", f"{tree.root}/{path}", follow_symlinks=False)


def _own(tree: _Tree, full: str, entry: Entry) -> None:
    if tree.shift is not None:
        os.chown(full, host_id(entry.uid, tree.shift), host_id(entry.gid, tree.shift), follow_symlinks=False)


def _note_removed(tree: _Tree) -> bool:
    """Create overlayfs's whiteouts and opaque marks; return False if this file system or user cannot."""
    for path in tree.whiteouts:
        if path not in tree.kinds:
            try:
                # A character device with the number 0/0 is overlayfs's whiteout (overlayfs.rst).
                os.mknod(f"{tree.root}/{path}", stat.S_IFCHR, 0)
            except FileExistsError:
                continue
            except OSError:
                return False
    for path in tree.opaque:
        try:
            os.setxattr(f"{tree.root}/{path}", "user.overlay.opaque", b"y")
        except OSError:
            return False
        # Only root may write this one, and mounts with `userxattr` do not read it.
        with contextlib.suppress(OSError):
            os.setxattr(f"{tree.root}/{path}", "trusted.overlay.opaque", b"y")
    return True
