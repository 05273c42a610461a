"""Combine layers into one tree: look up paths, write the uppermost folder, and merge layers with hard links."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from envkit.ground.store import remove_tree
from envkit.run.rootless.layers import Unpacked
from envkit.run.rootless.owners import host_shift

_MOST_TEXT = 1 << 20  # bytes; passwd and group have a few thousand


@dataclass(frozen=True, slots=True, kw_only=True)
class LayeredTree:
    """Unpacked layers, bottom first."""

    layers: tuple[Unpacked, ...]

    def find(self, path: str) -> Path | None:
        """Return the file visible at a path relative to the root, without following links; None if there is none."""
        parents = [os.fspath(parent) for parent in PurePosixPath(path).parents][-2::-1]  # top first, without the root
        for layer in reversed(self.layers):
            contents, full = layer.contents, layer.tree / path
            # `unpack` leaves out whiteouts of paths that the layer has itself, so they hide only lower layers.
            hidden = any(name in contents.whiteouts for name in (*parents, path))
            blocked = any(_kind(layer.tree / parent) not in (None, stat.S_IFDIR) for parent in parents)
            if not hidden and not blocked and _kind(full) is not None:
                return full
            if hidden or blocked or any(folder in contents.opaque for folder in ("", *parents)):
                return None
        return None

    def is_folder(self, path: str) -> bool:
        """Return whether the path is a folder, not a link to one."""
        entry = self.find(path)
        return entry is not None and _kind(entry) == stat.S_IFDIR

    def text(self, path: str) -> str:
        """Return the text of a small regular file, or '' if there is none."""
        file = self.find(path)
        if file is None or _kind(file) != stat.S_IFREG or file.lstat().st_size > _MOST_TEXT:
            return ""
        with contextlib.suppress(OSError):
            return file.read_text(errors="replace")
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Top:
    """Mount points, files and links that are added to an image. Paths are absolute."""

    folders: tuple[str, ...] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)


def make_top(folder: Path, stack: LayeredTree, top: Top) -> None:
    """Write the uppermost folder of the stack.

    It has a real folder for each parent of a mount point, with the permissions and owner from the image, so that a link
    in the image cannot redirect a mount.
    """
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    _to_root(folder)
    for path in map(inside, top.folders):
        _folder(folder, stack, path)
    for path, content in ((inside(name), content) for name, content in top.files.items()):
        _folder(folder, stack, os.path.dirname(path))  # noqa: PTH120
        target = folder / path.lstrip("/")
        target.write_bytes(content)
        target.chmod(0o644)
        _to_root(target)
    for path, target_path in ((inside(name), target) for name, target in top.links.items()):
        _folder(folder, stack, os.path.dirname(path))  # noqa: PTH120
        link = folder / path.lstrip("/")
        if not link.is_symlink() and not link.exists():
            link.symlink_to(target_path)
            _to_root(link)


def inside(path: str) -> str:
    """Return a path in an image as engines resolve it: absolute, and with `..` never leading above the root."""
    return os.path.normpath(f"/{path.lstrip('/')}")


def _folder(folder: Path, stack: LayeredTree, path: str) -> None:
    full = folder
    for part in PurePosixPath(path).parts[1:]:
        full /= part
        if full.is_dir() and not full.is_symlink():
            continue
        full.mkdir()
        full.chmod(0o755)
        _to_root(full)
        below = stack.find(os.fspath(full.relative_to(folder)))
        if below is not None and _kind(below) == stat.S_IFDIR:
            status = below.lstat()
            full.chmod(stat.S_IMODE(status.st_mode))
            if os.geteuid() == 0:
                os.chown(full, status.st_uid, status.st_gid)


def _to_root(path: Path) -> None:
    """Give a file to the container's root."""
    if os.geteuid() == 0:
        os.chown(path, host_shift(), host_shift(), follow_symlinks=False)


def link_layers(layers: Sequence[Unpacked], top: Path, target: Path, *, keep_from: int | None = None) -> None:
    """Merge layers into one tree of hard links, for machines where no overlay can be mounted.

    With `keep_from`, called by root: the user and group with this ID can read what they could before, but write
    nothing. Files that they could write are copied, because a hard link has the permissions of the cached layer's file.
    """
    target.mkdir()
    target.chmod(0o755)  # whatever the umask
    _to_root(target)
    for layer in layers:
        # Before the layer's own files, which its whiteouts do not remove.
        for path in layer.contents.whiteouts:
            _clear(target, path)
        for path in layer.contents.opaque:
            if _real(target, path):
                for entry in (target / path).iterdir():
                    _clear(target, os.fspath(entry.relative_to(target)))
        _lay(layer.tree, target, skip=frozenset(layer.contents.whiteouts), keep_from=keep_from)
    _lay(top, target, skip=frozenset(), keep_from=keep_from)


def _lay(source: Path, target: Path, *, skip: frozenset[str], keep_from: int | None) -> None:
    """Put one tree on top of another: folders are merged, everything else is replaced."""
    waiting = [""]
    root = os.fspath(source)
    while waiting:
        folder = waiting.pop()
        with os.scandir(f"{root}/{folder}") as listing:
            for entry in listing:
                path = f"{folder}/{entry.name}" if folder else entry.name
                # The tree has overlayfs's device in place of each whiteout (`unpack`).
                if path in skip:
                    continue
                full = target / path
                if entry.is_dir(follow_symlinks=False):
                    if _kind(full) != stat.S_IFDIR:
                        full.unlink(missing_ok=True)
                        full.mkdir()
                    _copy_metadata(entry.stat(follow_symlinks=False), full)
                    if keep_from is not None:
                        _keep(full, keep_from)
                    waiting.append(path)
                    continue
                alone = (
                    keep_from is not None
                    and entry.is_file(follow_symlinks=False)
                    and _writes(keep_from, entry.stat(follow_symlinks=False))
                )
                _put(entry.path, full, linked=not alone)
                if alone and keep_from is not None:
                    _keep(full, keep_from)


def _writes(user: int, status: os.stat_result) -> bool:
    """Return whether the user or group with an ID may write to a file, or change its permissions."""
    return bool(status.st_mode & stat.S_IWOTH) or user in (status.st_uid, status.st_gid)


def _keep(path: Path, user: int) -> None:
    """Take the write permission of the user or group with an ID from a file. A group cannot change permissions."""
    status = path.stat()
    mode = stat.S_IMODE(status.st_mode)
    if status.st_uid == user:
        mode = (mode & ~stat.S_IRWXG) | (mode & stat.S_IRWXU) >> 3
        if os.geteuid() == 0:
            os.chown(path, host_shift(), user)
    path.chmod(mode & ~(stat.S_IWGRP | stat.S_IWOTH))


def _put(source: str, full: Path, *, linked: bool = True) -> None:
    """Put a file into the merged tree, as a hard link or as a copy."""
    with contextlib.suppress(OSError):
        if linked:
            os.link(source, full, follow_symlinks=False)
            return
    # Remove the file of a lower layer first: a copy must not be written into it.
    if _kind(full) == stat.S_IFDIR:
        remove_tree(full)
    else:
        full.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # too many links to the file, or another file system
        if linked:
            os.link(source, full, follow_symlinks=False)
            return
    _copy(source, full)


def _copy(source: str, full: Path) -> None:
    """Copy a file, or a link itself: its target may be a device or a pipe."""
    if os.path.islink(source):  # noqa: PTH114 - a plain string
        full.symlink_to(os.readlink(source))  # noqa: PTH115
    else:
        shutil.copy2(source, full)
    if os.geteuid() == 0:
        status = os.lstat(source)
        os.chown(full, status.st_uid, status.st_gid, follow_symlinks=False)


def _copy_metadata(status: os.stat_result, full: Path) -> None:
    full.chmod(stat.S_IMODE(status.st_mode) | stat.S_IRWXU)  # this process still has to fill it
    if os.geteuid() == 0:
        os.chown(full, status.st_uid, status.st_gid)


def _clear(target: Path, path: str) -> None:
    """Remove a path, unless one of its parents is a link."""
    if not _real(target, path.rpartition("/")[0]):
        return
    full = target / path
    kind = _kind(full)
    if kind == stat.S_IFDIR:
        if not remove_tree(full):
            raise OSError(errno.ENOTEMPTY, "a folder that the image deletes cannot be removed", str(full))
    elif kind is not None:
        full.unlink()


def _real(target: Path, path: str) -> bool:
    """Return whether every part of a path is a folder, not a link."""
    full = target
    for part in PurePosixPath(path).parts:
        full /= part
        if _kind(full) != stat.S_IFDIR:
            return False
    return True


def _kind(path: Path) -> int | None:
    try:
        return stat.S_IFMT(path.lstat().st_mode)
    except OSError:
        return None
