"""Read from an image's layers what diagnosis needs; the layers are streamed, not unpacked.

Layers are read bottom first and whiteouts are applied, so the result is what a container would see. Files with
credentials are recorded from every layer, because deleting them in a later layer does not hide them.
"""

from __future__ import annotations

import functools
import posixpath
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from envkit.ground.progress import Reporter, counted
from envkit.image.packages import CONDA, PYPI, named
from envkit.image.tarstream import Kind
from envkit.image.tree import Changes, Interest, Node, Tree, scan

if TYPE_CHECKING:
    from envkit.image.opening import Opened

_LIBRARY = re.compile(
    r"lib(?:cuda|cudart|cudnn\w{0,40}|cublas|cublasLt|cufft|curand|cusolver|cusparse|nccl|nvrtc|nvJitLink|gomp|iomp5)\.so"
    r"(?:\.[\d.]{1,24})?"
)
_SECRET = re.compile(r"(?:^|/)(?:\.netrc|\.pypirc|\.docker/config\.json|\.git-credentials|id_(?:rsa|ed25519|ecdsa))$")
_CONDARC = re.compile(r"(?:^|/)\.?condarc$")
_CACHES = {
    "conda package cache": re.compile(r"(?:^|/)pkgs/[^/]{1,200}(?:\.conda|\.tar\.bz2)$"),
    "pip cache": re.compile(r"(?:^|/)\.cache/(?:pip|uv)/"),
    # mirror.example.com_debian_dists_bookworm_InRelease, but not `lock` and `partial`, which always exist
    "apt lists": re.compile(r"^var/lib/apt/lists/[^/]{1,200}_"),
    "apt archives": re.compile(r"^var/cache/apt/archives/[^/]{1,200}\.deb$"),
}
_MOST_TEXT = 64 << 10  # bytes of a file that is read as text


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSize:
    """The size of a layer in bytes: uncompressed (`tar`) and as stored (`blob`)."""

    diff_id: str
    tar: int
    blob: int


@dataclass(slots=True)
class Contents:
    """The relevant files of an image; paths have no leading slash."""

    paths: dict[str, Node] = field(default_factory=dict)
    secrets: list[str] = field(default_factory=list)
    layers: list[LayerSize] = field(default_factory=list)

    def libraries(self, prefix: str) -> dict[str, Node]:
        """Return library files (no links, no package caches) whose name begins with `prefix`."""
        return {
            path: node
            for path, node in self.paths.items()
            if node.kind is Kind.FILE
            and posixpath.basename(path).startswith(prefix)
            and _LIBRARY.fullmatch(posixpath.basename(path))
            and "/pkgs/" not in f"/{path}"
        }

    def packages(self) -> dict[str, str]:
        """Return the versions of installed Python and conda packages by lowercase name; conda's `pytorch` is torch.

        Versions keep their local part, and a conda build for CPUs gets one: `2.5.1+cpu`.
        """
        versions: dict[str, str] = {}
        rows = [package for path in sorted(self.paths) if (package := named(path)) is not None]
        for package in rows:
            if package.kind == CONDA:
                name = {"pytorch": "torch"}.get(package.name, package.name)
                local = "+cpu" if name == "torch" and "cpu" in (package.build or "") else ""
                versions.setdefault(name.lower(), package.version + local)
        # Python packages from conda have dist-info too, and a wheel installed over them replaces it, so dist-info
        # shows what is imported.
        return versions | {row.name: row.version for row in rows if row.kind == PYPI}

    def caches(self) -> dict[str, int]:
        """Return the bytes of leftover caches by kind."""
        sizes = dict.fromkeys(_CACHES, 0)
        for path, node in self.paths.items():
            for name, pattern in _CACHES.items():
                if pattern.search(path):
                    sizes[name] += node.size
        return {name: size for name, size in sizes.items() if size}

    def condarcs(self) -> dict[str, str]:
        """Return the texts of conda's configuration files by path."""
        return {path: node.value for path, node in self.paths.items() if _CONDARC.search(path) and node.value}


def read_contents(opened: Opened, reporter: Reporter) -> Contents:
    """Read every layer once.

    Raises:
        EnvkitError: as `envkit.image.opening.Opened.tar`.
    """
    contents, tree = Contents(), Tree()
    interest = Interest(
        keeps=_is_relevant,
        reads=lambda path, _mode: bool(_CONDARC.search(path)),
        value=lambda _path, data: data.decode(errors="replace"),
        most=_MOST_TEXT,
    )
    reporter.step(f"read {counted(len(opened.layers), 'layer')}")
    for index, layer in enumerate(opened.layers):
        changes = scan(functools.partial(opened.tar, index), interest)
        _note_secrets(contents, changes)
        tree.lay(changes)
        contents.layers.append(
            LayerSize(diff_id=layer.diff_id, tar=opened.tar_sizes[index], blob=layer.descriptor.size)
        )
        reporter.advance(index + 1, len(opened.layers))
    contents.paths = tree.nodes
    return contents


def _note_secrets(contents: Contents, changes: Changes) -> None:
    for path, node in changes.nodes.items():
        if _SECRET.search(path) and node.kind is Kind.FILE and node.size and path not in contents.secrets:
            contents.secrets.append(path)


def _is_relevant(path: str) -> bool:
    if _LIBRARY.fullmatch(posixpath.basename(path)) or _SECRET.search(path) or _CONDARC.search(path):
        return True
    if path.endswith(("/METADATA", ".json")) and named(path) is not None:
        return True
    return any(pattern.search(path) for pattern in _CACHES.values())
