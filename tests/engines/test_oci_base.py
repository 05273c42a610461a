"""Base images: a registry's, untouched, and a root file system."""

import json
import secrets
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from envkit.assemble import base
from envkit.engines.debian_root import write_root
from envkit.engines.layer_cache import LayerCache
from envkit.ground.errors import EngineError, EnvironmentProblem, IntegrityError
from envkit.ground.settings import Mirrors
from envkit.image import spec
from envkit.image.layout import write_layout
from envkit.image.name import parse_reference
from envkit.registry.registry import Registry
from envkit.registry.transport import Transport
from tests.engines.faults import Fault, proxy_before
from tests.engines.oci_images import RUNTIME, image_of, layer_of, push, registry, run
from tests.support.heard import Heard
from tests.world import apt
from tests.world.world import World

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with registry(tmp_path_factory.mktemp("registry")) as found:
        yield found


@pytest.fixture
def transport() -> Iterator[Transport]:
    with Transport() as found:
        yield found


@pytest.fixture
def below(host: str, transport: Transport, tmp_path: Path) -> tuple[str, spec.Image]:
    (tmp_path / "below").mkdir()
    image = image_of(tmp_path / "below", salt=secrets.token_hex(8), big=100_000)
    reference = parse_reference(f"{host}/team/{secrets.token_hex(4)}:1")
    push(image, reference, Registry.of(reference, transport), Heard())
    return str(reference), image


def test_layers_of_a_base_stay_as_they_are(
    below: tuple[str, spec.Image], host: str, transport: Transport, tmp_path: Path
) -> None:
    name, image = below
    found, source = base.from_reference(name, None, "linux-64", Mirrors(), transport)
    assert found.digest == image.digest
    assert [layer.digest for layer in found.layers] == [layer.digest for layer in image.layers]
    fetched = base.with_blobs(found, source, tmp_path / "blobs", lambda *_: None)
    top = layer_of(tmp_path, "top", {"opt/env/file": b"top"})
    ours = spec.image(fetched, (top,), RUNTIME, {}, "linux-64")
    write_layout(ours, tmp_path / "out")
    run(
        apt.require("umoci", "umoci"),
        "unpack",
        "--rootless",
        "--image",
        f"{tmp_path}/out:latest",
        str(tmp_path / "bundle"),
    )
    root = tmp_path / "bundle" / "rootfs"
    assert (root / "opt" / "env" / "file").read_bytes() == b"top"
    assert (root / "srv" / "one").exists()

    # Nothing of the base is fetched or sent when the image goes to the registry that holds it.
    unfetched = spec.image(found, (top,), RUNTIME, {}, "linux-64")
    assert unfetched.digest == ours.digest
    reference = parse_reference(f"{host}/team/ours-{secrets.token_hex(4)}:1")
    pushed = push(unfetched, reference, source, Heard())
    assert pushed.sent == top.descriptor.size + len(ours.config)
    assert pushed.mounted == sum(layer.descriptor.size for layer in image.layers)


@pytest.mark.requirement("R10")
def test_a_locked_digest_holds_when_the_tag_moves(
    below: tuple[str, spec.Image], transport: Transport, tmp_path: Path
) -> None:
    name, image = below
    (tmp_path / "newer").mkdir()
    newer = image_of(tmp_path / "newer", salt="newer")
    reference = parse_reference(name)
    push(newer, reference, Registry.of(reference, transport), Heard(), replace_tag=True)
    assert base.from_reference(name, None, "linux-64", Mirrors(), transport)[0].digest == newer.digest
    assert base.from_reference(name, image.digest, "linux-64", Mirrors(), transport)[0].digest == image.digest


def test_a_locked_base_is_asked_for_once(
    below: tuple[str, spec.Image], host: str, transport: Transport, tmp_path: Path
) -> None:
    name, image = below
    with proxy_before(host) as proxy:
        place = name.replace(host, proxy.address)
        folder = tmp_path / "blobs"
        found, source = base.from_reference(place, image.digest, "linux-64", Mirrors(), transport, folder=folder)
        fetched = base.with_blobs(found, source, folder, lambda *_: None)
        proxy.seen.clear()
        again, source = base.from_reference(
            place, image.digest, "linux-64", Mirrors(), transport, folder=folder, offline=True
        )
        assert base.with_blobs(again, source, folder, lambda *_: None, offline=True) == fetched
        assert not proxy.seen
        with pytest.raises(EnvironmentProblem) as caught:
            base.from_reference(
                place, image.digest, "linux-64", Mirrors(), transport, folder=tmp_path / "none", offline=True
            )
    assert caught.value.message.startswith("offline, and the manifest of ")
    assert caught.value.exit_code == 9


def test_an_index_gives_the_platforms_image(below: tuple[str, spec.Image], transport: Transport) -> None:
    name, image = below
    reference = parse_reference(name)
    target = Registry.of(reference, transport)
    row = image.descriptor.to_json()
    rows = [row | {"platform": {"os": "linux", "architecture": "amd64"}}]
    data = spec.canonical({"schemaVersion": 2, "mediaType": spec.INDEX, "manifests": rows})
    target.put_manifest(parse_reference(f"{reference.place}:many"), data, spec.INDEX)
    found, _ = base.from_reference(f"{reference.place}:many", None, "linux-64", Mirrors(), transport)
    assert found.digest == spec.sha256(data)
    assert [layer.digest for layer in found.layers] == [layer.digest for layer in image.layers]
    with pytest.raises(EngineError) as caught:
        base.from_reference(f"{reference.place}:many", None, "linux-aarch64", Mirrors(), transport)
    assert caught.value.message == f"{reference.place}:many has no image for linux/arm64"
    assert caught.value.hint == "it has: linux/amd64"
    with pytest.raises(EngineError, match="is for linux/amd64, not for linux-aarch64"):
        base.from_reference(name, None, "linux-aarch64", Mirrors(), transport)


def test_dockers_own_media_types_are_renamed_and_the_bytes_kept(
    place: World, transport: Transport, tmp_path: Path
) -> None:
    place.require("registry", "base")
    assert place.base is not None
    found, source = base.from_reference(place.base, None, "linux-64", Mirrors(), transport)
    assert {layer.descriptor.media_type for layer in found.layers} == {spec.LAYER_GZIP}
    fetched = base.with_blobs(found, source, tmp_path / "blobs", lambda *_: None)
    write_layout(spec.image(fetched, (), RUNTIME, {}, "linux-64"), tmp_path / "out")
    run(
        apt.require("umoci", "umoci"),
        "unpack",
        "--rootless",
        "--image",
        f"{tmp_path}/out:latest",
        str(tmp_path / "bundle"),
    )
    assert (tmp_path / "bundle" / "rootfs" / "etc" / "debian_version").exists()


def test_a_mirror_stands_in_for_docker_hub(host: str, transport: Transport, tmp_path: Path) -> None:
    image = image_of(tmp_path, salt="mirrored")
    reference = parse_reference(f"{host}/library/debian:bookworm-slim")
    push(image, reference, Registry.of(reference, transport), Heard(), replace_tag=True)
    name = "docker.io/library/debian:bookworm-slim"
    found, _ = base.from_reference(name, None, "linux-64", Mirrors(registry=host), transport)
    assert (found.name, found.digest) == (name, image.digest)
    assert found.layers[0].origin == f"{host}/library/debian"


def test_no_such_image(host: str, transport: Transport) -> None:
    with pytest.raises(EngineError, match=f"there is no image {host}/no/such:1"):
        base.from_reference(f"{host}/no/such:1", None, "linux-64", Mirrors(), transport)


@pytest.mark.parametrize("what", ["manifests", "blobs"])
def test_flipped_bytes(
    below: tuple[str, spec.Image], host: str, transport: Transport, tmp_path: Path, what: str
) -> None:
    with proxy_before(host) as proxy:
        proxy.faults = [Fault(f"^GET .*/{what}/", flip=300)]
        with pytest.raises(IntegrityError):
            fetched(below[0].replace(host, proxy.address), transport, tmp_path / "blobs")
    assert not list(tmp_path.glob("blobs/*"))


def fetched(name: str, transport: Transport, folder: Path) -> spec.Base:
    found, source = base.from_reference(name, None, "linux-64", Mirrors(), transport)
    return base.with_blobs(found, source, folder, lambda *_: None)


def test_a_root_file_system_becomes_one_layer(tmp_path: Path) -> None:
    (tmp_path / "root" / "etc").mkdir(parents=True)
    (tmp_path / "root" / "etc" / "os-release").write_text("ID=debian\n")
    with tarfile.open(tmp_path / "root.tar", "w") as archive:
        archive.add(tmp_path / "root", ".")
    cached = LayerCache(tmp_path / "cache").make(
        "0" * 64, lambda sink: write_root(tmp_path / "root.tar", sink, mtime=spec.MTIME)
    )
    layers = (spec.layer(cached.layer, cached.path, "envkit: bootstrap:debian/bookworm"),)
    found = spec.Base(name="bootstrap:debian/bookworm", layers=layers)
    write_layout(spec.image(found, (), RUNTIME, {}, "linux-64"), tmp_path / "out")
    raw = json.loads(run(apt.require("skopeo", "skopeo"), "inspect", "--config", f"oci:{tmp_path}/out:latest"))
    assert raw["history"][0]["created_by"] == "envkit: bootstrap:debian/bookworm"
    run(
        apt.require("umoci", "umoci"),
        "unpack",
        "--rootless",
        "--image",
        f"{tmp_path}/out:latest",
        str(tmp_path / "bundle"),
    )
    assert (tmp_path / "bundle" / "rootfs" / "etc" / "os-release").read_text() == "ID=debian\n"
