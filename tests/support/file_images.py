"""Make OCI layouts without an engine, from layers and their digests."""

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envkit.image import layout
from envkit.image.name import InLayout
from envkit.image.spec import Image


@dataclass(frozen=True, slots=True)
class Packed:
    """A layer's blob, compressed or not, and its diff ID."""

    data: bytes
    diff_id: str


def digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def packed(entries: Iterable[tuple[tarfile.TarInfo, bytes]], *, compress: bool = True) -> Packed:
    """Return a layer with these entries."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for entry, content in entries:
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    tar_bytes = buffer.getvalue()
    return Packed(gzip.compress(tar_bytes, 1) if compress else tar_bytes, digest(tar_bytes))


def entry(name: str, kind: bytes = tarfile.REGTYPE, *, target: str = "", mode: int = 0o644) -> tarfile.TarInfo:
    """Return a tar entry without content."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, target, mode
    return info


def write_layout(
    folder: Path, layers: Iterable[Packed], config: Mapping[str, Any] | None = None, *, tag: str | None = None
) -> Path:
    """Write an OCI layout of one image, or add another image to it, and return the folder."""
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True, exist_ok=True)

    def put(data: bytes, kind: str) -> dict[str, Any]:
        (blobs / hashlib.sha256(data).hexdigest()).write_bytes(data)
        return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": digest(data), "size": len(data)}

    rows = list(layers)
    configuration = {
        "architecture": "amd64",
        "os": "linux",
        "config": dict(config or {}),
        "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in rows]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": put(json.dumps(configuration).encode(), "config.v1+json"),
        "layers": [put(layer.data, "layer.v1.tar+gzip") for layer in rows],
    }
    listed = put(json.dumps(manifest).encode(), "manifest.v1+json")
    if tag:
        listed["annotations"] = {"org.opencontainers.image.ref.name": tag}
    index = folder / "index.json"
    before = json.loads(index.read_bytes())["manifests"] if index.exists() else []
    index.write_text(json.dumps({"schemaVersion": 2, "manifests": [*before, listed]}))
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return folder


def write_archive(path: Path, layers: Iterable[Packed], config: Mapping[str, Any], *, tag: str) -> Path:
    """Write an image as `docker save` did before its files were OCI layouts, and return the path."""
    rows = list(layers)
    rootfs = {"type": "layers", "diff_ids": [layer.diff_id for layer in rows]}
    configuration = {"architecture": "amd64", "os": "linux", "config": dict(config), "rootfs": rootfs}
    files = {f"{number}.tar": layer.data for number, layer in enumerate(rows)}
    manifest = [{"Config": "config.json", "RepoTags": [tag], "Layers": list(files)}]
    with tarfile.open(path, "w") as tar:
        for name, data in {
            **files,
            "config.json": json.dumps(configuration).encode(),
            "manifest.json": json.dumps(manifest).encode(),
        }.items():
            info = entry(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def read_folder(folder: Path, tag: str | None = None) -> Image:
    """Return the image of a layout's folder."""
    return layout.read_layout(InLayout(path=folder, tag=tag))
