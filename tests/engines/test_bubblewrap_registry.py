"""Images that lie in a registry, run by bubblewrap: fetched by digest, once, and refused where a byte is wrong."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from envkit.ground.errors import EngineError, IntegrityError
from envkit.ground.platforms import here as platform_here
from envkit.image import spec
from envkit.image.name import image_name, parse_reference
from envkit.registry.registry import Manifest, Registry
from envkit.registry.remote import Remote
from envkit.registry.transport import Transport
from envkit.run.model import RunLimits
from envkit.run.runners import choose_for
from tests.engines.faults import Fault, proxy_before
from tests.engines.oci_images import push, registry
from tests.support.file_images import Packed, read_folder, write_layout
from tests.support.heard import Heard
from tests.world import apt, base

pytestmark = pytest.mark.engine
ARGV = ("/bin/sh", "-c", 'echo "$GREETING"')


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    apt.require("bwrap", "bubblewrap")
    with registry(tmp_path_factory.mktemp("registry")) as found:
        yield found


@pytest.fixture(scope="module")
def digest(host: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The manifest's digest of the Debian base with a greeting, pushed as team/hello:1."""
    made, folder = base.layer(), tmp_path_factory.mktemp("image")
    config = {"Env": [f"PATH={base.PATH}", "GREETING=hello"]}
    write_layout(folder, [Packed(made.path.read_bytes(), made.diff_id)], config)
    image = read_folder(folder)
    with Transport() as transport:
        push(image, parse_reference(f"{host}/team/hello:1"), Registry(host, transport, {}), Heard())
    return image.digest


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "envkit"


def say(image: str, heard: Heard) -> str:
    runner, target = choose_for(image_name(image), "bubblewrap", heard)
    ident = str(runner.inspect(target)["id"])
    done = runner.run(image_name(ident), ARGV, {}, gpus=None, limits=RunLimits(timeout_s=60), reporter=heard)
    assert done.exit_code == 0, done.stderr
    return done.stdout.decode()


def test_layers_are_fetched_once(host: str, digest: str, cache: Path) -> None:
    with proxy_before(host) as proxy:
        first, again = Heard(), Heard()
        assert say(f"registry:{proxy.address}/team/hello:1", first) == "hello\n"
        assert f"fetch 1 layer of {proxy.address}/team/hello" in first.steps
        assert first.progress[-1][0] > 0
        assert say(f"registry:{proxy.address}/team/hello@{digest}", again) == "hello\n"
        assert again.steps == []
        assert proxy.count("^GET .*/blobs/") == 2  # the configuration and one layer
    assert len(list((cache / "blobs").iterdir())) == 3


def test_a_tag_is_turned_into_the_digest_it_has_now(host: str, digest: str, cache: Path) -> None:
    found = Remote(cache).resolve(parse_reference(f"{host}/team/hello:1"))
    assert str(found) == f"{host}/team/hello:1@{digest}"


def test_what_is_not_there_is_said(host: str, digest: str, heard: Heard) -> None:
    assert digest
    with pytest.raises(EngineError, match=f"there is no image {host}/team/hello:2") as caught:
        say(f"registry:{host}/team/hello:2", heard)
    assert caught.value.hint == "check the image's name and tag"


def test_a_flipped_byte_is_not_run(host: str, digest: str, heard: Heard, cache: Path) -> None:
    with proxy_before(host) as proxy:
        proxy.faults.append(Fault(match="^GET .*/blobs/", flip=20))
        with pytest.raises(IntegrityError, match=r"SHA-256|digest"):
            say(f"registry:{proxy.address}/team/hello@{digest}", heard)
    assert not [path for path in (cache / "layers").glob("*") if not path.name.startswith(".")]


def test_of_an_index_the_image_for_this_machine_is_run(host: str, digest: str, heard: Heard) -> None:
    with Transport() as transport:
        place = Registry(host, transport, {})
        held = place.manifest(parse_reference(f"{host}/team/hello@{digest}"))
        assert isinstance(held, Manifest)
        row = {"mediaType": held.media_type, "digest": held.digest, "size": len(held.data)}
        rows = [
            row | {"platform": {"os": "linux", "architecture": name}}
            for name in (platform_here().partition("/")[2], "s390x")
        ]
        index = {"schemaVersion": 2, "mediaType": spec.INDEX, "manifests": rows}
        place.put_manifest(parse_reference(f"{host}/team/hello:both"), json.dumps(index).encode(), spec.INDEX)
    assert say(f"registry:{host}/team/hello:both", heard) == "hello\n"
