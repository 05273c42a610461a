"""OCI image layouts on disk."""

import fcntl
import hashlib
import json
import os
from pathlib import Path

import pytest

from envkit.ground.errors import EngineError, EnvironmentProblem, IntegrityError, UsageError
from envkit.image import layout, spec
from envkit.image.layout import write_layout
from tests.support.file_images import read_folder

RUNTIME = spec.Runtime(env=(), user="0:0", workdir="/", entrypoint=(), cmd=("sh",))


def image_of(folder: Path, *contents: bytes) -> spec.Image:
    layers = []
    for data in contents:
        digest = hashlib.sha256(data).hexdigest()
        (folder / digest).write_bytes(data)
        descriptor = spec.Descriptor(media_type=spec.LAYER_GZIP, digest=f"sha256:{digest}", size=len(data))
        layers.append(spec.Layer(descriptor=descriptor, diff_id=f"sha256:{digest}", made_by="it", blob=folder / digest))
    return spec.image(spec.Base(name=""), layers, RUNTIME, {}, "linux-64")


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    (tmp_path / "store").mkdir()
    return tmp_path / "store"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "place").mkdir()
    return tmp_path / "place" / "out"


def test_what_is_written_is_read(store: Path, out: Path) -> None:
    image = image_of(store, b"one", b"two", b"one")
    write_layout(image, out, "1.0")
    found = read_folder(out)
    assert (found.manifest, found.config) == (image.manifest, image.config)
    assert [layer.digest for layer in found.layers] == [layer.digest for layer in image.layers]
    assert read_folder(out, "1.0") == found
    assert set(tree(out)) == {"oci-layout", "index.json"} | {
        f"blobs/sha256/{digest.partition(':')[2]}"
        for digest in (image.digest, image.id, image.layers[0].digest, image.layers[1].digest)
    }
    assert [path.name for path in out.parent.iterdir()] == ["out"]


def test_blobs_are_links(store: Path, out: Path) -> None:
    image = image_of(store, b"one")
    write_layout(image, out)
    blob = image.layers[0].blob
    assert blob is not None
    assert (out / "blobs" / "sha256" / blob.name).samefile(blob)


@pytest.mark.parametrize("swap", [True, False])
def test_an_older_layout_is_replaced(store: Path, out: Path, monkeypatch: pytest.MonkeyPatch, *, swap: bool) -> None:
    if not swap:
        monkeypatch.setattr(layout, "_exchange", lambda *_: False)
    write_layout(image_of(store, b"old"), out)
    new = image_of(store, b"new")
    write_layout(new, out)
    assert read_folder(out).digest == new.digest
    assert [path.name for path in out.parent.iterdir()] == ["out"]


def test_a_failure_leaves_the_older_layout(store: Path, out: Path) -> None:
    write_layout(image_of(store, b"old"), out)
    before = tree(out)
    broken = image_of(store, b"new")
    assert broken.layers[0].blob is not None
    broken.layers[0].blob.write_bytes(b"longer than before")
    with pytest.raises(IntegrityError, match="has 18 bytes at"):
        write_layout(broken, out)
    assert tree(out) == before
    assert [path.name for path in out.parent.iterdir()] == ["out"]


def test_a_full_disk_leaves_the_older_layout(store: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_layout(image_of(store, b"old"), out)
    before = tree(out)

    def link(target: Path, _: Path) -> None:
        with target.open("xb"), Path("/dev/full").open("wb", buffering=0) as full:
            full.write(b"x")

    monkeypatch.setattr(Path, "hardlink_to", link)
    with pytest.raises(EnvironmentProblem) as caught:
        write_layout(image_of(store, b"new"), out)
    assert caught.value.message.startswith(f"disk full on {out} (")
    assert tree(out) == before
    assert [path.name for path in out.parent.iterdir()] == ["out"]


def test_leftovers_of_dead_runs_go_and_those_of_living_ones_stay(store: Path, out: Path) -> None:
    for name in ("dead", "alive"):
        (out.parent / f".out.{name}.tmp" / "blobs").mkdir(parents=True)
    lock = os.open(out.parent / ".out.alive.tmp", os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        write_layout(image_of(store, b"one"), out)
    finally:
        os.close(lock)
    assert sorted(path.name for path in out.parent.iterdir()) == [".out.alive.tmp", "out"]


def test_a_foreign_folder_is_not_replaced(store: Path, out: Path) -> None:
    out.mkdir()
    image = image_of(store, b"one")
    write_layout(image, out)  # an empty folder may be taken
    (out / "thesis.tex").write_text("years of work")
    with pytest.raises(UsageError, match="contains more than an OCI image layout"):
        write_layout(image, out)
    with pytest.raises(UsageError, match="is not a folder"):
        write_layout(image, out / "thesis.tex")


def test_a_layout_of_several_images_is_not_replaced(store: Path, out: Path) -> None:
    write_layout(image_of(store, b"one"), out)
    (out / "index.json").write_text('{"manifests": [{}, {}]}')
    with pytest.raises(UsageError, match="has 2 images, which would be overwritten"):
        write_layout(image_of(store, b"two"), out)


def test_a_layer_that_was_not_fetched(out: Path) -> None:
    descriptor = spec.Descriptor(media_type=spec.LAYER_GZIP, digest="sha256:1", size=1)
    layer = spec.Layer(descriptor=descriptor, diff_id="sha256:1", made_by="it", origin="registry.example.com/a")
    image = spec.image(spec.Base(name=""), (layer,), RUNTIME, {}, "linux-64")
    with pytest.raises(EngineError, match=r"layer sha256:1 is only in registry\.example\.com/a"):
        write_layout(image, out)


@pytest.mark.parametrize("which", ["manifest", "config", "layer"])
def test_damage_is_seen_when_it_is_read(store: Path, out: Path, which: str) -> None:
    image = image_of(store, b"one")
    write_layout(image, out)
    digest = {"manifest": image.digest, "config": image.id, "layer": image.layers[0].digest}[which]
    blob = out / "blobs" / "sha256" / digest.partition(":")[2]
    data = blob.read_bytes()
    blob.unlink()
    blob.write_bytes(data[:-1])
    with pytest.raises(IntegrityError, match=digest):
        read_folder(out)


def test_no_layout(tmp_path: Path, store: Path, out: Path) -> None:
    with pytest.raises(EngineError, match=r"there is no image .* has no index.json"):
        read_folder(tmp_path)
    write_layout(image_of(store, b"one"), out, "1.0")
    with pytest.raises(EngineError) as caught:
        read_folder(out, "2.0")
    assert caught.value.message == f"there is no image 'oci:{out}:2.0' (it has 1.0)"
    (out / "oci-layout").write_text('{"imageLayoutVersion": "2.0.0"}')
    with pytest.raises(UsageError, match="unsupported version of the OCI image layout"):
        read_folder(out)


def test_a_descriptor_cannot_lead_out(store: Path, out: Path) -> None:
    write_layout(image_of(store, b"one"), out)
    (out / "index.json").write_text('{"manifests": [{"digest": "sha256:../../../etc/passwd", "size": 1}]}')
    with pytest.raises(IntegrityError, match="a descriptor has no SHA-256 digest"):
        read_folder(out)


def changed(folder: Path, **documents: object) -> None:
    """Write a layout again, with members of its index, manifest or configuration replaced."""
    index = json.loads((folder / "index.json").read_bytes())
    manifest = json.loads(blob(folder, index["manifests"][0]).read_bytes())
    config = json.loads(blob(folder, manifest["config"]).read_bytes())
    manifest["config"] = put(folder, config | documents.get("config", {}))
    index["manifests"] = [put(folder, manifest | documents.get("manifest", {}))]
    (folder / "index.json").write_text(json.dumps(index | documents.get("index", {})))


def blob(folder: Path, row: dict[str, str]) -> Path:
    return folder / "blobs" / "sha256" / row["digest"].removeprefix("sha256:")


def put(folder: Path, tree: object) -> dict[str, object]:
    data = json.dumps(tree).encode()
    row = {"mediaType": spec.MANIFEST, "digest": spec.sha256(data), "size": len(data)}
    blob(folder, {"digest": spec.sha256(data)}).write_bytes(data)
    return row


@pytest.mark.parametrize(
    "documents",
    [
        {"manifest": {"layers": 5}},
        {"manifest": {"layers": [5]}},
        {"manifest": {"layers": [{"digest": spec.sha256(b"one"), "size": 3}]}},
        {"config": {"rootfs": [1]}},
        {"config": {"rootfs": {"diff_ids": 5}}},
        {"index": {"manifests": 5}},
        {"index": {"manifests": [{"annotations": [1], "digest": "x", "size": 1}]}},
    ],
)
def test_documents_that_hold_something_else(store: Path, out: Path, documents: dict[str, object]) -> None:
    write_layout(image_of(store, b"one"), out)
    changed(out)
    assert len(read_folder(out).layers) == 1
    changed(out, **documents)
    with pytest.raises((IntegrityError, EngineError), match=str(out)):
        read_folder(out)
