"""`envkit build --output registry:...` as people type it: tags follow the verification; builds from caches alone."""

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from envkit.image.name import parse_reference
from envkit.registry.registry import Registry
from envkit.registry.transport import Transport
from tests.engines.faults import proxy_before
from tests.engines.oci_images import image_of, push, registry
from tests.support.heard import Heard
from tests.world.world import World, up

pytestmark = pytest.mark.engine
ENVKIT = (sys.executable, "-m", "envkit")
# On no base nothing in the image can run, so a verification of it fails.
BARE = """schema: envkit.image/1
title: Bare
template: wheels
companions: []
request: {torch: "2.13.0", cpu: true, source: pytorch}
"""
# Only what the world's channel holds.
CPU = """schema: envkit.image/1
title: CPU
companions: []
request: {os: debian12, python: "3.11", cpu: true}
smoke: {tier: quick}
"""
NOWHERE = "http://127.0.0.1:9/nothing"


@dataclass(frozen=True, slots=True)
class Ended:
    """What a command left."""

    code: int
    out: str
    err: str
    document: dict[str, Any]


@pytest.fixture(scope="module")
def place() -> World:
    found = up(("registry", "base", "channel"))
    found.require("registry", "base", "channel")
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("output")


@pytest.fixture(scope="module")
def environ(place: World, folder: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ENVKIT_")}
    own = {"XDG_STATE_HOME": str(folder / "state"), "XDG_CACHE_HOME": str(folder / "cache"), "HOME": str(folder)}
    return kept | place.env() | own


@pytest.fixture(scope="module")
def locked(environ: dict[str, str], folder: Path) -> Path:
    (folder / "bare.yaml").write_text(BARE)
    argv = [*ENVKIT, "lock", "bare.yaml", "--base", "none", "-o", "bare.lock"]
    done = subprocess.run(argv, cwd=folder, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "bare.lock"


@pytest.fixture(scope="module")
def build(environ: dict[str, str], folder: Path, locked: Path) -> Callable[..., Ended]:
    def run(*flags: str, env: dict[str, str] | None = None) -> Ended:
        (folder / "built.json").unlink(missing_ok=True)
        fixed = ["--engine", "embedded", "--locked", str(locked), "--base", "none", "-o", "built.json"]
        done = subprocess.run(
            [*ENVKIT, "build", "bare.yaml", *fixed, "--progress", "plain", *flags],
            cwd=folder, env=environ | (env or {}), capture_output=True, text=True, check=False, timeout=500,
        )  # fmt: skip
        made = folder / "built.json"
        return Ended(done.returncode, done.stdout, done.stderr, json.loads(made.read_text()) if made.exists() else {})

    return run


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with registry(tmp_path_factory.mktemp("registry")) as found:
        yield found


@pytest.fixture
def name(host: str) -> str:
    return f"{host}/team/{secrets.token_hex(4)}:1"


def held(where: str) -> str | None:
    reference = parse_reference(where)
    with Transport() as transport:
        found = Registry(reference.registry, transport, {}).manifest(reference)
    return found.digest if found else None


@pytest.mark.long
def test_what_is_not_proved_is_not_tagged(build: Callable[..., Ended], name: str) -> None:
    done = build("--output", f"registry:{name}")
    place, digest = name.rpartition(":")[0], done.document["digest"]
    assert done.code == done.document["verification"]["exit_code"] != 0
    assert done.document["push"] == {
        "reference": f"{place}@{digest}",
        "tag": name,
        "tagged": False,
        "why": f"the image is not verified: {done.document['verification']['verdict']}, exit code {done.code}",
    }
    assert f"not tagged: {done.document['push']['why']}\n" in done.err
    assert f"{name} is unchanged; the image is in the registry as {place}@{digest}\n" in done.err
    assert "to tag it without verification, run again with --no-verify" in done.err
    assert held(name) is None
    assert held(f"{place}@{digest}") == digest


@pytest.mark.long
def test_without_verification_the_tag_moves_when_that_was_asked_for(build: Callable[..., Ended], name: str) -> None:
    done = build("--output", f"registry:{name}", "--no-verify")
    assert (done.code, held(name)) == (0, done.document["digest"]), done.err
    assert done.document["push"]["tagged"]
    assert f"note: tagged {name}: " in done.err
    again = build("--output", f"registry:{name}", "--no-verify")
    assert (again.code, again.document["digest"]) == (0, done.document["digest"])


def test_another_tag_is_refused_before_anything_is_fetched(
    build: Callable[..., Ended], name: str, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    other = image_of(tmp_path / "other")
    with Transport() as transport:
        reference = parse_reference(name)
        push(other, reference, Registry(reference.registry, transport, {}), Heard())
    early = build("--output", f"registry:{name}", "--no-verify", env={"XDG_CACHE_HOME": str(tmp_path / "cache")})
    assert early.code == 8
    assert f"error: {name} already points to another image ({other.digest})" in early.err
    assert "hint: --replace-tag moves the tag" in early.err
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert held(name) == other.digest


@pytest.mark.long
def test_an_image_that_differs_by_a_label_is_known_once_it_is_made(build: Callable[..., Ended], name: str) -> None:
    first = build("--output", f"registry:{name}", "--no-verify")
    late = build("--output", f"registry:{name}", "--no-verify", "--label", "com.example.run=2")
    assert late.code == 8
    assert f"error: {name} already points to another image ({first.document['digest']})" in late.err
    assert held(name) == first.document["digest"]
    moved = build("--output", f"registry:{name}", "--no-verify", "--label", "com.example.run=2", "--replace-tag")
    assert (moved.code, held(name)) == (0, moved.document["digest"])
    assert moved.document["digest"] != first.document["digest"]


@pytest.mark.long
def test_push_goes_to_every_name(build: Callable[..., Ended], host: str, name: str) -> None:
    latest, other = f"{name.rpartition(':')[0]}:latest", f"{host}/other/{secrets.token_hex(4)}:1"
    names = [flag for one in (name, latest, other) for flag in ("-t", one)]
    refused = build("--push", *names)
    assert refused.code == refused.document["verification"]["exit_code"] != 0
    why = f"the image is not verified: {refused.document['verification']['verdict']}, exit code {refused.code}"
    assert [(row["tag"], row["why"]) for row in refused.document["pushes"]] == [
        (one, why) for one in (name, latest, other)
    ]
    assert [held(one) for one in (name, latest, other)] == [None] * 3
    done = build("--push", *names, "--no-verify")
    assert done.code == 0, done.err
    assert done.document["push"] == done.document["pushes"][0]
    assert [row["tagged"] for row in done.document["pushes"]] == [True] * 3
    assert [held(one) for one in (name, latest, other)] == [done.document["digest"]] * 3
    bare = build("--push", "-t", "train:1", "--no-verify")
    assert bare.code == 2
    assert "hint: write HOST/NAME:TAG: registry.example.com/team/train:1.0" in bare.err


@pytest.mark.long
def test_layers_come_from_another_repository(build: Callable[..., Ended], host: str, name: str) -> None:
    build("--output", f"registry:{name}", "--no-verify")
    below = parse_reference(name).repository
    with proxy_before(host) as proxy:
        mine = f"{proxy.address}/team/{secrets.token_hex(4)}:1"
        done = build("--output", f"registry:{mine}", "--no-verify", "--mount-from", f"{proxy.address}/{below}")
        assert done.code == 0, done.err
        assert proxy.count("^PATCH ") == 0
        assert proxy.count("^POST .*mount=") == proxy.count("^HEAD ")


@pytest.mark.requirement("R22")
@pytest.mark.long
def test_offline_takes_everything_from_caches(build: Callable[..., Ended], tmp_path: Path) -> None:
    first = build("--output", f"oci:{tmp_path}/out", "--no-verify")
    assert first.code == 0, first.err
    away = {"ENVKIT_PYTORCH_INDEX": NOWHERE, "ENVKIT_CONDA_CHANNEL_ALIAS": NOWHERE}
    again = build("--output", f"oci:{tmp_path}/again", "--no-verify", "--offline", env=away)
    assert (again.code, again.document["digest"]) == (0, first.document["digest"])
    empty = build("--output", f"oci:{tmp_path}/none", "--no-verify", "--offline", env={"XDG_CACHE_HOME": str(tmp_path)})
    assert empty.code == 9
    assert "error: offline, and 10 of 10 files are not in " in empty.err
    assert sum(line.startswith("  ") and ": http://" in line for line in empty.err.splitlines()) == 10
    assert "hint: run once without --offline" in empty.err
    assert not (tmp_path / "none").exists()


def test_a_registry_without_a_login_is_found_before_anything_is_made(
    build: Callable[..., Ended], tmp_path: Path
) -> None:
    (tmp_path / "locked").mkdir()
    with registry(tmp_path / "locked", password=True) as host:
        done = build("--output", f"registry:{host}/a:1", "--no-verify", env={"XDG_CACHE_HOME": str(tmp_path / "cache")})
    assert done.code == 8
    assert f"error: {host} requires a login, and none was found in " in done.err
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


@pytest.mark.long
def test_a_verification_that_ends_well_moves_the_tag(environ: dict[str, str], folder: Path, name: str) -> None:
    (folder / "cpu.yaml").write_text(CPU)
    argv = [
        *ENVKIT,
        "build",
        "cpu.yaml",
        "--output",
        f"registry:{name}",
        "-o",
        "proved.json",
        "--progress",
        "plain",
    ]
    done = subprocess.run(argv, cwd=folder, env=environ, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stderr
    document = json.loads((folder / "proved.json").read_text())
    assert document["verification"]["exit_code"] == 0
    assert document["push"]["tagged"]
    assert held(name) == document["digest"]
    # Until the verification the name did not lead to the image.
    assert done.stderr.index("verify: ") < done.stderr.index(f"note: tagged {name}: ")
    # The record of that verification lets the image built last have another name.
    argv = [*ENVKIT, "push", f"{name}-again", "--json", "--progress", "quiet"]
    again = subprocess.run(argv, cwd=folder, env=environ, capture_output=True, text=True, check=False, timeout=100)
    assert again.returncode == 0, again.stderr
    pushed = json.loads(again.stdout)
    assert (pushed["id"], pushed["digest"], pushed["sent_bytes"]) == (document["image"], document["digest"], 0)
    assert Path(pushed["proof"]["record"]).parent == folder / "state" / "envkit" / "records"
    assert held(f"{name}-again") == document["digest"]
