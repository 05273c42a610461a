"""The tar that `docker load` reads."""

import io
import json
import tarfile
from pathlib import Path

import pytest

from envkit.ground.errors import EnvironmentProblem, IntegrityError
from envkit.image.archive import stream, write_archive
from tests.unit.image.test_layout import image_of


def test_equal_images_give_equal_archives_that_name_everything(tmp_path: Path) -> None:
    image = image_of(tmp_path, b"one" * 1000, b"two")
    data = b"".join(stream(image, ("b:2", "a:1")))
    assert data == b"".join(stream(image, ("a:1", "b:2")))
    assert len(data) % 10240 == 0
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        names = archive.getnames()
        assert names == sorted(names)
        assert {(one.uid, one.gid, one.uname, one.mtime) for one in archive} == {(0, 0, "", 315532800)}
        listing = json.loads(archive.extractfile("manifest.json").read())  # type: ignore[union-attr]
        assert listing[0]["RepoTags"] == ["a:1", "b:2"]
        contents = [archive.extractfile(name).read() for name in listing[0]["Layers"]]  # type: ignore[union-attr]
        assert contents == [b"one" * 1000, b"two"]
        assert archive.extractfile(listing[0]["Config"]).read() == image.config  # type: ignore[union-attr]


def test_it_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    target = tmp_path / "out" / "image.tar"
    image = image_of(tmp_path, b"one")
    write_archive(image, target, ())
    before = target.read_bytes()
    blob = image.layers[0].blob
    assert blob is not None
    blob.unlink()
    with pytest.raises(IntegrityError, match="cannot be read: No such file or directory"):
        write_archive(image, target, ("a:1",))
    assert target.read_bytes() == before
    assert [path.name for path in target.parent.iterdir()] == ["image.tar"]


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    image = image_of(tmp_path, b"one")
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentProblem, match="cannot be written: "):
        write_archive(image, tmp_path / "file" / "image.tar", ())
