"""The file tree that the layers of an image make together. Layers are read as streams; nothing is unpacked.

At each path, a container sees the entry of the topmost layer that has one, unless a higher layer hides it with a
whiteout of the path or of a parent, with an opaque folder, or with a file or link where lower layers have a folder.
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
    """The entry at a path. A hard link is represented as the file that it refers to."""

    kind: Kind
    mode: int
    uid: int = 0
    gid: int = 0
    size: int = 0  # bytes of a file
    target: str = ""  # of a symbolic link
    value: Any = None  # the result of `Interest.value` for a file


IMPLIED = Node(Kind.FOLDER, 0o755)
"""The node of a parent folder that no layer lists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interest:
    """Selects the paths of a layer to keep and the files to read. Paths have no leading slash."""

    keeps: Callable[[str], bool]
    reads: Callable[[str, int], bool]  # called with a kept path and its mode
    value: Callable[[str, bytes], Any] = lambda _path, data: data
    most: int = 64 << 20  # bytes; a larger file is kept without a value


@dataclass(slots=True)
class Changes:
    """The changes that one layer makes to those below it."""

    nodes: dict[str, Node] = field(default_factory=dict)  # the kept paths
    covered: set[str] = field(default_factory=set)  # all paths of the layer that are not folders
    folders: set[str] = field(default_factory=set)
    removed: set[str] = field(default_factory=set)  # paths of whiteouts, which remove all below them, too
    opaque: set[str] = field(default_factory=set)  # folders that hide their contents in lower layers
    lower: dict[str, str] = field(default_factory=dict)  # hard links to files of lower layers

    def hides(self, path: str, kind: Kind) -> bool:
        """Return whether the changes hide a lower layer's entry at a path."""
        # A folder replaces a lower file, but merges with a lower folder.
        if path in self.removed or path in self.covered or (kind is not Kind.FOLDER and path in self.folders):
            return True
        return any(above in self.removed or above in self.covered or above in self.opaque for above in parents(path))


class Tree:
    """The kept paths of merged layers.

    Args:
        nodes: the paths before the first layer.
        implied: whether to add parent folders that no layer lists; for trees that keep all paths.
    """

    def __init__(self, nodes: Mapping[str, Node] | None = None, *, implied: bool = False) -> None:
        self.nodes = dict(nodes or {})
        self._implied = implied

    def lay(self, changes: Changes) -> None:
        """Apply the changes of the next layer."""
        # Resolve hard links before anything is hidden: a layer can link to a lower file and remove the file's own path.
        linked = {path: self.nodes.get(target) for path, target in changes.lower.items()}
        # Whiteouts apply only to lower layers, so the layer's own paths are added after the removal, whatever their
        # order in the tar.
        self.nodes = {path: node for path, node in self.nodes.items() if not changes.hides(path, node.kind)}
        self.nodes |= changes.nodes | {path: node for path, node in linked.items() if node is not None}
        if self._implied:
            for path in changes.nodes:
                for above in parents(path):
                    if above:
                        self.nodes.setdefault(above, IMPLIED)

    def find(self, path: str) -> Node | None:
        """Return the node at an absolute path after following links; None if there is none."""
        parts, at, links = path.strip("/").split("/")[::-1], "", 0
        while parts:
            part = parts.pop()
            if part in ("", "."):
                continue
            if part == "..":
                # The parent of the folder that a link leads to, as in the kernel; `..` of the root is the root.
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
            parts += node.target.split("/")[::-1]
        return self.nodes[at] if at else IMPLIED


def scan(tar: Callable[[], AbstractContextManager[Source]], interest: Interest) -> Changes:
    """Read the changes of a layer.

    Args:
        tar: opens the layer's tar; called twice if a file that has to be read is a hard link.
        interest: selects the paths to keep.

    Raises:
        IntegrityError: the layer is not a valid tar, or an entry is not allowed in a layer.
    """
    changes, links = Changes(), dict[str, tuple[str, Node]]()
    with tar() as source:
        for entry in entries(source):
            path = clean(entry.name)
            if path and not _add_removal(changes, path):
                # The last entry of a path wins, as when tar unpacks it.
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
    """Return a normalized path of a tar, relative to the root and never above it; empty for the root itself."""
    return posixpath.normpath(f"/{name}").lstrip("/")


def parents(path: str) -> Iterator[str]:
    """Yield the parent folders of a path, nearest first; the last one is the root, an empty text."""
    while path := posixpath.dirname(path):
        yield path
    yield ""


def _add_removal(changes: Changes, path: str) -> bool:
    """Add the removal of a whiteout; return False for any other entry."""
    if imagepaths.is_note(path):
        return True
    removal = imagepaths.removal(path)
    target = path if removal is None else removal.path
    if imagepaths.is_reserved(target):
        # Engines disagree whether a path below such a name is a file or a whiteout.
        raise IntegrityError(f"a layer contains {path!r:.200}, below {imagepaths.RESERVED}", hint=_AGAIN)
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
    """Resolve hard links to the nodes of their targets."""
    again: dict[str, list[str]] = {}
    for path in filter(interest.keeps, links):
        target = _end(path, links)
        known = changes.nodes.get(target)
        # Hard links share the mode of the file. The link's own entry has it for files of lower layers.
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
    # A file comes before its hard links, and a tar is read once from start to end.
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
            f"a layer has a hard link {again[target][0][:200]!r} to {target[:200]!r}, which is not a file of the layer",
            hint=_AGAIN,
        )


def _end(path: str, links: Mapping[str, tuple[str, Node]]) -> str:
    """Return the final target of a hard link, which may lead through other hard links."""
    target = links[path][0]
    # The limit ends loops of links; `_resolve` then finds no file.
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
