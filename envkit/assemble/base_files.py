"""The merged tree of a base image: its paths, and the contents of the few files that an image on top needs."""

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
_SET_IDS = 0o6000
_LARGEST = 64 << 20  # bytes of one kept file


class BaseFiles:
    """The paths of a root file system, without leading slash; bytes are kept of those that matter."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree

    def find(self, path: str) -> Node | None:
        """Return what an absolute path leads to, links followed; None where it leads to nothing."""
        return self._tree.find(path)

    def text(self, path: str) -> str:
        """Return the contents of a kept file, empty where there is none."""
        node = self.find(path)
        return node.value.decode(errors="surrogateescape") if node and node.value is not None else ""

    def packages(self) -> frozenset[str] | None:
        """Return names of installed Debian packages and of what they provide; None where dpkg keeps no list."""
        names = set()
        for path, node in self._tree.nodes.items():
            if DPKG.match(path) and node.value is not None:
                for package in debian(node.value):
                    names |= {package.name, *package.provides}
        return frozenset(names) if names else None

    def set_ids(self) -> dict[str, Node]:
        """Return files that run as another user or group than who runs them, and folders that give their group away."""
        kinds = (Kind.FILE, Kind.FOLDER)
        return {path: node for path, node in self._tree.nodes.items() if node.kind in kinds and node.mode & _SET_IDS}


def read(layers: Sequence[spec.Layer]) -> BaseFiles:
    """Return the paths that remain when the layers are laid over one another.

    Raises:
        EngineError: a file that has to be kept is too large.
        IntegrityError: a layer is damaged.
    """
    tree = Tree(implied=True)
    interest = Interest(keeps=lambda _path: True, reads=_is_read, most=_LARGEST)
    for layer in layers:
        # The digests were checked when the blob was fetched or made; the size shows a file that was cut since.
        blob_of(layer)
        try:
            changes = scan(functools.partial(_tar, layer), interest)
        except IntegrityError as error:
            raise IntegrityError(
                f"layer {layer.digest} of the base image cannot be read: {error.message}",
                hint="--base IMAGE, or another tag",
            ) from error
        for path, node in changes.nodes.items():
            if node.kind is Kind.FILE and node.value is None and _is_read(path, node.mode):
                raise EngineError(f"/{path} of the base image has {node.size} bytes", hint="--base with another image")
        tree.lay(changes)
    return BaseFiles(tree)


@contextmanager
def _tar(layer: spec.Layer) -> Iterator[Source]:
    with tar_bytes(layer, threading.Event(), verified=True) as stream:
        yield Source(stream)


def _is_read(path: str, mode: int) -> bool:
    """Whether a file's bytes are kept: what changes its user when run, and the lists of users and packages."""
    return bool(mode & _SET_IDS) or path in _KEPT or DPKG.match(path) is not None
