"""Images of registries as far as they can be told from what the cache keeps; the registry itself is in engine tests."""

import json
from pathlib import Path

import pytest

from envkit.ground.errors import EngineError, IntegrityError, UsageError
from envkit.ground.platforms import here as platform_here
from envkit.image import spec
from envkit.image.name import InEngine, InRegistry, image_name, parse_reference
from envkit.image.spec import Image, sha256
from envkit.registry.remote import Remote

DIFF = "sha256:" + "d" * 64
LAYER = {"mediaType": spec.LAYER_GZIP, "digest": "sha256:" + "a" * 64, "size": 12}
PLACE = "registry.example.com/team/train"


def keep(cache: Path, tree: object) -> tuple[str, int]:
    data = json.dumps(tree).encode()
    (cache / "blobs").mkdir(exist_ok=True)
    (cache / "blobs" / sha256(data).removeprefix("sha256:")).write_bytes(data)
    return sha256(data), len(data)


def manifest(cache: Path, *, layers: object = None, diff_ids: object = None) -> tuple[str, int]:
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"User": "7"},
        "rootfs": {"diff_ids": diff_ids or [DIFF]},
    }
    digest, size = keep(cache, config)
    row = {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": digest, "size": size}
    return keep(cache, {"schemaVersion": 2, "mediaType": spec.MANIFEST, "config": row, "layers": layers or [LAYER]})


def read(cache: Path, digest: str, tag: str = "") -> Image:
    return Remote(cache).read(parse_reference(f"{PLACE}{tag}@{digest}"))


@pytest.mark.parametrize("text", [f"registry:{PLACE}:1", f"registry://{PLACE}:1"])
def test_references(text: str) -> None:
    assert image_name(text) == InRegistry(reference=parse_reference(f"{PLACE}:1"))


def test_other_texts_are_none() -> None:
    assert image_name(PLACE) == InEngine(name=PLACE)
    with pytest.raises(UsageError, match="'registry:Team' is not a valid image name"):
        image_name("registry:Team")


def test_an_image_that_is_kept_asks_no_registry(tmp_path: Path) -> None:
    digest, _ = manifest(tmp_path)
    image = read(tmp_path, digest, ":1")
    assert image.settings == {"User": "7"}
    assert image.tags == (f"{PLACE}:1",)
    assert str(image.origin) == f"registry:{PLACE}@{digest}"
    (layer,) = image.layers
    assert (layer.diff_id, layer.digest, layer.descriptor.size) == (DIFF, LAYER["digest"], 12)
    assert layer.blob == tmp_path / "blobs" / ("a" * 64)
    reference = parse_reference(f"{PLACE}@{digest}")
    assert Remote(tmp_path).resolve(reference) == reference


def test_of_an_index_the_image_for_this_machine_is_meant(tmp_path: Path) -> None:
    wanted, size = manifest(tmp_path)
    system, architecture = platform_here().split("/")
    row = {"mediaType": spec.MANIFEST, "digest": wanted, "size": size}
    rows = [
        {**row, "platform": {"os": system, "architecture": architecture}},
        {**row, "digest": "sha256:" + "0" * 64, "platform": {"os": system, "architecture": "s390x"}},
    ]
    index, _ = keep(tmp_path, {"schemaVersion": 2, "mediaType": spec.INDEX, "manifests": rows})
    assert str(read(tmp_path, index).origin) == f"registry:{PLACE}@{wanted}"
    other, _ = keep(tmp_path, {"schemaVersion": 2, "mediaType": spec.INDEX, "manifests": rows[1:] * 2})
    with pytest.raises(EngineError, match=f"has no image for {platform_here()}"):
        read(tmp_path, other)


@pytest.mark.parametrize(
    "changed",
    [
        {"layers": [LAYER, LAYER]},
        {"layers": [{**LAYER, "digest": "sha256:../../etc/passwd"}]},
        {"layers": [{**LAYER, "size": -1}]},
        {"layers": ["x"]},
        {"diff_ids": ["x"]},
    ],
)
def test_a_manifest_that_is_none_is_refused(tmp_path: Path, changed: dict[str, object]) -> None:
    digest, _ = manifest(tmp_path, **changed)
    with pytest.raises(IntegrityError):
        read(tmp_path, digest)
