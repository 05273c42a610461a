"""What is in an image's layers, as far as diagnosis needs it: read as streams, nothing is unpacked.

Layers are read bottom first and what a later one removes is taken out again, so the answer is what a container would
see. Files that hold credentials are noted in whichever layer they are, because removing them later hides nothing.
"""

from __future__ import annotations

import posixpath
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

from envkit.ground.progress import Reporter, counted
from envkit.image.blobs import tar_bytes
from envkit.image.spec import Image
from envkit.image.tarstream import Entry, Kind, Source, entries

_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"
_LIBRARY = re.compile(
    r"lib(?:cuda|cudart|cudnn\w{0,40}|cublas|cublasLt|cufft|curand|cusolver|cusparse|nccl|nvrtc|nvJitLink|gomp|iomp5)\.so"
    r"(?:\.[\d.]{1,24})?"
)
_DIST = re.compile(
    r"(?:^|/)(?:site|dist)-packages/(?P<name>[A-Za-z0-9_.]{1,80})-(?P<version>[^/-]{1,60})\.dist-info/METADATA$"
)
_CONDA = re.compile(r"(?:^|/)conda-meta/(?P<name>.{1,80})-(?P<version>[^-/]{1,60})-(?P<build>[^-/]{1,120})\.json$")
_SECRET = re.compile(r"(?:^|/)(?:\.netrc|\.pypirc|\.docker/config\.json|\.git-credentials|id_(?:rsa|ed25519|ecdsa))$")
_CONDARC = re.compile(r"(?:^|/)\.?condarc$")
_CACHES = {
    "conda package cache": re.compile(r"(?:^|/)pkgs/[^/]{1,200}(?:\.conda|\.tar\.bz2)$"),
    "pip cache": re.compile(r"(?:^|/)\.cache/(?:pip|uv)/"),
    "apt lists": re.compile(r"^var/lib/apt/lists/[^/]{1,200}_"),
    "apt archives": re.compile(r"^var/cache/apt/archives/[^/]{1,200}\.deb$"),
}
_MOST_TEXT = 64 << 10


@dataclass(frozen=True, slots=True)
class Seen:
    """One path that matters; `text` is set for small files of configuration."""

    kind: Kind
    size: int
    target: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSize:
    """A layer's tar and its blob, in bytes."""

    diff_id: str
    tar: int
    blob: int


@dataclass(slots=True)
class Contents:
    """What was found; paths are without a leading slash."""

    paths: dict[str, Seen] = field(default_factory=dict)
    secrets: list[str] = field(default_factory=list)
    layers: list[LayerSize] = field(default_factory=list)

    def libraries(self, prefix: str) -> dict[str, Seen]:
        """Library files (no links, no package caches) whose name begins with `prefix`."""
        return {
            path: one
            for path, one in self.paths.items()
            if one.kind in (Kind.FILE, Kind.HARD_LINK)
            and posixpath.basename(path).startswith(prefix)
            and _LIBRARY.fullmatch(posixpath.basename(path))
            and "/pkgs/" not in f"/{path}"
        }

    def packages(self) -> dict[str, str]:
        """Installed Python and conda packages by name, in small letters; conda's `pytorch` is torch here.

        Versions keep their local part, and a conda build for CPUs gets one: `2.5.1+cpu`.
        """
        found: dict[str, str] = {}
        for path in sorted(self.paths):
            if match := _CONDA.search(path):
                name = {"pytorch": "torch"}.get(match["name"], match["name"])
                local = "+cpu" if name == "torch" and "cpu" in match["build"] else ""
                found.setdefault(name.lower(), match["version"] + local)
        for path in sorted(self.paths):
            if match := _DIST.search(path):
                found[match["name"].lower().replace("_", "-")] = match["version"]
        return found

    def caches(self) -> dict[str, int]:
        """Bytes of left-over caches by kind."""
        sizes = dict.fromkeys(_CACHES, 0)
        for path, one in self.paths.items():
            for name, pattern in _CACHES.items():
                if pattern.search(path):
                    sizes[name] += one.size
        return {name: size for name, size in sizes.items() if size}

    def condarcs(self) -> dict[str, str]:
        """Texts of conda's configuration."""
        return {path: one.text for path, one in self.paths.items() if _CONDARC.search(path) and one.text}


def read_contents(image: Image, reporter: Reporter) -> Contents:
    """Go through every layer once.

    Raises:
        EngineError: a blob cannot be read.
        IntegrityError: a blob or a layer is not what its digest says.
        SurroundingsError: a layer is compressed with zstd, and that program is missing.
    """
    found, stop = Contents(), threading.Event()
    reporter.step(f"reading {counted(len(image.layers), 'layer')}")
    for place, layer in enumerate(image.layers):
        with tar_bytes(layer, stop) as stream:
            source = Source(stream)
            _apply(found, list(_relevant(source)))
        found.layers.append(LayerSize(diff_id=layer.diff_id, tar=stream.size, blob=layer.descriptor.size))
        reporter.advance(place + 1, len(image.layers))
    return found


def _relevant(source: Source) -> Iterator[tuple[str, Seen]]:
    for entry in entries(source):
        name = posixpath.normpath(entry.name).lstrip("/")
        base = posixpath.basename(name)
        if base.startswith(_WHITEOUT) or _matters(name, base):
            yield name, Seen(entry.kind, entry.size, entry.target, _text(name, entry, source))


def _matters(name: str, base: str) -> bool:
    if _LIBRARY.fullmatch(base) or _SECRET.search(name) or _CONDARC.search(name):
        return True
    return bool(_DIST.search(name) or _CONDA.search(name) or any(one.search(name) for one in _CACHES.values()))


def _text(name: str, entry: Entry, source: Source) -> str:
    if entry.kind is Kind.FILE and entry.size <= _MOST_TEXT and _CONDARC.search(name):
        return source.exactly(entry.size).decode(errors="replace")
    return ""


def _apply(found: Contents, layer: list[tuple[str, Seen]]) -> None:
    """Take out what the layer removes, then put in what it has."""
    for name, _ in layer:
        folder, base = posixpath.split(name)
        if base == _OPAQUE:
            _remove(found, folder, itself=False)
        elif base.startswith(_WHITEOUT):
            _remove(found, posixpath.join(folder, base.removeprefix(_WHITEOUT)), itself=True)
    for name, seen in layer:
        if not posixpath.basename(name).startswith(_WHITEOUT):
            found.paths[name] = seen
            if _SECRET.search(name) and seen.kind is Kind.FILE and seen.size and name not in found.secrets:
                found.secrets.append(name)


def _remove(found: Contents, name: str, *, itself: bool) -> None:
    below = f"{name}/" if name else ""
    for path in [one for one in found.paths if one.startswith(below) or (itself and one == name)]:
        del found.paths[path]
