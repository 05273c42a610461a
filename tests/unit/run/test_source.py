"""An image that is to be pushed is found wherever it lies."""

import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from envkit.ground.errors import EngineError, IntegrityError, UsageError
from envkit.ground.progress import Silent
from envkit.image.name import ImageName, image_name
from envkit.registry.transport import Transport
from envkit.run import source
from envkit.run.source import find_source
from tests.support.file_images import entry, packed, write_layout
from tests.unit.run.test_packing import SMALL, archive


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


LABELS = {"envkit.plan": "sha256:1", "com.example.team": "vision"}


class Storage:
    """An engine that keeps one image, in a file that another one wrote."""

    name = "shelf"

    def __init__(self, ident: str, saved: Path) -> None:
        self.ident, self.saved = ident, saved

    def inspect(self, image: ImageName) -> Mapping[str, Any]:
        del image
        return {"id": self.ident, "labels": LABELS}

    def save(self, image: ImageName, path: Path) -> None:
        assert image.typed == self.ident
        shutil.copyfile(self.saved, path)


@pytest.fixture
def transport() -> Transport:
    return Transport()


def test_a_layout_keeps_its_manifest(tmp_path: Path, transport: Transport) -> None:
    layout = write_layout(tmp_path / "layout", [packed([(entry("a"), b"1")])], {"Labels": LABELS}, tag="1.0")
    (row,) = json.loads((layout / "index.json").read_bytes())["manifests"]
    for name in (f"oci:{layout}", f"oci:{layout}:1.0", f"oci:{layout}@{row['digest']}"):
        found = find_source(image_name(name), tmp_path, transport, Silent())
        image = found.read(lambda _layer: None)
        assert image.digest == row["digest"]
        assert (found.name, found.ids, found.fetch) == (name, (image.id, image.digest), None)
        assert found.labels == {"envkit.plan": "sha256:1"}


def test_a_layout_of_several_images_has_to_be_named(tmp_path: Path, transport: Transport) -> None:
    layout = tmp_path / "layout"
    for tag, text in (("1", b"1"), ("2", b"2")):
        write_layout(layout, [packed([(entry("a"), text)])], tag=tag)
    with pytest.raises(UsageError, match="has 2 images"):
        find_source(image_name(f"oci:{layout}"), tmp_path, transport, Silent())
    with pytest.raises(EngineError, match=r"there is no image .*:3' \(it has 1, 2\)"):
        find_source(image_name(f"oci:{layout}:3"), tmp_path, transport, Silent())


def test_of_an_index_of_platforms_its_image_is_taken(tmp_path: Path, transport: Transport) -> None:
    layout = write_layout(tmp_path / "layout", [packed([(entry("a"), b"1")])])
    data = (layout / "index.json").read_bytes()
    name = hashlib.sha256(data).hexdigest()
    (layout / "blobs" / "sha256" / name).write_bytes(data)
    row = {"mediaType": "application/vnd.oci.image.index.v1+json", "digest": f"sha256:{name}", "size": len(data)}
    (layout / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [row]}))
    image = find_source(image_name(f"oci:{layout}"), tmp_path, transport, Silent()).read(lambda _layer: None)
    assert image.digest == json.loads(data)["manifests"][0]["digest"]


def test_an_archive_is_packed_when_it_is_read(tmp_path: Path, transport: Transport) -> None:
    kept = archive(tmp_path / "a.tar", (SMALL,))
    found = find_source(image_name(f"docker-archive:{tmp_path}/a.tar"), tmp_path, transport, Silent())
    assert found.ids == (kept.id,)
    (tmp_path / "out").mkdir()
    image = found.read(lambda _layer: None)
    assert (image.id, len(image.layers)) == (kept.id, 1)


def test_an_engines_image_is_saved_and_packed(
    tmp_path: Path, transport: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = b'{"schemaVersion": 2}'
    own = hashlib.sha256(manifest).hexdigest()
    kept = archive(tmp_path / "a.tar", (SMALL,), {f"blobs/sha256/{own}": manifest})
    for number, ident in enumerate((kept.id, f"sha256:{own}")):
        shelf = Storage(ident, tmp_path / "a.tar")
        monkeypatch.setattr(source, "choose", lambda *_arguments, shelf=shelf, **_options: shelf)
        (tmp_path / f"{number}").mkdir()
        found = find_source(image_name("train:1"), tmp_path / f"{number}", transport, Silent(), engine="docker")
        assert (found.ids, found.labels) == ((ident,), {"envkit.plan": "sha256:1"})
        assert found.read(lambda _layer: None).id == kept.id


def test_an_engine_that_saves_another_image_is_not_believed(
    tmp_path: Path, transport: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, asked = archive(tmp_path / "a.tar", (SMALL,)), f"sha256:{'a' * 64}"
    monkeypatch.setattr(source, "choose", lambda *_arguments, **_options: Storage(asked, tmp_path / "a.tar"))
    (tmp_path / "out").mkdir()
    with pytest.raises(IntegrityError) as caught:
        find_source(image_name("train:1"), tmp_path, transport, Silent()).read(lambda _layer: None)
    assert caught.value.message == f"shelf saved {kept.id} instead of the image {asked}"


def test_what_keeps_no_images_by_name(tmp_path: Path, transport: Transport) -> None:
    with pytest.raises(UsageError) as caught:
        find_source(image_name("train:1"), tmp_path, transport, Silent(), engine="embedded")
    assert caught.value.message == (
        "'train:1' is a name in an engine, and the embedded engine stores no images by name"
    )
    assert caught.value.hint == "--image oci:DIR, docker-archive:FILE or registry:HOST/NAME:TAG"
    with pytest.raises(EngineError, match=r"there is no image 'docker-archive:nothing\.tar'"):
        find_source(image_name("docker-archive:nothing.tar"), tmp_path, transport, Silent())
