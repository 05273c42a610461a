"""The merged file tree of a base image: all paths, and the contents of the few files that the top layer needs."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from envkit.ground.errors import EngineError, IntegrityError
from envkit.image import spec
from envkit.image.blobs import tar_bytes
from envkit.image.layout import blob_of
from envkit.image.packages import DPKG, debian
from envkit.image.tarstream import Kind, Source
from envkit.image.tree import Interest, Node, Tree, scan

_KEPT = ("etc/passwd", "etc/group")
SET_IDS = 0o6000  # setuid and setgid
_LARGEST = 64 << 20  # bytes of one kept file


class BaseFiles:
    """The paths of a root file system, without a leading slash, and the contents of the files that matter."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree

    def find(self, path: str) -> Node | None:
        """Return the node at an absolute path after following links; None if nothing is there."""
        return self._tree.find(path)

    def text(self, path: str) -> str:
        """Return the contents of a kept file; empty if there is none."""
        node = self.find(path)
        # `top_layer` encodes it the same way, so bytes that are not UTF-8 are preserved.
        return node.value.decode(errors="surrogateescape") if node and node.value is not None else ""

    def packages(self) -> frozenset[str] | None:
        """Return the names of installed Debian packages and of what they provide; None if dpkg has no list."""
        names = set()
        for path, node in self._tree.nodes.items():
            if DPKG.match(path) and node.value is not None:
                for package in debian(node.value):
                    names |= {package.name, *package.provides}
        return frozenset(names) if names else None

    def set_ids(self) -> dict[str, Node]:
        """Return the setuid and setgid files, and the setgid folders, by path."""
        kinds = (Kind.FILE, Kind.FOLDER)
        return {path: node for path, node in self._tree.nodes.items() if node.kind in kinds and node.mode & SET_IDS}


def read(layers: Sequence[spec.Layer]) -> BaseFiles:
    """Return the file tree that the layers make together.

    Raises:
        EngineError: a file whose contents are needed is too large.
        IntegrityError: a layer is damaged.
    """
    tree = Tree(implied=True)
    interest = Interest(keeps=lambda _path: True, reads=_is_read, most=_LARGEST)
    for layer in layers:
        # Digests were checked when the blob was fetched or made. The size shows whether the file was truncated since.
        blob_of(layer)
        try:
            changes = scan(functools.partial(_tar, layer), interest)
        except IntegrityError as error:
            raise IntegrityError(
                f"layer {layer.digest} of the base image cannot be read: {error.message}",
                hint="use --base with another image or tag",
            ) from error
        for path, node in changes.nodes.items():
            if node.kind is Kind.FILE and node.value is None and _is_read(path, node.mode):
                raise EngineError(
                    f"/{path} of the base image is too large: {node.size} bytes", hint="use --base with another image"
                )
        tree.lay(changes)
    return BaseFiles(tree)


@contextmanager
def _tar(layer: spec.Layer) -> Iterator[Source]:
    with tar_bytes(layer, threading.Event(), verified=True) as stream:
        yield Source(stream)


def _is_read(path: str, mode: int) -> bool:
    """Whether the contents of a file are kept: setuid and setgid files, and the lists of users and packages."""
    # The top layer writes setuid and setgid files again without these bits, so it needs their contents.
    return bool(mode & SET_IDS) or path in _KEPT or DPKG.match(path) is not None
