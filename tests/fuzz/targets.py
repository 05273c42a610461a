"""What is fuzzed: each target takes bytes, and raises only what the reader promises; everything else is a finding."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from envkit.ground.errors import EnvkitError, PayloadError
from envkit.image import zip_entries
from envkit.image.spec import sha256
from envkit.render import lint
from envkit.render.dockerfile import parse
from envkit.render.model import Rendered
from envkit.verify.payload import END_MARK, parse_document
from tests.support.file_images import read_folder
from tests.support.mutated_dockerfiles import dockerfile
from tests.support.wheels import Raw, raw_zip, wheel_entries

NONCE = "0123456789abcdef"
_MANIFEST = {
    "schemaVersion": 2,
    "mediaType": "application/vnd.oci.image.manifest.v1+json",
    "config": {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": "sha256:" + "0" * 64, "size": 2},
    "layers": [],
}
_CONFIG = {
    "architecture": "amd64",
    "os": "linux",
    "config": {"Env": ["A=b"]},
    "rootfs": {"type": "layers", "diff_ids": []},
}


def wheel(data: bytes) -> None:
    """The directory of a wheel: entries that lie apart, inside the file, under names that stay inside."""
    descriptor = os.memfd_create("wheel")
    try:
        os.write(descriptor, data)
        with contextlib.suppress(EnvkitError):
            for entry in zip_entries.entries(descriptor, "a.whl"):
                parts = entry.name.rstrip("/").split("/")
                assert not entry.name.startswith("/"), entry.name
                assert ".." not in parts, entry.name
                assert "\0" not in entry.name, entry.name
    finally:
        os.close(descriptor)


def oci(data: bytes) -> None:
    """The documents of a layout: the first byte says which of them the rest is."""
    which, body = data[:1], data[1:]
    config = body if which == b"c" else json.dumps(_CONFIG).encode()
    manifest = {**_MANIFEST, "config": {**_MANIFEST["config"], "digest": sha256(config), "size": len(config)}}  # type: ignore[dict-item]
    written = body if which == b"m" else json.dumps(manifest).encode()
    row = {"mediaType": _MANIFEST["mediaType"], "digest": sha256(written), "size": len(written)}
    index = body if which == b"i" else json.dumps({"schemaVersion": 2, "manifests": [row]}).encode()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        folder = Path(name)
        blobs = folder / "blobs" / "sha256"
        blobs.mkdir(parents=True)
        (folder / "oci-layout").write_bytes(body if which == b"v" else b'{"imageLayoutVersion": "1.0.0"}')
        (folder / "index.json").write_bytes(index)
        for blob in (config, written):
            (blobs / sha256(blob).removeprefix("sha256:")).write_bytes(blob)
        with contextlib.suppress(EnvkitError):
            image = read_folder(folder)
            assert all(layer.blob is not None and layer.blob.is_relative_to(folder) for layer in image.layers)


def payload(data: bytes) -> None:
    """What a container prints: a document whose strings are fit for a terminal, or a PayloadError."""
    with contextlib.suppress(PayloadError):
        document = parse_document(data + b"\n" + f"{END_MARK} {NONCE}".encode() + b"\n", NONCE)
        assert document["nonce"] == NONCE
        text = json.dumps(document, ensure_ascii=False)
        assert "\x1b" not in text
        assert "\u202e" not in text


def template(data: bytes) -> None:
    """A Dockerfile: the lint reads it, and judges the same with another comment on top."""
    text = data.decode("utf-8", "replace")
    made = Rendered(files={"Dockerfile": text.encode()}, build_image="", final_image="", syntax="buildkit")
    found = lint.check(made)
    assert all(0 <= item.line <= text.count("\n") + 1 for item in found)
    parsed = parse(text)
    for item in parsed.instructions:
        assert item.keyword.isascii()
        assert bool(item.fault) <= (not item.pairs)
        assert all(name and name.isprintable() for name, _ in item.pairs)
    if any(item.rule in lint.UNSAFE and item.severity == "error" for item in found):
        return
    # What passes sets no variable that loads code, whichever way its name is written.
    assert not {"LD_PRELOAD", "LD_AUDIT", "BASH_ENV"} & parsed.image.env.keys()


TARGETS: dict[str, Callable[[bytes], None]] = {"wheel": wheel, "oci": oci, "payload": payload, "template": template}


def seeds(name: str) -> list[bytes]:
    """Sound and nearly sound inputs of a target, to begin with."""
    return list(_SEEDS[name]())


def _wheels() -> list[bytes]:
    plain = wheel_entries({"demo/a.py": b"1\n"})
    more = [Raw(name="demo/b", data=b"x" * 99, zip64=True), Raw(name="demo/c/", described_after=True)]
    return [
        raw_zip(plain),
        raw_zip([*plain, *more]),
        raw_zip(plain, zip64=True),
        raw_zip(plain, comment=b"c"),
        raw_zip([]),
    ]


def _documents() -> list[bytes]:
    rows = [b"c" + json.dumps(_CONFIG).encode(), b"m" + json.dumps(_MANIFEST).encode()]
    return [*rows, b'i{"manifests": []}', b'v{"imageLayoutVersion": "1.0.0"}']


def _payloads() -> list[bytes]:
    document = {
        "schema": "envkit.observations/1",
        "nonce": NONCE,
        "checks": [],
        "env": {},
        "suite": "1",
        "started": 0.5,
    }
    return [
        json.dumps(document).encode(),
        b"noise\n" + json.dumps(document).encode(),
        b"{}",
        b'{"a": [1e3, -0, null, "\\u001b"]}',
    ]


def _templates() -> list[bytes]:
    return [dockerfile(seed).encode() for seed in range(20)]


_SEEDS: dict[str, Callable[[], list[bytes]]] = {
    "wheel": _wheels, "oci": _documents, "payload": _payloads, "template": _templates
}  # fmt: skip
