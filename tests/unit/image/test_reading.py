"""Images in folders and files are found by name, and damaged ones are refused."""

import io
import json
import tarfile
import threading
import zlib
from pathlib import Path

import pytest

from envkit.ground.errors import EngineError, EnvkitError, IntegrityError, UsageError
from envkit.image import zstd
from envkit.image.archive import read_archive
from envkit.image.blobs import tar_bytes
from envkit.image.layout import read_layout
from envkit.image.name import InArchive, InEngine, InLayout, image_name
from envkit.image.opening import described
from envkit.image.spec import Image
from envkit.run.rootless.store import ImageStore
from tests.support.file_images import Packed, digest, entry, packed, write_layout

CONFIG = {"User": "7", "Env": ["A=b=c", "D"], "Entrypoint": ["/e"], "Labels": {"l": "m"}, "WorkingDir": "/w"}


def layer(content: bytes = b"text", *, compress: bool = True) -> Packed:
    return packed([(entry("file"), content)], compress=compress)


def layout(path: Path, text: str = "") -> Image:
    name = image_name(f"oci:{path}{text}")
    assert isinstance(name, InLayout)
    return read_layout(name)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("oci:{0}", (InLayout, "{0}", None, None)),
        ("oci:{0}:v1", (InLayout, "{0}", "v1", None)),
        ("oci:{0}:host:5000/name:v1", (InLayout, "{0}", "host:5000/name:v1", None)),
        ("oci:{0}@sha256:" + "a" * 64, (InLayout, "{0}", None, "sha256:" + "a" * 64)),
        ("docker-archive:/nowhere/x.tar", (InArchive, "/nowhere/x.tar", None, None)),
    ],
)
def test_names_of_files_are_read(
    tmp_path: Path, text: str, expected: tuple[type[InLayout | InArchive], str, str | None, str | None]
) -> None:
    found = image_name(text.format(tmp_path))
    kind, path, tag, named = expected
    assert found == kind(path=Path(path.format(tmp_path)), tag=tag, digest=named)
    assert str(found) == text.format(tmp_path)


@pytest.mark.parametrize("text", ["debian:12", "oci:", "ocix:/a", "sha256:" + "0" * 64, "registry/oci:tag"])
def test_other_names_are_those_of_an_engine(text: str) -> None:
    assert image_name(text) == InEngine(name=text)


def test_an_existing_path_with_a_colon_is_taken_whole(tmp_path: Path) -> None:
    (tmp_path / "a:b").mkdir()
    assert image_name(f"oci:{tmp_path}/a:b") == InLayout(path=tmp_path / "a:b")


def test_a_layout_tells_its_image(tmp_path: Path) -> None:
    write_layout(tmp_path / "l", [layer(), layer(b"two", compress=False)], CONFIG, tag="v1")
    image = layout(tmp_path / "l")
    assert image.tags == ("v1",)
    assert [one.diff_id for one in image.layers] == [layer().diff_id, layer(b"two").diff_id]
    told = described(image, 12)
    assert told == {
        "id": digest(image.config), "tags": ("v1",), "labels": {"l": "m"}, "env": {"A": "b=c", "D": ""},
        "user": "7", "entrypoint": ("/e",), "cmd": (), "workdir": "/w", "ports": (), "architecture": "amd64",
        "os": "linux", "size": 12, "layers": (layer().diff_id, layer(b"two").diff_id),
    }  # fmt: skip
    assert layout(tmp_path / "l", str(image.origin).removeprefix(f"oci:{tmp_path / 'l'}")).id == image.id


def test_of_several_images_one_has_to_be_named(tmp_path: Path) -> None:
    write_layout(tmp_path, [layer()], tag="one")
    write_layout(tmp_path, [layer(b"two")], tag="two")
    with pytest.raises(UsageError, match="has 2 images") as caught:
        layout(tmp_path)
    assert caught.value.hint == f"choose one: oci:{tmp_path}:one"
    assert layout(tmp_path, ":two").tags == ("two",)
    with pytest.raises(EngineError, match=r"there is no image .*it has one, two"):
        layout(tmp_path, ":three")


def test_no_layout_is_no_image(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"there is no image .*has no index.json"):
        layout(tmp_path / "nothing")


@pytest.mark.parametrize("which", ["config", "manifest"])
def test_json_that_is_not_what_its_digest_says_is_refused(tmp_path: Path, which: str) -> None:
    write_layout(tmp_path, [layer()])
    index = json.loads((tmp_path / "index.json").read_bytes())
    blobs = tmp_path / "blobs/sha256"
    path = blobs / index["manifests"][0]["digest"].removeprefix("sha256:")
    if which == "config":
        path = blobs / json.loads(path.read_bytes())["config"]["digest"].removeprefix("sha256:")
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    with pytest.raises(IntegrityError, match="has the digest") as caught:
        layout(tmp_path)
    assert caught.value.exit_code == 10


@pytest.mark.parametrize(
    "index",
    [b"[]", b"{", b"{}", b'{"manifests": []}', b'{"manifests": [1]}', b'{"manifests": [{"digest": "sha256:x"}]}',
     b'{"manifests": [{"digest": "sha256:' + b"0" * 64 + b'", "size": -1}]}'],
)  # fmt: skip
def test_odd_indexes_are_refused(tmp_path: Path, index: bytes) -> None:
    (tmp_path / "index.json").write_bytes(index)
    with pytest.raises((IntegrityError, EngineError)):
        layout(tmp_path)


def test_missing_and_short_blobs_are_refused(tmp_path: Path) -> None:
    made = layer()
    write_layout(tmp_path, [made])
    blob = tmp_path / "blobs/sha256" / digest(made.data).removeprefix("sha256:")
    blob.write_bytes(made.data[:-1])
    with pytest.raises(IntegrityError, match=f"has {len(made.data) - 1} bytes, not {len(made.data)}"):
        layout(tmp_path)
    blob.unlink()
    with pytest.raises(IntegrityError, match="cannot be read"):
        layout(tmp_path)


def read_all(image: Image) -> None:
    for one in image.layers:
        with tar_bytes(one, threading.Event()) as stream:
            while stream.read(1 << 16):
                pass


@pytest.mark.parametrize("place", [3, 12, -6, -1, None])
def test_a_changed_layer_is_refused(tmp_path: Path, place: int | None) -> None:
    made = layer(b"x" * 3000)
    write_layout(tmp_path, [made])
    read_all(layout(tmp_path))
    data = bytearray(made.data)
    if place is None:
        data = bytearray(layer(b"y" * 3000).data.ljust(len(data), b"\0")[: len(data)])
    else:
        data[place] ^= 1
    (tmp_path / "blobs/sha256" / digest(made.data).removeprefix("sha256:")).write_bytes(data)
    with pytest.raises(IntegrityError, match=r"damaged gzip|has the digest|in the middle"):
        read_all(layout(tmp_path))


@pytest.mark.parametrize("cut", [0, 7])
def test_a_layer_of_zstd_frames_is_read_and_a_cut_one_refused(tmp_path: Path, cut: int) -> None:
    tar = layer(b"x" * 200_000, compress=False)
    frames = b"".join(zstd.compress(tar.data[start : start + 50_000], 3) for start in range(0, len(tar.data), 50_000))
    write_layout(tmp_path, [Packed(frames[: len(frames) - cut], tar.diff_id)])
    if not cut:
        read_all(layout(tmp_path))
        return
    with pytest.raises(IntegrityError, match="unpacks to"):
        read_all(layout(tmp_path))


def test_a_layer_of_many_gzip_members_is_read(tmp_path: Path) -> None:
    tar = layer(b"x" * 200_000, compress=False)
    members = b""
    for start in range(0, len(tar.data), 777):
        packer = zlib.compressobj(wbits=31)
        members += packer.compress(tar.data[start : start + 777]) + packer.flush()
    write_layout(tmp_path, [Packed(members, tar.diff_id)])
    read_all(layout(tmp_path))


def archive(path: Path, *, tags: list[str] | None = None, shared: bool = False, flip: bool = False) -> InArchive:
    made = layer(compress=False)
    config = json.dumps({"config": CONFIG, "rootfs": {"diff_ids": [made.diff_id]}}).encode()
    name = f"{digest(config).removeprefix('sha256:')}.json"
    manifest = [{"Config": name, "RepoTags": tags or ["name:v1"], "Layers": ["a/layer.tar"]}]
    with tarfile.open(path, "w") as tar:
        rows = [
            (entry("a/layer.tar", tarfile.SYMTYPE, target="../b/layer.tar") if shared else entry("a/layer.tar"),
             b"" if shared else made.data),
            (entry("b/layer.tar"), made.data),
            (entry(name), config.replace(b"A=b", b"A=c") if flip else config),
            (entry("manifest.json"), json.dumps(manifest).encode()),
        ]  # fmt: skip
        for one, content in rows:
            one.size = len(content)
            tar.addfile(one, io.BytesIO(content))
    return InArchive(path=path)


@pytest.mark.parametrize("shared", [False, True])
def test_an_archive_tells_its_image(tmp_path: Path, shared: bool) -> None:
    image = read_archive(archive(tmp_path / "x.tar", shared=shared))
    assert image.tags == ("name:v1",)
    assert described(image, 0)["env"]["A"] == "b=c"
    read_all(image)


@pytest.mark.parametrize("tag", ["v1", "name:v1"])
def test_an_archives_image_can_be_named(tmp_path: Path, tag: str) -> None:
    archive(tmp_path / "x.tar")
    name = image_name(f"docker-archive:{tmp_path}/x.tar:{tag}")
    assert isinstance(name, InArchive)
    assert read_archive(name).tags == ("name:v1",)
    other = image_name(f"docker-archive:{tmp_path}/x.tar:other")
    assert isinstance(other, InArchive)
    with pytest.raises(EngineError, match="it has name:v1"):
        read_archive(other)


def test_damaged_archives_are_refused(tmp_path: Path) -> None:
    with pytest.raises(IntegrityError, match=r"the configuration .* has the digest"):
        read_archive(archive(tmp_path / "x.tar", flip=True))
    (tmp_path / "x.tar").write_bytes(b"no tar at all" * 100)
    with pytest.raises(EnvkitError) as caught:
        read_archive(InArchive(path=tmp_path / "x.tar"))
    assert caught.value.exit_code == 10
    assert caught.value.message.startswith(f"{tmp_path / 'x.tar'}: ")
    (tmp_path / "x.tar").write_bytes(b"")
    with pytest.raises(IntegrityError) as empty:
        read_archive(InArchive(path=tmp_path / "x.tar"))
    assert empty.value.message == f"{tmp_path / 'x.tar'}: a tar ends after 0 bytes, in the middle of an entry"
    assert empty.value.hint
    (tmp_path / "x.tar").write_bytes(b"\x1f\x8b")
    with pytest.raises(UsageError, match="is compressed") as pressed:
        read_archive(InArchive(path=tmp_path / "x.tar"))
    assert pressed.value.hint == f"gunzip {tmp_path / 'x.tar'}"


def test_an_image_is_found_again_by_its_id(tmp_path: Path) -> None:
    write_layout(tmp_path / "l", [layer()], tag="v1")
    image = ImageStore(tmp_path / "c").open(image_name(f"oci:{tmp_path / 'l'}"))
    assert ImageStore(tmp_path / "c").open(image_name(image.id)).origin == image.origin
    with pytest.raises(EngineError, match="there is no image"):
        ImageStore(tmp_path / "other").open(image_name(image.id))
    with pytest.raises(EngineError, match=r"bubblewrap opens oci:DIR, docker-archive:FILE and registry:HOST/NAME:TAG"):
        ImageStore(tmp_path / "c").open(image_name("debian:12"))
