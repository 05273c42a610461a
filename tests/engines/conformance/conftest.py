"""Builders, subjects and their images, each made once for all tests of this folder."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark import ParameterSet

from envkit.assemble.engine import EmbeddedBuilder
from envkit.engines.builder import EngineBuilder
from envkit.engines.by_name import ENGINES
from envkit.engines.model import Builder, BuildOptions, BuiltImage
from envkit.ground import settings
from envkit.ground.progress import Silent
from envkit.lock.base import registered
from envkit.lock.model import Lock
from envkit.lock.solve import Options, lock_plan
from envkit.lock.store import write_lock
from envkit.plan.model import BuildPlan
from envkit.render.locked import index_locations
from tests.engines.conformance import images, sources
from tests.engines.conformance.sources import Sources
from tests.engines.conftest import quick_with
from tests.engines.faults import Proxy
from tests.support.heard import Heard
from tests.support.plans import plan_from
from tests.world.world import up

BUILDERS = (*ENGINES, "embedded")
# Podman takes the Dockerfile that Docker takes: the larger subject would tell nothing new of it.
IMAGES = tuple((name, kind) for name in BUILDERS for kind in ("wheels", "conda") if (name, kind) != ("podman", "conda"))
# A path of a file with `Sources` in it: they are served by another process, which has the world.
GIVEN = "CONFORMANCE_SOURCES"
# What `make test` builds.
_QUICK = (("docker", "wheels"), ("embedded", "conda"))
_LABELS = {"a": 'say "hi"', "b": "$HOME and \\n", "c": "back\\", "d": "{{x}} 'y'", "e": "déjà vu"}
_MORE = 'pip: [greeting]\nuser: "1234:4321"\nenv: {GREETING: "say \\"hi\\" to $HOME \\\\n {{x}}"}\nlabels:\n' + "".join(
    f"  com.example.{key}: '{value.replace(chr(39), chr(39) * 2)}'\n" for key, value in _LABELS.items()
)
_MORE += (
    "copy: [{from: project, to: code}, {from: project/start.sh, to: /srv/start.sh}]\n"
    'ports: ["8080", 53/udp]\nvolumes: [/data]\n'
)
_DEFINITIONS = {
    "wheels": f'template: wheels\ncompanions: []\nrequest: {{torch: "{sources.TORCH}", cpu: true, source: pytorch}}\n',
    "conda": 'companions: []\nconda: [tool]\nrequest: {os: debian12, python: "3.11", cpu: true}\n',
}


def quick_images(pairs: Iterable[tuple[str, str]]) -> list[ParameterSet]:
    """Parameters of `made`: `make test` takes the quick ones alone."""
    return [pytest.param(pair, marks=() if pair in _QUICK else pytest.mark.long) for pair in pairs]


@dataclass(frozen=True)
class Subject:
    """What is built: a plan with the lock that was solved for it."""

    plan: BuildPlan
    lock: Lock


@dataclass(frozen=True)
class Bench:
    """One builder, and how it is called here."""

    builder: Builder
    mirrors: Callable[[str], settings.Mirrors]  # of a word that makes URLs new; '' for the usual ones
    folder: Path  # state, and for the embedded engine the cache

    @property
    def name(self) -> str:
        return self.builder.name

    def build(self, subject: Subject, heard: Heard, *, fresh: str = "", **options: Any) -> BuiltImage:
        """Build a subject, by its usual name where no tags are given."""
        tags = options.pop("tags", (f"localhost/envkit-test/conformance-{self.name}:1",))
        asked = BuildOptions(tags=tags, mirrors=self.mirrors(fresh), network="host", **options)
        return self.builder.build(subject.plan, subject.lock, asked, heard)

    def fresh(self, folder: Path) -> Bench:
        """The same builder with a state, and a cache where it has one, of its own."""
        return Bench(_builder(self.name, folder), self.mirrors, folder)


@dataclass(frozen=True)
class Made:
    """A subject's image by one builder."""

    bench: Bench
    subject: Subject
    built: BuiltImage
    image: images.Read
    heard: Heard
    tree: dict[str, images.Node] = field(repr=False)


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sources]:
    """The sources, with the world's settings in the environment."""
    if os.environ.get(GIVEN):
        yield sources.read(Path(os.environ[GIVEN]))
        return
    world = up()
    with pytest.MonkeyPatch.context() as patch, sources.serve(tmp_path_factory.mktemp("sources"), world) as found:
        for name, value in world.env().items():
            patch.setenv(name, value)
        yield found


@pytest.fixture(scope="session")
def proxy(served: Sources) -> Iterator[Proxy]:
    """What every builder asks; faults go here."""
    with sources.through_proxy(served) as found:
        yield found


@pytest.fixture(autouse=True)
def _no_faults_left(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "proxy" in request.fixturenames:
        request.getfixturevalue("proxy").faults.clear()


@pytest.fixture(scope="session")
def mirrors(served: Sources, proxy: Proxy) -> Callable[[str], settings.Mirrors]:
    def found(fresh: str) -> settings.Mirrors:
        variables = {**os.environ, **served.settings(proxy.address, fresh=fresh)}
        return settings.load({}, variables, Path("/nonexistent")).mirrors()

    return found


@pytest.fixture(scope="session")
def solved(served: Sources, mirrors: Callable[[str], settings.Mirrors]) -> Callable[[str], Subject]:
    """A subject by its name; each is solved once."""
    known: dict[str, Subject] = {}

    def subject(kind: str) -> Subject:
        if kind not in known:
            plan = plan_from(_DEFINITIONS[kind] + _MORE, folder=Path(__file__).parent)
            name, _, digest = served.base.partition("@")
            plan = replace(plan, base=name, build_base=name)
            asked = Options(glibc="2.36", base=name)
            lock = lock_plan(
                plan,
                index_locations(plan, mirrors("")),
                asked,
                resolve_base=lambda made: registered(made.base, digest),
                reporter=Silent(),
            )
            known[kind] = Subject(plan, lock)
        return known[kind]

    return subject


@pytest.fixture(params=list(_DEFINITIONS), scope="session")
def subject(request: pytest.FixtureRequest, solved: Callable[[str], Subject]) -> Subject:
    """Wheels in a virtual environment, or conda packages with wheels on top."""
    return solved(request.param)


@pytest.fixture(scope="session")
def wheels(solved: Callable[[str], Subject]) -> Subject:
    """The quicker subject, for what does not depend on it."""
    return solved("wheels")


@pytest.fixture(scope="session")
def wheels_files(wheels: Subject, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The plan and the lock of the quicker subject."""
    folder = tmp_path_factory.mktemp("wheels")
    (folder / "plan.json").write_bytes(wheels.plan.canonical())
    write_lock(folder / "envkit.lock", wheels.lock)
    shutil.copytree(Path(wheels.plan.folder) / "project", folder / "project")
    return folder


@pytest.fixture(scope="session")
def benches(
    mirrors: Callable[[str], settings.Mirrors], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Bench]]:
    """A builder by its name; tags that its tests gave are removed at the end."""
    known: dict[str, Bench] = {}

    def bench(name: str) -> Bench:
        if name not in known:
            folder = tmp_path_factory.mktemp(name)
            known[name] = Bench(_builder(name, folder), mirrors, folder)
        return known[name]

    yield bench
    for name in known:
        if name in ENGINES:
            client = "podman" if name == "podman" else "docker"
            tag = f"localhost/envkit-test/conformance-{name}:1"
            subprocess.run([client, "rmi", tag], capture_output=True, check=False)


@pytest.fixture(params=quick_with(BUILDERS, "docker", "embedded"), scope="session")
def bench(request: pytest.FixtureRequest, benches: Callable[[str], Bench]) -> Bench:
    """One builder."""
    return benches(request.param)


@pytest.fixture(scope="session")
def making(benches: Callable[[str], Bench], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Subject], Made]:
    """A subject's image by a builder; each is built once."""
    known: dict[tuple[str, str], Made] = {}

    def make(name: str, subject: Subject) -> Made:
        key = (name, subject.plan.digest)
        if key not in known:
            bench, heard = benches(name), Heard()
            folder = tmp_path_factory.mktemp(f"image-{name}")
            more = {"output": f"oci:{folder / 'layout'}"} if name == "embedded" else {}
            labels = (("com.example.run", "1"),)
            built = bench.build(subject, heard, log_file=folder / "build.log", labels=labels, **more)
            image = images.read(built, folder / "image")
            known[key] = Made(bench, subject, built, image, heard, image.tree())
        return known[key]

    return make


@pytest.fixture(params=quick_images(IMAGES), ids="-".join, scope="session")
def made(
    request: pytest.FixtureRequest, solved: Callable[[str], Subject], making: Callable[[str, Subject], Made]
) -> Made:
    """The image of one subject by one builder."""
    name, kind = request.param
    return making(name, solved(kind))


@pytest.fixture
def word() -> str:
    """What no one wrote before."""
    return secrets.token_hex(6)


def _builder(name: str, folder: Path) -> Builder:
    if name == "embedded":
        return EmbeddedBuilder(state=folder / "state", cache=folder / "cache")
    client = os.environ.get("ENVKIT_DOCKER_CLI") or "docker"
    return EngineBuilder(ENGINES[name](client), state=folder / "state")
