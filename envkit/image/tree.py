"""The file tree that the layers of an image make together, read as streams: nothing is unpacked.

A container sees the topmost layer that has something at a path, unless a layer in between hides it: by a whiteout of
the path or of a folder above it, by an opaque folder, or by a file or link where lower layers have a folder.
Source: OCI image specification 1.1, "Image Layer Filesystem Changeset".
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from envkit.ground import imagepaths
from envkit.ground.errors import IntegrityError
from envkit.image.tarstream import Entry, Kind, Source, entries

_MOST_LINKS = 40  # as in the kernel
_AGAIN = "build the image again, and push it"


@dataclass(frozen=True, slots=True)
class Node:
    """What is at a path. A hard link is the file that it leads to."""

    kind: Kind
    mode: int
    uid: int = 0
    gid: int = 0
    size: int = 0  # bytes of a file
    target: str = ""  # of a symbolic link
    value: Any = None  # what `Interest.value` made of a file's bytes


IMPLIED = Node(Kind.FOLDER, 0o755)
"""A folder that no layer lists, because something lies below it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interest:
    """Which paths of a layer are kept, and of which files the bytes. Paths have no leading slash."""

    keeps: Callable[[str], bool]
    reads: Callable[[str, int], bool]  # a kept path and its mode
    value: Callable[[str, bytes], Any] = lambda _path, data: data
    most: int = 64 << 20  # bytes; a larger file is kept without a value


@dataclass(slots=True)
class Changes:
    """What one layer puts over those below it."""

    nodes: dict[str, Node] = field(default_factory=dict)  # what is kept
    covered: set[str] = field(default_factory=set)  # every path at which the layer has something other than a folder
    folders: set[str] = field(default_factory=set)
    removed: set[str] = field(default_factory=set)  # by a whiteout: the path and all below it
    opaque: set[str] = field(default_factory=set)  # folders of which nothing below shows
    lower: dict[str, str] = field(default_factory=dict)  # hard links to files that the layer does not have

    def hides(self, path: str, kind: Kind) -> bool:
        """Whether nothing shows of what a lower layer has at a path."""
        if path in self.removed or path in self.covered or (kind is not Kind.FOLDER and path in self.folders):
            return True
        return any(above in self.removed or above in self.covered or above in self.opaque for above in parents(path))


class Tree:
    """The layers that were laid over each other, as far as their paths were kept.

    Args:
        nodes: what is there before the first layer.
        implied: whether folders that no layer lists are added, for trees of which every path is kept.
    """

    def __init__(self, nodes: Mapping[str, Node] | None = None, *, implied: bool = False) -> None:
        self.nodes = dict(nodes or {})
        self._implied = implied

    def lay(self, changes: Changes) -> None:
        """Lay the next layer over those before."""
        # Before anything is hidden: a layer may link to a lower file and remove that file's own name.
        linked = {path: self.nodes.get(target) for path, target in changes.lower.items()}
        self.nodes = {path: node for path, node in self.nodes.items() if not changes.hides(path, node.kind)}
        self.nodes |= changes.nodes | {path: node for path, node in linked.items() if node is not None}
        if self._implied:
            for path in changes.nodes:
                for above in parents(path):
                    if above:
                        self.nodes.setdefault(above, IMPLIED)

    def find(self, path: str) -> Node | None:
        """What an absolute path leads to, links followed; None where it leads to nothing."""
        waiting, at, links = path.strip("/").split("/")[::-1], "", 0
        while waiting:
            part = waiting.pop()
            if part in ("", "."):
                continue
            if part == "..":
                at = posixpath.dirname(at)
                continue
            full_path = f"{at}/{part}" if at else part
            node = self.nodes.get(full_path)
            if node is None:
                return None
            if node.kind is not Kind.LINK:
                at = full_path
                continue
            links += 1
            if links > _MOST_LINKS:
                return None
            at = "" if node.target.startswith("/") else at
            waiting += node.target.split("/")[::-1]
        return self.nodes[at] if at else IMPLIED


def scan(tar: Callable[[], AbstractContextManager[Source]], interest: Interest) -> Changes:
    """Read what a layer changes.

    Args:
        tar: opens the layer's tar; once more where a file whose bytes matter is a hard link to another one.
        interest: what is kept.

    Raises:
        IntegrityError: the bytes are not a tar archive, or an entry is not valid in a layer.
    """
    changes, links = Changes(), dict[str, tuple[str, Node]]()
    with tar() as source:
        for entry in entries(source):
            path = clean(entry.name)
            if path and not _note_removal(changes, path):
                # A path that comes twice is what its last entry says, as when tar unpacks it.
                changes.nodes.pop(path, None)
                links.pop(path, None)
                (changes.folders if entry.kind is Kind.FOLDER else changes.covered).add(path)
                if entry.kind is Kind.HARD_LINK:
                    links[path] = clean(entry.target), _node(entry, None)
                elif interest.keeps(path):
                    changes.nodes[path] = _node(entry, _value(path, entry, source, interest))
    _resolve(changes, links, tar, interest)
    return changes


def clean(name: str) -> str:
    """Return a path of a tar relative to the root and never above it; empty for the root itself."""
    return posixpath.normpath(f"/{name}").lstrip("/")


def parents(path: str) -> Iterator[str]:
    """Yield the folders above a path, the nearest first and the root, which is empty, last."""
    while path := posixpath.dirname(path):
        yield path
    yield ""


def _note_removal(changes: Changes, path: str) -> bool:
    """Take in what a whiteout removes; False where the entry is none."""
    if imagepaths.is_note(path):
        return True
    removal = imagepaths.removal(path)
    where = path if removal is None else removal.path
    if imagepaths.is_reserved(where):
        # A file below such a name is one for some readers and removes others for the rest.
        raise IntegrityError(f"a layer holds {path!r:.200}, below {imagepaths.RESERVED}", hint=_AGAIN)
    if removal is None:
        return False
    (changes.opaque if removal.is_opaque else changes.removed).add(removal.path)
    return True


def _resolve(
    changes: Changes,
    links: Mapping[str, tuple[str, Node]],
    tar: Callable[[], AbstractContextManager[Source]],
    interest: Interest,
) -> None:
    """Give hard links what the files have that they lead to."""
    again: dict[str, list[str]] = {}
    for path in filter(interest.keeps, links):
        target = _end(path, links)
        known = changes.nodes.get(target)
        if interest.reads(path, (known or links[path][1]).mode):
            again.setdefault(target, []).append(path)
        elif known is not None:
            changes.nodes[path] = known
        else:
            changes.nodes[path] = links[path][1]
            if target not in changes.covered:
                changes.lower[path] = target
    if not again:
        return
    with tar() as source:
        for entry in entries(source):
            target = clean(entry.name)
            if target in again and entry.kind is not Kind.HARD_LINK:
                data = _bytes(entry, source, interest)
                for path in again.pop(target):
                    value = None if data is None else interest.value(path, data)
                    changes.nodes[path] = _node(entry, value)
    if again:
        target = min(again)
        raise IntegrityError(
            f"a layer has {again[target][0][:200]!r} linked to {target[:200]!r}, no file of it", hint=_AGAIN
        )


def _end(path: str, links: Mapping[str, tuple[str, Node]]) -> str:
    """The file that a hard link leads to, by way of others where it does."""
    target = links[path][0]
    # Links that lead to each other end here, and `_resolve` finds no file.
    for _ in range(len(links)):
        if target not in links:
            break
        target = links[target][0]
    return target


def _value(path: str, entry: Entry, source: Source, interest: Interest) -> Any:
    data = _bytes(entry, source, interest) if interest.reads(path, entry.mode) else None
    return None if data is None else interest.value(path, data)


def _bytes(entry: Entry, source: Source, interest: Interest) -> bytes | None:
    return source.exactly(entry.size) if entry.kind is Kind.FILE and entry.size <= interest.most else None


def _node(entry: Entry, value: Any) -> Node:
    kind = Kind.FILE if entry.kind is Kind.HARD_LINK else entry.kind
    return Node(kind, entry.mode, entry.uid, entry.gid, entry.size, entry.target if kind is Kind.LINK else "", value)
