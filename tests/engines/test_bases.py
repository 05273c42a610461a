"""Base images for real: by digest from a registry, from this machine, or made from Debian's own packages."""

import os
import time
from pathlib import Path

import pytest

from envkit.build.base import Bases
from envkit.build.log import BuildLog
from envkit.build.model import BuildOptions, Engine
from envkit.errors import SurroundingsError
from envkit.run.model import RunLimits
from envkit.run.runners import choose
from envkit.settings import Mirrors
from tests.engines.conftest import Heard
from tests.world.world import World

pytestmark = pytest.mark.engine
DEBIAN = "docker.io/library/debian:bookworm-slim"
NOWHERE = "127.0.0.1:9"


def bases(engine: Engine, heard: Heard, state: Path, *, no_cache: bool = False, **mirrors: str | None) -> Bases:
    options = BuildOptions(mirrors=Mirrors(**mirrors), no_cache=no_cache)
    return Bases(engine, options, BuildLog(state / "log", heard), heard, state)


def test_a_mirror_gives_the_digest(engine: Engine, place: World, pinned: str, heard: Heard, tmp_path: Path) -> None:
    found = bases(engine, heard, tmp_path, registry=place.registry).find(DEBIAN, asked="auto", system="debian12")
    assert found.reference == pinned
    assert found.origin == "registry"


def test_a_local_image_can_be_named(engine: Engine, place: World, pinned: str, heard: Heard, tmp_path: Path) -> None:
    assert place.base is not None
    engine.digest(place.base)
    finder = bases(engine, heard, tmp_path)
    assert finder.find(DEBIAN, asked=pinned, system="debian12").digest == pinned.rpartition("@")[2]


@pytest.mark.slow
def test_debian_is_made_from_its_own_packages(engine: Engine, heard: Heard, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("mmdebstrap needs root")
    finder = bases(engine, heard, tmp_path, registry=NOWHERE)
    found = finder.find(DEBIAN, asked="auto", system="debian12")
    assert found.origin == "bootstrap"
    assert found.digest is None
    assert any("no registry answers" in note and "Debian's own packages" in note for note in heard.notes)
    image = engine.local(found.reference)
    assert image is not None
    assert image.size is not None
    assert image.size < 200e6
    began = time.monotonic()
    assert bases(engine, heard, tmp_path).find(DEBIAN, asked="bootstrap:debian/bookworm", system="debian12") == found
    assert time.monotonic() - began < 10
    assert any("--no-cache makes it anew" in note for note in heard.notes)
    result = choose("auto", heard, engine=engine.name).run(
        image.id,
        [
            "sh",
            "-c",
            ". /etc/os-release; echo $ID $VERSION_ID; ls /var/lib/apt/lists /usr/share/man; apt-config dump | wc -l",
        ],
        {},
        gpus=None,
        limits=RunLimits(timeout_s=60),
        reporter=heard,
    )
    assert result.stdout.splitlines()[0] == b"debian 12"
    assert not list(tmp_path.glob("runs/*"))


def test_another_system_says_what_to_do(engine: Engine, heard: Heard, tmp_path: Path) -> None:
    finder = bases(engine, heard, tmp_path, registry=NOWHERE)
    with pytest.raises(SurroundingsError, match="cannot be reached") as caught:
        finder.find("docker.io/library/ubuntu:22.04", asked="auto", system="ubuntu22.04")
    assert "ENVKIT_REGISTRY" in (caught.value.hint or "")


def test_without_mmdebstrap_the_command_is_named(
    engine: Engine, heard: Heard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("envkit.build.bootstrap.shutil.which", lambda _: None)
    with pytest.raises(SurroundingsError) as caught:
        bases(engine, heard, tmp_path, no_cache=True, debian_mirror="http://mirror.example.com/debian").find(
            DEBIAN, asked="bootstrap:debian/bookworm", system="debian12"
        )
    assert caught.value.hint == "apt-get install mmdebstrap" or os.geteuid() != 0
