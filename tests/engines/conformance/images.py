"""What an image is, read from the archive or layout that holds it: configuration, layers and the whole file tree."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import subprocess
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from envkit.engines.model import BuiltImage

_OPAQUE, _WHITEOUT = ".wh..wh..opq", ".wh."
_NOTES = re.compile(
    r"opt/env/(?:bin/[^/]+|pyvenv\.cfg|conda-meta/[^/]+|lib/python[^/]+/site-packages/[^/]+\.dist-info/\w+)"
)
_LARGEST_NOTE = 1 << 20
# As the engine's own commands name an unset field.
_UNSET = {"User": "", "Env": [], "Entrypoint": [], "Cmd": [], "WorkingDir": "", "StopSignal": "", "Labels": {}}
_UNSET |= {"ExposedPorts": {}, "Volumes": {}}


@dataclass(frozen=True, slots=True)
class Node:
    """One path: a file has its contents' SHA-256, a link its target, a folder neither."""

    kind: str
    mode: int
    owner: tuple[int, int]
    content: str = ""
    note: bytes = field(default=b"", repr=False, compare=False)  # of small files that tell of an installation


@dataclass(frozen=True, slots=True)
class Read:
    """An image as it is stored."""

    id: str
    config: Mapping[str, Any]
    layers: tuple[tuple[str, Path], ...]  # digest of the tar, and the file; from the bottom up

    def runtime(self) -> dict[str, Any]:
        """What decides how it runs; variables by name."""
        found = {key: self.config.get(key) or unset for key, unset in _UNSET.items()}
        return found | {"Env": dict(row.split("=", 1) for row in found["Env"])}

    def tree(self) -> dict[str, Node]:
        """Every path of the image with what is there."""
        found: dict[str, Node] = {}
        for diff_id, path in self.layers:
            own: set[str] = set()
            for name, node in _members(diff_id, path):
                _lay(found, own, name, node)
        return found

    def holds(self, word: bytes) -> bool:
        """Whether a word is in the configuration, or in any layer's names or contents."""
        if word in json.dumps(self.config).encode():
            return True
        for _, path in self.layers:
            with _opened(path) as stream:
                before = b""
                while piece := stream.read(1 << 20):
                    if word in before + piece:
                        return True
                    before = piece[-len(word) :]
        return False


def read(built: BuiltImage, folder: Path) -> Read:
    """Read an image by its id or place; `folder` takes what has to be unpacked."""
    if built.place is not None:
        return _layout(Path(built.place.removeprefix("oci:")))
    folder.mkdir()
    argv = ["podman", "save", "--format", "docker-archive"] if built.engine == "podman" else ["docker", "save"]
    subprocess.run([*argv, "--output", str(folder / "image.tar"), built.id], check=True, capture_output=True)
    with tarfile.open(folder / "image.tar") as tar:
        tar.extractall(folder, filter="data")
    (folder / "image.tar").unlink()
    row = json.loads((folder / "manifest.json").read_bytes())[0]
    return _read((folder / row["Config"]).read_bytes(), [folder / name for name in row["Layers"]])


def _layout(folder: Path) -> Read:
    def blob(digest: str) -> Path:
        return folder / "blobs" / digest.replace(":", "/")

    rows = json.loads((folder / "index.json").read_bytes())["manifests"]
    manifest = json.loads(blob(rows[0]["digest"]).read_bytes())
    return _read(blob(manifest["config"]["digest"]).read_bytes(), [blob(one["digest"]) for one in manifest["layers"]])


def _read(text: bytes, layers: list[Path]) -> Read:
    tree = json.loads(text)
    ident = f"sha256:{hashlib.sha256(text).hexdigest()}"
    return Read(ident, tree["config"], tuple(zip(tree["rootfs"]["diff_ids"], layers, strict=True)))


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    """A layer's tar, whether it is compressed or not."""
    with path.open("rb") as plain:
        packed = plain.read(2) == b"\x1f\x8b"
    with gzip.open(path) if packed else path.open("rb") as stream:
        yield stream  # type: ignore[misc]


def _members(diff_id: str, path: Path) -> tuple[tuple[str, Node], ...]:
    """What a layer brings, in its order; layers that images share are read once."""
    known = _READ.get(diff_id)
    if known is None:
        with _opened(path) as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
            known = tuple((one.name.removeprefix("./").strip("/"), _node(tar, one)) for one in tar)
        _READ[diff_id] = known
    return known


_READ: dict[str, tuple[tuple[str, Node], ...]] = {}


def _lay(found: dict[str, Node], own: set[str], path: str, node: Node) -> None:
    """Put one member on what lies below its layer."""
    folder, _, name = path.rpartition("/")
    if name == _OPAQUE:
        _drop(found, folder, but=own)
    elif name.startswith(_WHITEOUT):
        hidden = f"{folder}/{name.removeprefix(_WHITEOUT)}".lstrip("/")
        found.pop(hidden, None)
        _drop(found, hidden, but=own)
    elif path:
        if found.get(path, node).kind == "folder" != node.kind:
            _drop(found, path, but=own)
        found[path] = found[node.content] if node.kind == "same" else node
        own.add(path)


def _drop(found: dict[str, Node], folder: str, *, but: set[str]) -> None:
    for path in [one for one in found if one.startswith(f"{folder}/") and one not in but]:
        del found[path]


def _node(tar: tarfile.TarFile, member: tarfile.TarInfo) -> Node:
    mode, owner = member.mode & 0o7777, (member.uid, member.gid)
    if member.islnk():
        return Node("same", mode, owner, member.linkname.removeprefix("./").strip("/"))
    if member.issym():
        return Node("link", 0o777, owner, member.linkname)
    if not member.isreg():
        return Node("folder" if member.isdir() else "device", mode, owner)
    stream = tar.extractfile(member)
    assert stream is not None
    if member.size <= _LARGEST_NOTE and _NOTES.fullmatch(member.name.removeprefix("./")):
        data = stream.read()
        return Node("file", mode, owner, hashlib.sha256(data).hexdigest(), data)
    return Node("file", mode, owner, hashlib.file_digest(stream, "sha256").hexdigest())  # type: ignore[arg-type]
