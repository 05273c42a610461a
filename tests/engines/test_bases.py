"""Base images for real: by digest from a registry, from this machine, or made from Debian's own packages."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from envkit.assemble.engine import EmbeddedBuilder
from envkit.engines.base import Bases
from envkit.engines.builder import EngineBuilder
from envkit.engines.log import BuildLog
from envkit.engines.model import BuildOptions, Engine
from envkit.ground.errors import EnvironmentProblem
from envkit.ground.settings import Mirrors
from envkit.image.name import image_name
from envkit.lock import apt
from envkit.lock.model import DebPackage, LockedBase
from envkit.run.model import RunLimits
from envkit.run.runners import choose
from tests.support.heard import Heard
from tests.support.plans import shipped_plan
from tests.world.world import World

pytestmark = pytest.mark.engine
DEBIAN = "docker.io/library/debian:bookworm-slim"
NOWHERE = "127.0.0.1:9"


def bases(engine: Engine, heard: Heard, state: Path, *, no_cache: bool = False, **mirrors: str | None) -> Bases:
    options = BuildOptions(mirrors=Mirrors(**mirrors), no_cache=no_cache)
    return Bases(engine, options, BuildLog(state / "log", heard), heard, state)


def test_a_mirror_gives_the_digest(engine: Engine, place: World, pinned: str, heard: Heard, tmp_path: Path) -> None:
    found = bases(engine, heard, tmp_path, registry=place.registry).find(DEBIAN, requested="auto", system="debian12")
    assert found.reference == pinned
    assert found.origin == "registry"


def test_a_local_image_can_be_named(engine: Engine, place: World, pinned: str, heard: Heard, tmp_path: Path) -> None:
    assert place.base is not None
    engine.digest(place.base)
    finder = bases(engine, heard, tmp_path)
    assert finder.find(DEBIAN, requested=pinned, system="debian12").digest == pinned.rpartition("@")[2]


@pytest.mark.long
def test_debian_is_made_from_its_own_packages(engine: Engine, heard: Heard, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("mmdebstrap needs root")
    finder = bases(engine, heard, tmp_path, registry=NOWHERE)
    found = finder.find(DEBIAN, requested="auto", system="debian12")
    assert found.origin == "bootstrap"
    assert found.digest is None
    assert any("no registry answers" in note and "building it from Debian packages" in note for note in heard.notes)
    image = engine.local(found.reference)
    assert image is not None
    assert image.size is not None
    assert image.size < 200e6
    assert (
        bases(engine, heard, tmp_path).find(DEBIAN, requested="bootstrap:debian/bookworm", system="debian12") == found
    )
    assert any("--no-cache rebuilds it" in note for note in heard.notes)
    result = choose("auto", heard, image=image_name("any"), engine=engine.name).run(
        image_name(image.id),
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
    with pytest.raises(EnvironmentProblem, match="is unreachable") as caught:
        finder.find("docker.io/library/ubuntu:22.04", requested="auto", system="ubuntu22.04")
    assert "ENVKIT_REGISTRY" in (caught.value.hint or "")


def test_without_mmdebstrap_the_command_is_named(
    engine: Engine, heard: Heard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("envkit.engines.bootstrap.shutil.which", lambda _: None)
    with pytest.raises(EnvironmentProblem) as caught:
        bases(engine, heard, tmp_path, no_cache=True, debian_mirror="http://mirror.example.com/debian").find(
            DEBIAN, requested="bootstrap:debian/bookworm", system="debian12"
        )
    assert (caught.value.hint or "").startswith("apt-get install mmdebstrap; or ")


def test_a_lock_stands_on_the_same_image_whichever_engine_it_is_for(
    engine: Engine, place: World, pinned: str, heard: Heard, tmp_path: Path
) -> None:
    plan, options = shipped_plan("cpu"), BuildOptions(mirrors=Mirrors(registry=place.registry))
    expected = LockedBase(kind="registry", reference=DEBIAN, digest=pinned.rpartition("@")[2])
    assert EngineBuilder(engine, state=tmp_path).locked_base(plan, options, heard) == expected
    assert EmbeddedBuilder(state=tmp_path, cache=tmp_path).locked_base(plan, options, heard) == expected


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[DebPackage, ...]]:
    """Debian's packages for a small base with tini, and a cache of layers that all engines of this module share."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield apt.packages("bookworm", "linux-64", None, ["tini"])


@pytest.mark.long
def test_a_lock_of_packages_is_the_same_root_on_every_engine(
    engine: Engine, packages: tuple[DebPackage, ...], heard: Heard, tmp_path: Path
) -> None:
    if os.geteuid() != 0:
        pytest.skip("the test world's engines are root's")
    base = LockedBase(kind="bootstrap", reference="bootstrap:debian/bookworm", suite="bookworm", packages=packages)
    finder = bases(engine, heard, tmp_path)
    found = finder.locked(base)
    assert finder.locked(base) == found
    image = engine.local(found.reference)
    assert image is not None
    result = choose("auto", heard, image=image_name("any"), engine=engine.name).run(
        image_name(image.id),
        ["dpkg-query", "-W", "-f", "${Package} ${Version} ${Architecture}\\n"],
        {},
        gpus=None,
        limits=RunLimits(timeout_s=60),
        reporter=heard,
    )
    assert sorted(result.stdout.decode().splitlines()) == sorted(f"{p.name} {p.version} {p.arch}" for p in packages)
    assert len([step for step in heard.steps if step.startswith("build the Debian base")]) <= 1
    assert not list(tmp_path.glob("runs/*"))
