"""`envkit push` as people type it, with the images of every engine and file, into a real registry."""

import json
import os
import re
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from envkit.engines.by_name import ENGINES
from envkit.engines.context import pack
from envkit.engines.log import BuildLog
from envkit.engines.model import BuildOptions, Engine, Job
from envkit.ground.errors import EngineError
from envkit.ground.settings import load
from envkit.image import spec
from envkit.image.layout import write_layout
from envkit.image.name import parse_reference
from envkit.registry.registry import Manifest, Registry
from envkit.registry.transport import Transport
from envkit.verify.record import seal
from tests.engines.conftest import quick_with
from tests.engines.faults import proxy_before
from tests.engines.oci_images import image_of, registry, run
from tests.support.flags import build_flags
from tests.support.heard import Heard
from tests.support.plans import shipped_plan
from tests.support.records import cpu_record, gpu_record, passed_record
from tests.unit.cli.test_build import BUILT
from tests.world.world import World

pytestmark = pytest.mark.engine
DOCKERFILE = """FROM scratch
COPY one /one
COPY two /two
ENV GREETING=hello
LABEL com.example.team=vision
HEALTHCHECK CMD ["/one"]
USER 1234
"""
Push = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with registry(tmp_path_factory.mktemp("registry")) as found:
        yield found


@pytest.fixture
def name(host: str) -> str:
    return f"{host}/team/{secrets.token_hex(4)}:1"


@pytest.fixture
def image(tmp_path: Path) -> spec.Image:
    made = image_of(tmp_path, salt=secrets.token_hex(4))
    write_layout(made, tmp_path / "layout")
    return made


@pytest.fixture
def push(tmp_path: Path) -> Push:
    environ = os.environ | {"XDG_STATE_HOME": str(tmp_path / "state"), "XDG_CACHE_HOME": str(tmp_path / "cache")}

    def typed(*arguments: str) -> "subprocess.CompletedProcess[str]":
        argv = [sys.executable, "-m", "envkit", "push", *arguments, "--progress", "plain"]
        return subprocess.run(argv, env=environ, capture_output=True, text=True, check=False, timeout=120, cwd=tmp_path)

    return typed


def held(where: str) -> Manifest | None:
    reference = parse_reference(where)
    with Transport() as transport:
        return Registry(reference.registry, transport, {}).manifest(reference)


def record(path: Path, ident: str, code: int = 0) -> None:
    tree = cpu_record() if code else passed_record()
    tree["subject"]["id"] = ident
    if code:
        tree["summary"] |= {"verdict": "FAIL", "exit_code": code}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**tree, "sha256": seal({**tree})}))


@pytest.mark.requirement("R54")
def test_a_record_that_contradicts_itself_sets_no_tag(push: Push, name: str, image: spec.Image, tmp_path: Path) -> None:
    """A failed record whose verdict was edited, with a seal that fits."""
    tree = gpu_record()
    tree["subject"]["id"] = image.id
    tree["summary"] |= {"verdict": "PASS", "exit_code": 0}
    (tmp_path / "edited.json").write_text(json.dumps({**tree, "sha256": seal({**tree})}))
    done = push(name, "--image", "oci:layout", "--record", "edited.json")
    assert done.returncode == 10, done.stderr
    assert "error: edited.json: the record contradicts itself" in done.stderr
    assert held(name) is None


def config(found: Manifest | None) -> str:
    assert found is not None
    return str(json.loads(found.data)["config"]["digest"])


@pytest.mark.parametrize("kind", quick_with(["docker", "podman"], "docker"))
def test_an_engines_image_arrives_as_the_same_image(
    place: World, push: Push, name: str, host: str, tmp_path: Path, *, kind: str
) -> None:
    place.require(kind, "registry")  # type: ignore[arg-type]  # both are parts of the world
    ident = built(ENGINES[kind](place.docker_client or "docker"), tmp_path)
    record(tmp_path / "state" / "envkit" / "records" / "1.json", ident)
    done = push(name, "--image", ident, "--engine", kind, "-t", "latest", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["id"], document["proof"]["verdict"]) == (ident, "PASS")
    assert [row["tagged"] for row in document["tags"]] == [True, True]
    assert config(held(name)) == config(held(f"{name.rpartition(':')[0]}:latest")) == ident
    flags = ["--tls-verify=false"] if kind == "podman" else []
    run(kind, "pull", "--quiet", *flags, document["reference"])
    pulled = run(kind, "image", "inspect", "--format", "{{.Id}}", document["reference"]).strip()
    assert f"sha256:{pulled.removeprefix('sha256:')}" == ident
    again = json.loads(push(name, "--image", ident, "--engine", kind, "--json").stdout)
    assert (again["digest"], again["sent_bytes"]) == (document["digest"], 0)
    assert again["present_bytes"] == document["sent_bytes"]
    assert not list((tmp_path / "cache" / "envkit" / "runs").iterdir())
    with proxy_before(host) as proxy:  # the engine itself asks the registry for nothing
        elsewhere = push(f"{proxy.address}/own/{secrets.token_hex(4)}:1", "--image", ident, "--engine", kind)
        assert elsewhere.returncode == 0, elsewhere.stderr
        assert "compress" not in elsewhere.stderr  # what it becomes is known, and made for this registry alone
        assert {one.headers["User-Agent"].partition("/")[0] for one in proxy.seen} == {"envkit"}
    run(kind, "rmi", "--force", ident)


def built(engine: Engine, folder: Path) -> str:
    files = {"Dockerfile": DOCKERFILE, "one": secrets.token_hex(4), "two": "2" * 100_000}
    with BuildLog(folder / "build.log", Heard()) as log:
        return engine.make(pack(files), Job(name="try"), log, Heard())


def test_the_record_decides(push: Push, name: str, image: spec.Image, tmp_path: Path) -> None:
    typed, records = (name, "--image", "oci:layout"), tmp_path / "state" / "envkit" / "records"
    first = push(*typed)
    assert first.returncode == 5
    assert f"error: oci:layout is not verified: there is no record of {image.id[:19]} in {records}\n" in first.stderr
    record(records / "1.json", image.id, code=6)
    assert "is not verified: FAIL, exit code 6 in " in push(*typed).stderr
    assert held(name) is None
    assert held(f"{name.rpartition(':')[0]}@{image.digest}") is None
    record(records / "2.json", image.id)
    done = push(*typed)
    assert (done.returncode, done.stdout) == (0, f"{name.rpartition(':')[0]}@{image.digest}\n"), done.stderr
    assert re.search(r"[0-9] [kM]?B sent\n", done.stderr)
    assert f"note: tagged {name}: " in done.stderr
    found = held(name)
    assert found is not None
    assert (found.digest, found.data) == (image.digest, image.manifest)


def test_what_is_proved_elsewhere_is_tagged_afterwards(
    push: Push, name: str, image: spec.Image, tmp_path: Path
) -> None:
    place = name.rpartition(":")[0]
    assert push("--no-tag", place, "--image", "oci:layout").returncode == 0
    assert held(f"{place}@{image.digest}") is not None
    assert held(name) is None
    record(tmp_path / "theirs.json", image.id)
    done = push(name, "--image", f"registry:{place}@{image.digest}", "--record", "theirs.json", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["sent_bytes"] == 0
    assert config(held(name)) == image.id


def test_a_taken_tag_is_left_and_the_others_too(push: Push, name: str, image: spec.Image, tmp_path: Path) -> None:
    place = name.rpartition(":")[0]
    other = tmp_path / "other"
    other.mkdir()
    write_layout(image_of(other, salt="other"), other / "layout")
    assert push(f"{place}:2", "--image", f"oci:{other}/layout", "--unverified").returncode == 0
    before = held(f"{place}:2")
    assert before is not None
    done = push(name, "-t", "2", "--image", "oci:layout", "--unverified")
    assert done.returncode == 8
    assert f"error: {place}:2 already points to another image ({before.digest})\n" in done.stderr
    assert f"hint: --replace-tag moves the tag; the other image stays as {place}@{before.digest}" in done.stderr
    assert held(name) is None
    moved = push(name, "-t", "2", "--image", "oci:layout", "--unverified", "--replace-tag")
    assert moved.returncode == 0, moved.stderr
    assert config(held(f"{place}:2")) == config(held(name)) == image.id
    assert held(f"{place}@{before.digest}") is not None


def test_a_copy_between_registries(
    push: Push, name: str, host: str, image: spec.Image, tmp_path_factory: pytest.TempPathFactory
) -> None:
    assert push(name, "--image", "oci:layout", "--unverified").returncode == 0
    sizes = sum(layer.descriptor.size for layer in image.layers)
    near = json.loads(push(f"{host}/near:1", "--image", f"registry:{name}", "--unverified", "--json").stdout)
    assert (near["digest"], near["sent_bytes"], near["mounted_bytes"]) == (image.digest, len(image.config), sizes)
    with registry(tmp_path_factory.mktemp("far")) as far:
        done = push(f"{far}/far:1", "--image", f"registry:{name}", "--unverified", "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["sent_bytes"] == sizes + len(image.config)
        assert config(held(f"{far}/far:1")) == image.id


def test_a_registry_that_cannot_be_reached_is_given_up_in_time(push: Push, image: spec.Image) -> None:
    assert image.layers
    done = push("127.0.0.1:9/team/train:1", "--image", "oci:layout", "--unverified", "--timeout", "1")
    assert done.returncode == 124
    assert "error: the time limit of 1 s was reached at: check 127.0.0.1:9/team/train\n" in done.stderr


def test_a_name_that_was_set_before_another_one_failed_is_told_as_set(
    push: Push, name: str, host: str, image: spec.Image, *, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    taken, last = (f"{host}/{place}/{secrets.token_hex(4)}:1" for place in ("taken", "last"))
    (tmp_path / "other").mkdir()
    write_layout(image_of(tmp_path / "other", salt="other"), tmp_path / "other" / "layout")
    assert push(taken, "--image", f"oci:{tmp_path}/other/layout", "--unverified").returncode == 0
    typed = ("--push", "-t", name, "-t", f"{name}b", "-t", taken, "-t", last)
    asked = build_flags(*typed).push_after(load({}, os.environ, tmp_path))
    ready = replace(BUILT, engine="embedded", place=f"oci:{tmp_path}/layout", digest=image.digest)
    sent = replace(ready, pushed=f"{name.rpartition(':')[0]}@{image.digest}")
    # The first push sends the image; then it is as if the build had sent it.
    for made, options in ((ready, BuildOptions()), (sent, BuildOptions(output=f"registry:{name}"))):
        tags = asked.end(made, options, None, Heard())
        assert [one.tag for one in tags] == [name, f"{name}b", taken, last]
        assert [one.why_not is None for one in tags] == [True, True, False, False]
        assert [config(held(one)) for one in (name, f"{name}b")] == [image.id] * 2
        assert f"{taken} already points to another image" in str(tags[2].why_not)
        assert tags[3].error is tags[2].error is not None
    assert held(last) is None


def test_a_build_pushes_what_its_engine_made(
    place: World, name: str, host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.require("docker", "registry")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    other, heard = f"{host}/other/{secrets.token_hex(4)}:1", Heard()
    asked = build_flags("--push", "-t", name, "-t", f"{name}b", "-t", other).push_after(load({}, os.environ, tmp_path))
    options, plan = BuildOptions(), shipped_plan("cu126")
    assert asked.begin("docker", options, plan, heard) is options
    ident = built(ENGINES["docker"](place.docker_client or "docker"), tmp_path)
    tags = asked.end(replace(BUILT, id=ident), options, None, heard)
    assert [(one.tag, one.why_not) for one in tags] == [(name, None), (f"{name}b", None), (other, None)]
    assert [config(held(one)) for one in (name, f"{name}b", other)] == [ident] * 3
    assert any(note.startswith("pushed ") and note.endswith(" mounted") for note in heard.notes)
    with pytest.raises(EngineError, match="already points to another image"):
        asked.begin("docker", options, plan, heard)
    run("docker", "rmi", "--force", ident)
