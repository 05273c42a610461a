"""Layers as one tree: what shows at a path, the folder that goes on top, and the stack made of hard links."""

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

_MOST_TEXT = 1 << 20  # bytes; passwd, group and os-release have thousands


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """Unpacked layers, bottom first."""

    layers: tuple[Unpacked, ...]

    def find(self, path: str) -> Path | None:
        """The file of the uppermost layer that shows at a path relative to the root; no link is followed."""
        parents = [os.fspath(parent) for parent in PurePosixPath(path).parents][-2::-1]  # top first, without the root
        for layer in reversed(self.layers):
            contents, full = layer.contents, layer.tree / path
            hidden = any(name in contents.whiteouts for name in (*parents, path))
            blocked = any(_kind(layer.tree / parent) not in (None, stat.S_IFDIR) for parent in parents)
            if not hidden and not blocked and _kind(full) is not None:
                return full
            if hidden or blocked or any(folder in contents.opaque for folder in ("", *parents)):
                return None
        return None

    def is_folder(self, path: str) -> bool:
        """Whether a folder, and no link to one, shows at a path."""
        entry = self.find(path)
        return entry is not None and _kind(entry) == stat.S_IFDIR

    def text(self, path: str) -> str:
        """A small file's text, empty where there is none."""
        file = self.find(path)
        if file is None or _kind(file) != stat.S_IFREG or file.lstat().st_size > _MOST_TEXT:
            return ""
        with contextlib.suppress(OSError):
            return file.read_text(errors="replace")
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Top:
    """What goes over an image: mount points and files that are not part of it. Paths are absolute."""

    folders: tuple[str, ...] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)


def make_top(folder: Path, stack: Stack, top: Top) -> None:
    """Write the uppermost folder.

    Every folder on the way to a mount point is a real one here, so that a link in the image leads no mount astray; it
    has the permissions and owner that it has in the image.
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
    """Return a path of an image as engines take it: from the root, and never above it, whatever `..` it has."""
    return os.path.normpath(f"/{path.lstrip('/')}")


def _folder(folder: Path, stack: Stack, path: str) -> None:
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


def link_stack(layers: Sequence[Unpacked], top: Path, target: Path) -> None:
    """The stack as a tree of its own, its files hard links to those of the layers: for where no overlay can be had."""
    target.mkdir(mode=0o755)
    _to_root(target)
    for layer in layers:
        for path in layer.contents.whiteouts:
            _clear(target, path)
        for path in layer.contents.opaque:
            if _real(target, path):
                for entry in (target / path).iterdir():
                    _clear(target, os.fspath(entry.relative_to(target)))
        _lay(layer.tree, target, skip=frozenset(layer.contents.whiteouts))
    _lay(top, target, skip=frozenset())


def _lay(source: Path, target: Path, *, skip: frozenset[str]) -> None:
    """Lay one tree over another, folders merged and everything else replaced."""
    waiting = [""]
    root = os.fspath(source)
    while waiting:
        folder = waiting.pop()
        with os.scandir(f"{root}/{folder}") as listing:
            for entry in listing:
                path = f"{folder}/{entry.name}" if folder else entry.name
                if path in skip:
                    continue
                full = target / path
                if entry.is_dir(follow_symlinks=False):
                    if _kind(full) != stat.S_IFDIR:
                        full.unlink(missing_ok=True)
                        full.mkdir()
                    _same(entry.stat(follow_symlinks=False), full)
                    waiting.append(path)
                    continue
                _put(entry.path, full)


def _put(source: str, full: Path) -> None:
    """Link a file to where it shows; its folder is one that was made here."""
    with contextlib.suppress(OSError):
        os.link(source, full, follow_symlinks=False)
        return
    # It replaces one of a layer below, which a copy must not be written into.
    if _kind(full) == stat.S_IFDIR:
        remove_tree(full)
    else:
        full.unlink(missing_ok=True)
    try:
        os.link(source, full, follow_symlinks=False)
    except OSError:  # too many links to one file, or another file system
        _copy(source, full)


def _copy(source: str, full: Path) -> None:
    """Copy a file or a link; a link may lead to a device or a pipe, which is not looked at."""
    if os.path.islink(source):  # noqa: PTH114 - a plain string
        full.symlink_to(os.readlink(source))  # noqa: PTH115
    else:
        shutil.copy2(source, full)
    if os.geteuid() == 0:
        status = os.lstat(source)
        os.chown(full, status.st_uid, status.st_gid, follow_symlinks=False)


def _same(status: os.stat_result, full: Path) -> None:
    full.chmod(stat.S_IMODE(status.st_mode) | stat.S_IRWXU)  # this process has still to fill it
    if os.geteuid() == 0:
        os.chown(full, status.st_uid, status.st_gid)


def _clear(target: Path, path: str) -> None:
    """Remove what is at a path, unless a link is on the way there."""
    if not _real(target, path.rpartition("/")[0]):
        return
    full = target / path
    kind = _kind(full)
    if kind == stat.S_IFDIR:
        if not remove_tree(full):
            raise OSError(errno.ENOTEMPTY, "what the image removed cannot be removed", str(full))
    elif kind is not None:
        full.unlink()


def _real(target: Path, path: str) -> bool:
    """Whether every part of a path is a folder and no link."""
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
