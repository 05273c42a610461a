"""Layers of an engine's image become blobs for a registry, the same ones every time."""

import gzip
import hashlib
import io
import json
import secrets
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from envkit.ground.errors import IntegrityError
from envkit.ground.progress import Silent
from envkit.image import spec, zstd
from envkit.image.archive import holds, read_archive
from envkit.image.name import InArchive
from envkit.image.spec import Image
from envkit.run import packing
from envkit.run.packing import Packer
from tests.support.file_images import Packed, digest, entry, packed

LARGE = packed([(entry("large"), secrets.token_bytes(packing.CHUNK) + bytes(2 * packing.CHUNK))], compress=False)
SMALL = packed([(entry("small"), b"text")], compress=False)


def archive(path: Path, layers: Iterable[Packed], extra: dict[str, bytes] | None = None) -> Image:
    """What `docker save` writes."""
    found = list(layers)
    config = json.dumps({"os": "linux", "rootfs": {"diff_ids": [one.diff_id for one in found]}}, indent=1).encode()
    name = f"{hashlib.sha256(config).hexdigest()}.json"
    listed: list[dict[str, Any]] = [{"Config": name, "Layers": [f"{n}/layer.tar" for n in range(len(found))]}]
    files = {f"{number}/layer.tar": one.data for number, one in enumerate(found)}
    files |= {name: config, "manifest.json": json.dumps(listed).encode(), **(extra or {})}
    with tarfile.open(path, "w") as tar:
        for one, data in files.items():
            member = tarfile.TarInfo(one)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return read_archive(InArchive(path=path))


def pack(found: Image, place: Path, *, heard: list[spec.Layer] | None = None) -> spec.Image:
    """The image packed without notes, in a folder of its own."""
    place.mkdir()
    return Packer(found, place).image(Silent(), (heard if heard is not None else []).append)


def test_the_configuration_stays_and_every_layer_is_a_blob(tmp_path: Path) -> None:
    found, heard = archive(tmp_path / "a.tar", (SMALL, LARGE, SMALL)), list[spec.Layer]()
    image = pack(found, tmp_path / "out", heard=heard)
    assert (image.id, image.config) == (found.id, found.config)
    tree = json.loads(image.manifest)
    assert tree["config"] == {"mediaType": spec.CONFIG, "digest": found.id, "size": len(found.config)}
    assert [row["digest"] for row in tree["layers"]] == [layer.digest for layer in image.layers]
    assert [layer.diff_id for layer in image.layers] == [SMALL.diff_id, LARGE.diff_id, SMALL.diff_id]
    assert heard == [image.layers[0], image.layers[1]]
    for layer, source in zip(image.layers, (SMALL, LARGE, SMALL), strict=True):
        assert layer.blob is not None
        data = layer.blob.read_bytes()
        assert (digest(data), len(data)) == (layer.digest, layer.descriptor.size)
        assert layer.descriptor.media_type == spec.LAYER_GZIP
        assert gzip.decompress(data) == source.data


@pytest.mark.parametrize("cores", [1, 3])
def test_the_blobs_do_not_depend_on_the_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, cores: int) -> None:
    found = archive(tmp_path / "a.tar", (LARGE,))
    first = pack(found, tmp_path / "first")
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    assert pack(found, tmp_path / "second").digest == first.digest


@pytest.mark.parametrize(
    ("data", "kind"),
    [(gzip.compress(SMALL.data), spec.LAYER_GZIP), (zstd.compress(SMALL.data, 3), spec.LAYER_ZSTD)],
    ids=["gzip", "zstd"],
)
def test_what_is_compressed_already_is_taken_over(tmp_path: Path, *, data: bytes, kind: str) -> None:
    found = archive(tmp_path / "a.tar", (Packed(data, SMALL.diff_id),))
    (layer,) = pack(found, tmp_path / "out").layers
    assert layer.blob is not None
    assert (layer.blob.read_bytes(), layer.descriptor.media_type) == (data, kind)


def test_a_layer_that_is_not_what_the_configuration_says(tmp_path: Path) -> None:
    found = archive(tmp_path / "a.tar", (Packed(SMALL.data, LARGE.diff_id),))
    with pytest.raises(IntegrityError, match=f"layer {LARGE.diff_id} unpacks to {SMALL.diff_id}"):
        pack(found, tmp_path / "out")


def test_what_was_compressed_before_is_named_and_not_made(tmp_path: Path) -> None:
    found, notes = archive(tmp_path / "a.tar", (SMALL, LARGE)), tmp_path / "notes"
    first, again = tmp_path / "first", tmp_path / "again"
    first.mkdir()
    again.mkdir()
    made = Packer(found, first, notes).image(Silent(), lambda _layer: None)
    packer, heard = Packer(found, again, notes), list[spec.Layer]()
    image = packer.image(Silent(), heard.append)
    assert (image.manifest, image.config) == (made.manifest, made.config)
    assert [layer.blob for layer in image.layers] == [None, None]
    assert heard == list(image.layers)
    assert not list(again.iterdir())
    path = packer.blob(image.layers[0])
    assert digest(path.read_bytes()) == image.layers[0].digest
    assert packer.blob(image.layers[0]) == path


@pytest.mark.parametrize("note", [f"sha256:{'0' * 64} 5\n", "sha256:0 5\n", f"sha256:{'0' * 64} x\n", "", "\xff"])
def test_a_wrong_note_is_found_out(tmp_path: Path, *, note: str) -> None:
    found, notes = archive(tmp_path / "a.tar", (SMALL,)), tmp_path / "notes"
    for name in ("first", "again", "last"):
        (tmp_path / name).mkdir()
    made = Packer(found, tmp_path / "first", notes).image(Silent(), lambda _layer: None)
    (path,) = notes.iterdir()
    path.write_bytes(note.encode("latin-1"))
    packer = Packer(found, tmp_path / "again", notes)
    image = packer.image(Silent(), lambda _layer: None)
    if image.layers[0].blob is not None:
        assert image.digest == made.digest
        return
    with pytest.raises(IntegrityError) as caught:
        packer.blob(image.layers[0])
    assert caught.value.message == (
        f"layer {SMALL.diff_id} was compressed to sha256:{'0' * 64} before and to {made.layers[0].digest} now"
    )
    assert Packer(found, tmp_path / "last", notes).image(Silent(), lambda _layer: None).digest == made.digest


def test_an_archive_tells_whether_it_holds_a_manifest(tmp_path: Path) -> None:
    manifest = b'{"schemaVersion": 2}'
    name = f"blobs/sha256/{digest(manifest).removeprefix('sha256:')}"
    other = f"blobs/sha256/{'0' * 64}"
    archive(tmp_path / "a.tar", (SMALL,), {name: manifest, other: b"other"})
    assert holds(tmp_path / "a.tar", digest(manifest))
    assert not holds(tmp_path / "a.tar", f"sha256:{'0' * 64}")
    assert not holds(tmp_path / "a.tar", f"sha256:{'1' * 64}")
