"""Push images to a registry with its own protocol, without an engine. Layers are tar files."""

import gzip
import hashlib
import http.client
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.world.places import UnavailableError

_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
_CONFIG = "application/vnd.docker.container.image.v1+json"
_LAYER = "application/vnd.docker.image.rootfs.diff.tar.gzip"
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Layer:
    """A gzip-compressed layer: its file, digest, size in bytes, and diff ID (the digest of its tar)."""

    path: Path
    digest: str
    size: int
    diff_id: str


def compress(tar: Path, target: Path) -> Layer:
    """Compress a tar with gzip without a time stamp, so that equal content gives an equal digest."""
    inner = hashlib.sha256()
    with (
        tar.open("rb") as source,
        target.open("wb") as raw,
        gzip.GzipFile(filename="", mode="wb", fileobj=raw, compresslevel=3, mtime=0) as out,
    ):
        while chunk := source.read(_CHUNK):
            inner.update(chunk)
            out.write(chunk)
    with target.open("rb") as packed:
        outer = hashlib.file_digest(packed, "sha256").hexdigest()
    return Layer(target, f"sha256:{outer}", target.stat().st_size, f"sha256:{inner.hexdigest()}")


def push(
    registry: str,
    repository: str,
    tags: Sequence[str],
    layers: Sequence[Layer],
    *,
    env: Mapping[str, str] | None = None,
    command: Sequence[str] = ("bash",),
    created: str = "2025-01-01T00:00:00Z",
) -> str:
    """Push an image with each tag and return its manifest digest. Blobs that the registry has are skipped."""
    config = _encode(
        {
            "architecture": "amd64",
            "os": "linux",
            "created": created,
            "config": {"Env": [f"{name}={value}" for name, value in (env or {}).items()], "Cmd": list(command)},
            "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in layers]},
            "history": [{"created": created, "created_by": f"test world: {layer.path.name}"} for layer in layers],
        }
    )
    config_digest = f"sha256:{hashlib.sha256(config).hexdigest()}"
    connection = http.client.HTTPConnection(registry, timeout=120)
    try:
        for layer in layers:
            _put_blob(connection, repository, layer.digest, layer.path)
        _put_blob(connection, repository, config_digest, config)
        manifest = _encode(
            {
                "schemaVersion": 2,
                "mediaType": _MANIFEST,
                "config": {"mediaType": _CONFIG, "size": len(config), "digest": config_digest},
                "layers": [{"mediaType": _LAYER, "size": layer.size, "digest": layer.digest} for layer in layers],
            }
        )
        for tag in tags:
            path = f"/v2/{repository}/manifests/{tag}"
            _expect(connection, "PUT", path, manifest, {"Content-Type": _MANIFEST}, status=201)
    finally:
        connection.close()
    return f"sha256:{hashlib.sha256(manifest).hexdigest()}"


def tagged(registry: str, repository: str, tag: str) -> str | None:
    """Return the manifest digest of a tag, or None."""
    connection = http.client.HTTPConnection(registry, timeout=10)
    try:
        connection.request("HEAD", f"/v2/{repository}/manifests/{tag}", headers={"Accept": _MANIFEST})
        answer = connection.getresponse()
        answer.read()
        return answer.headers.get("Docker-Content-Digest") if answer.status == 200 else None
    finally:
        connection.close()


def _put_blob(connection: http.client.HTTPConnection, repository: str, digest: str, content: Path | bytes) -> None:
    connection.request("HEAD", f"/v2/{repository}/blobs/{digest}")
    answer = connection.getresponse()
    answer.read()
    if answer.status == 200:
        return
    location = _expect(connection, "POST", f"/v2/{repository}/blobs/uploads/", b"", {}, status=202)
    path = location.split("//", 1)[-1].split("/", 1)[-1] if location.startswith("http") else location.lstrip("/")
    path = f"/{path}{'&' if '?' in path else '?'}digest={digest}"
    size = content.stat().st_size if isinstance(content, Path) else len(content)
    headers = {"Content-Type": "application/octet-stream", "Content-Length": str(size)}
    if isinstance(content, Path):
        with content.open("rb") as body:
            _expect(connection, "PUT", path, body, headers, status=201)
    else:
        _expect(connection, "PUT", path, content, headers, status=201)


def _expect(
    connection: http.client.HTTPConnection, verb: str, path: str, body: Any, headers: Mapping[str, str], *, status: int
) -> str:
    """Send a request, check the response's status and return its Location."""
    connection.request(verb, path, body=body, headers=dict(headers))
    answer = connection.getresponse()
    text = answer.read().decode(errors="replace")
    if answer.status != status:
        raise UnavailableError(f"the registry answered {answer.status} to {verb} {path}: {text[:300]}")
    return answer.headers.get("Location", "")


def _encode(tree: object) -> bytes:
    return json.dumps(tree, sort_keys=True, separators=(",", ":")).encode()
