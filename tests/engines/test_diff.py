"""What images carry, read from really built ones: files, a real registry and a real engine tell the same."""

import functools
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from envkit.assemble.engine import EmbeddedBuilder
from envkit.attest import packages
from envkit.attest.access import Access
from envkit.attest.content import Content, Package
from envkit.attest.diff import difference
from envkit.attest.reading import read_content
from envkit.cli import main
from envkit.engines.model import BuildOptions
from envkit.ground import settings
from envkit.ground.progress import Silent
from envkit.image.name import parse_reference, published_name
from envkit.lock.store import read_lock
from envkit.plan.definition import load
from envkit.plan.planner import plan_of
from envkit.registry.registry import Registry
from envkit.registry.transport import Transport
from tests.engines.oci_images import push, registry
from tests.support.file_images import read_folder
from tests.support.plans import facts
from tests.world.world import up

pytestmark = [pytest.mark.engine, pytest.mark.long]
HEAD = 'schema: envkit.image/1\ntitle: CPU\ncompanions: []\nrequest: {os: debian12, python: "3.11", cpu: true}\n'
MORE = f"{HEAD}conda: [pip]\nenv: {{STAGE: two}}\n"


@pytest.fixture(scope="module", autouse=True)
def _world() -> Iterator[None]:
    found = up(("docker", "registry", "base", "channel"))
    found.require("docker", "registry", "base", "channel")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in found.env().items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("diff")


@pytest.fixture(scope="module")
def images(folder: Path) -> tuple[str, str]:
    """Two layouts of two locks; nothing runs in them."""
    return _built(folder, "one", HEAD), _built(folder, "two", MORE)


def _built(folder: Path, name: str, definition: str) -> str:
    (folder / f"{name}.yaml").write_text(definition)
    plan = plan_of(load(str(folder / f"{name}.yaml")), {}, facts())
    argv = [sys.executable, "-m", "envkit", "lock", f"{name}.yaml", "--base", "none", "-o", f"{name}.lock"]
    done = subprocess.run(argv, cwd=folder, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lock = read_lock(folder / f"{name}.lock")
    options = BuildOptions(
        tags=(), mirrors=settings.load({}, os.environ, folder).mirrors(), output=f"oci:{folder / name}", base="none"
    )
    EmbeddedBuilder(state=folder / "state", cache=folder / "cache").build(plan, lock, options, Silent())
    return f"oci:{folder / name}"


@pytest.fixture(scope="module")
def pushed(images: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    with registry(tmp_path_factory.mktemp("registry")) as host, Transport() as transport:
        names = (f"{host}/team/train:1", f"{host}/team/train:2")
        for layout, name in zip(images, names, strict=True):
            reference = parse_reference(name)
            image = read_folder(Path(layout.removeprefix("oci:")))
            push(image, reference, Registry(reference.registry, transport, {}), Silent())
        yield names


def rows(found: Content) -> set[tuple[str, str, str]]:
    assert found.packages is not None
    return {_heart(one) for one in found.packages}


def _heart(one: Package) -> tuple[str, str, str]:
    return one.kind, one.name, one.exact


def test_two_built_images_differ_in_what_their_definitions_do(images: tuple[str, str]) -> None:
    one, two = (read_content(published_name(name), Access()) for name in images)
    found = difference(one, two)
    assert found.packages is not None
    assert [(row.kind, row.name, row.before) for row in found.packages] == [("conda", "pip", None)]
    assert found.env is not None
    assert [(row.name, row.before, row.after) for row in found.env] == [("STAGE", None, "two")]
    assert found.layers is not None
    assert found.layers.shared >= len(one.layers or ()) - 1
    assert found.layers.only_before == 1  # the one with the lock
    assert not found.same
    assert difference(one, one).same


def test_the_lock_says_what_the_layers_hold(images: tuple[str, str]) -> None:
    for name in images:
        opened = Access().open(published_name(name))
        assert opened is not None
        seen = packages.PackageFiles()
        for place in reversed(range(len(opened.layers))):
            seen.add(functools.partial(opened.tar, place))
        assert {_heart(one) for one in packages.installed(seen, None)} == rows(
            read_content(published_name(name), Access())
        )


def test_of_a_registrys_images_only_the_layer_with_the_lock_is_fetched(
    images: tuple[str, str], pushed: tuple[str, str], tmp_path: Path
) -> None:
    access = Access(cache=tmp_path)
    near, far = (
        [read_content(published_name(name), access) for name in images],
        [read_content(published_name(name), access) for name in pushed],
    )
    for here, there in zip(near, far, strict=True):
        assert there.layers is not None
        assert (there.id, rows(there), there.plan) == (here.id, rows(here), here.plan)
        assert difference(here, there).same
        assert there.fetched == there.layers[-1].size
        assert not (tmp_path / "blobs" / (there.layers[0].digest or "").removeprefix("sha256:")).exists()


def test_the_command_line(pushed: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    one, two = pushed
    assert main.run(["diff", one, two, "--exit-code", "--progress", "quiet"]) == 6
    out = capsys.readouterr().out
    assert "  + pip " in out
    assert "  STAGE  none -> two" in out
    assert main.run(["diff", one, f"registry:{one}", "--exit-code", "--progress", "quiet"]) == 0
    assert capsys.readouterr().out.endswith("\nidentical\n")
    assert main.run(["diff", one, one.replace(":1", ":none"), "--progress", "quiet"]) == 8
    assert "there is no image" in capsys.readouterr().err


def test_an_engine_shows_the_packages_that_the_layers_hold(pinned: str, folder: Path) -> None:
    subprocess.run(["docker", "pull", "--quiet", pinned], check=True, capture_output=True)
    argv = ["docker", "image", "inspect", "--format", "{{.Id}}", pinned]
    ident = subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()
    shown = read_content(published_name(ident), Access(runner="docker"))
    held = read_content(published_name(pinned), Access(cache=folder / "fetched", layers=True))
    assert (shown.packages_from, held.packages_from) == ("container", "layers")
    assert rows(shown) == rows(held)
    found = difference(shown, held)
    assert (found.packages, found.env, found.start) == ((), (), ())
    assert found.layers is not None
    assert (found.layers.only_before, found.layers.only_after) == (0, 0)
