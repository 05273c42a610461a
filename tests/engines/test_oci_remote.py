"""Images of registries as values: through indexes of platforms, and what is none."""

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from envkit.ground.errors import EngineError, IntegrityError
from envkit.image import spec
from envkit.image.name import Reference, parse_reference
from envkit.registry.documents import Documents
from envkit.registry.registry import Registry
from envkit.registry.remote import read_remote
from envkit.registry.retry import Policy
from envkit.registry.transport import Transport
from tests.engines.faults import Fault, proxy_before
from tests.engines.oci_images import image_of, push, registry
from tests.support.heard import Heard

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with registry(tmp_path_factory.mktemp("registry")) as found:
        yield found


@pytest.fixture
def reference(host: str) -> Reference:
    return parse_reference(f"{host}/team/{secrets.token_hex(4)}:1")


@pytest.fixture
def target(reference: Reference) -> Iterator[Registry]:
    with Transport(policy=Policy(tries=1)) as transport:
        yield Registry(reference.registry, transport, {})


@pytest.fixture
def image(reference: Reference, target: Registry, tmp_path: Path) -> spec.Image:
    made = image_of(tmp_path, salt=secrets.token_hex(4))
    push(made, reference, target, Heard())
    return made


def index(target: Registry, reference: Reference, *rows: tuple[spec.Image, str | None]) -> None:
    listed: list[dict[str, Any]] = []
    for image, architecture in rows:
        told = {"platform": {"os": "linux", "architecture": architecture}} if architecture else {}
        listed.append(image.descriptor.to_json() | told)
    data = spec.canonical({"schemaVersion": 2, "mediaType": spec.INDEX, "manifests": listed})
    target.put_manifest(reference, data, spec.INDEX)


def test_an_image_keeps_its_manifest_and_names_its_layers(
    reference: Reference, target: Registry, image: spec.Image
) -> None:
    for name in (reference, reference.at(image.digest)):
        found = read_remote(name, Documents(target, None), platform="linux/amd64")
        assert (found.manifest, found.config, found.digest) == (image.manifest, image.config, image.digest)
        assert [one.descriptor for one in found.layers] == [one.descriptor for one in image.layers]
        assert [one.diff_id for one in found.layers] == [one.diff_id for one in image.layers]
        assert {one.origin for one in found.layers} == {reference.place}
        assert {one.blob for one in found.layers} == {None}


def test_an_index_gives_the_image_of_the_platform(reference: Reference, target: Registry, image: spec.Image) -> None:
    name = parse_reference(f"{reference.place}:index")
    index(target, name, (image, "amd64"))
    assert read_remote(name, Documents(target, None), platform="linux/amd64").digest == image.digest
    with pytest.raises(EngineError) as caught:
        read_remote(name, Documents(target, None), platform="linux/arm64")
    assert caught.value.message == f"{name} has no image for linux/arm64"
    assert caught.value.hint == "it has: linux/amd64"


def test_what_is_not_there(reference: Reference, target: Registry) -> None:
    with pytest.raises(EngineError) as caught:
        read_remote(reference, Documents(target, None), platform="linux/amd64")
    assert caught.value.message == f"there is no image {reference}"
    assert caught.value.exit_code == 8


def test_layers_that_the_configuration_does_not_know(reference: Reference, target: Registry, image: spec.Image) -> None:
    name = parse_reference(f"{reference.place}:cut")
    tree = {
        "schemaVersion": 2,
        "mediaType": spec.MANIFEST,
        "config": {"mediaType": spec.CONFIG, "digest": image.id, "size": len(image.config)},
        "layers": [image.layers[0].descriptor.to_json()],
    }
    target.put_manifest(name, spec.canonical(tree), spec.MANIFEST)
    with pytest.raises(IntegrityError) as caught:
        read_remote(name, Documents(target, None), platform="linux/amd64")
    assert caught.value.message.endswith(": the manifest's layers are not those of its configuration (2)")


def test_an_answer_that_is_no_manifest(host: str, reference: Reference, image: spec.Image) -> None:
    assert image.layers
    with proxy_before(host) as proxy, Transport(policy=Policy(tries=1)) as transport:
        name = parse_reference(f"{proxy.address}/{reference.repository}:1")
        target = Registry(name.registry, transport, {})
        proxy.faults = [Fault("/manifests/", status=200, headers={"Content-Type": "text/html"})]
        with pytest.raises(EngineError, match=r"is not an image \(text/html\)"):
            read_remote(name, Documents(target, None), platform="linux/amd64")
        proxy.faults = [Fault("/manifests/", status=200, headers={"Content-Type": spec.MANIFEST})]
        with pytest.raises(EngineError, match=r"the manifest of .* is not JSON"):
            read_remote(name, Documents(target, None), platform="linux/amd64")
