"""A lock and a Docker engine: the image holds what the lock says, and what the lock does not say is not built."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from envkit.lock.model import Lock
from envkit.lock.store import digest_of, read_lock, write_lock
from tests.world.places import UnavailableError
from tests.world.world import World

pytestmark = [pytest.mark.engine, pytest.mark.long]
DEFINITION = "schema: envkit.image/1\ntitle: Locked\nextends: cpu\npip: [einops]\n"
TAG = "localhost/envkit-test/locked:1"
# What conda and pip noted in the image, each in its own way.
INSIDE = """
import glob, importlib.metadata, json
rows = [json.load(open(name)) for name in glob.glob("/opt/env/conda-meta/*.json")]
found = importlib.metadata.distributions()
found = [(one.name, one.version, (one.read_text("INSTALLER") or "").strip()) for one in found]
print(json.dumps({"conda": [[row["name"], row["version"], row["build"]] for row in rows], "python": found}))
"""


@dataclass(frozen=True)
class Place:
    """A folder with a definition and its lock, and the world's settings."""

    folder: Path
    variables: dict[str, str]
    lock: Lock

    def envkit(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return _envkit(self.folder, self.variables, *arguments)


def _envkit(folder: Path, variables: dict[str, str], *arguments: str) -> "subprocess.CompletedProcess[str]":
    argv = [sys.executable, "-m", "envkit", *arguments]
    return subprocess.run(argv, capture_output=True, text=True, check=False, cwd=folder, env=variables, timeout=900)


@pytest.fixture(scope="module")
def place(world: World, tmp_path_factory: pytest.TempPathFactory) -> Place:
    world.require("docker", "registry", "base", "channel", "miniconda")
    folder = tmp_path_factory.mktemp("locked")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ENVKIT_")}
    variables = kept | world.env() | {"XDG_STATE_HOME": str(folder / "state")}
    (folder / "train.yaml").write_text(DEFINITION)
    done = _envkit(folder, variables, "lock", "train.yaml")
    if done.returncode == 9:
        raise UnavailableError(f"the Python index: {done.stderr.splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    return Place(folder, variables, read_lock(folder / "envkit.lock"))


def test_the_image_holds_the_lock_and_nothing_else(place: Place) -> None:
    done = place.envkit("build", "train.yaml", "--engine", "docker", "-t", TAG, "--no-verify", "-o", "built.json",
                        "--progress", "plain")  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert "note: lock: envkit.lock\n" in done.stderr
    built = json.loads((place.folder / "built.json").read_text())
    assert built["lock"] == built["labels"]["envkit.lock"] == digest_of(place.lock)
    assert built["base"]["digest"] == place.lock.base.digest
    assert read_lock(place.folder / "state/envkit/locks" / f"{built['lock'][7:]}.json") == place.lock

    argv = ["docker", "run", "--rm", "--entrypoint", "/opt/env/bin/python", built["image"], "-c", INSIDE]
    inside = json.loads(subprocess.run(argv, capture_output=True, text=True, check=True, env=place.variables).stdout)
    conda = {one.name: one for one in place.lock.conda}
    assert sorted(inside["conda"]) == [[one.name, one.version, one.build] for one in place.lock.conda]
    assert {wheel.name for wheel in place.lock.wheels} == {"einops"}
    by_pip = {(canonicalize_name(name), version) for name, version, tool in inside["python"] if tool == "pip"}
    assert by_pip == {(wheel.name, wheel.version) for wheel in place.lock.wheels}
    names = {str(canonicalize_name(name)) for name, *_ in inside["python"]}
    names = {{"torch": "pytorch", "typing-extensions": "typing_extensions"}.get(name, name) for name in names}
    assert names - {"einops"} <= set(conda)


def test_the_image_of_a_plan_that_moved_on_is_refused(place: Place) -> None:
    (place.folder / "other.yaml").write_text(f"{DEFINITION.strip()[:-1]}, six]\n")
    done = place.envkit("build", "other.yaml", "--locked", "envkit.lock", "--engine", "docker")
    assert done.returncode == 4
    assert "error: envkit.lock is stale: pip: nothing in the lock, six requested" in done.stderr
    assert "hint: envkit lock other.yaml --engine docker -o envkit.lock" in done.stderr


@pytest.mark.parametrize("kind", ["conda", "wheels"])
def test_bytes_that_are_not_the_locks_fail_the_build(place: Place, kind: str) -> None:
    rows = getattr(place.lock, kind)
    right = rows[-1] if kind == "wheels" else next(row for row in rows if row.name == "tini")
    wrong = tuple(replace(row, sha256="0" * 64) if row == right else row for row in rows)
    # With a seal of its own, so the build is what notices.
    lock = replace(place.lock, conda=wrong) if kind == "conda" else replace(place.lock, wheels=wrong)
    write_lock(place.folder / "wrong.lock", lock)
    tag = f"localhost/envkit-test/wrong-{kind}:1"
    done = place.envkit("build", "train.yaml", "--locked", "wrong.lock", "--engine", "docker", "-t", tag, "--no-verify")
    assert done.returncode == 10, done.stderr[-3000:]
    first = next(line for line in done.stderr.splitlines() if line.startswith("error: "))
    assert first.startswith(f"error: the build of train: a download does not match the lock: {right.name}")
    assert first.endswith(f": expected sha256 {'0' * 64}, got {right.sha256}")
    there = subprocess.run(["docker", "image", "inspect", tag], capture_output=True, check=False, env=place.variables)
    assert there.returncode != 0
