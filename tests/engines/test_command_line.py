"""`envkit build` as people type it, on every engine: whole builds, and ends by signal at awkward moments."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from envkit.ground.state import read_last
from envkit.plan.store import load_plan
from tests.engines.conftest import containers
from tests.world.world import World

pytestmark = [pytest.mark.engine, pytest.mark.long]
ENVKIT = (sys.executable, "-m", "envkit")


def environment(world: World, folder: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ENVKIT_")}
    return kept | world.env() | {"XDG_STATE_HOME": str(folder)}


@pytest.mark.parametrize("name", ["buildkit", "podman"])  # test_spine.py has Docker
def test_the_default_cpu_image_is_built_and_verified(world: World, tmp_path: Path, name: str) -> None:
    world.require("podman" if name == "podman" else "docker", "registry", "base", "channel", "miniconda")
    tag = f"localhost/envkit-test/cpu:{name}"
    command = [*ENVKIT, "build", "--cpu", "--engine", name, "-t", tag, "--label", "com.example.team=vision"]
    done = subprocess.run(
        [*command, "--progress", "plain", "-o", str(tmp_path / "built.json")],
        capture_output=True, text=True, check=False, env=environment(world, tmp_path), cwd=tmp_path, timeout=800,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:] + done.stdout[-3000:]
    built = json.loads((tmp_path / "built.json").read_text())
    assert built["schema"] == "envkit.build/1"
    assert (built["tags"], built["engine"]) == ([tag], name)
    assert built["base"]["digest"].startswith("sha256:")
    assert built["labels"]["com.example.team"] == "vision"
    assert built["labels"]["envkit.plan"] == built["plan"]
    assert built["verification"]["exit_code"] == 0
    assert Path(built["log"]).read_text()
    state = tmp_path / "envkit"
    last = read_last(state)
    assert (last.image, last.plan, last.engine) == (built["image"], built["plan"], name)
    plan = load_plan(state, last.plan)
    assert plan is not None
    assert plan.resolution.torch == built["resolution"]["torch"]
    assert not list((state / "runs").glob("*"))


@pytest.mark.parametrize(
    ("name", "number", "code"),
    [
        ("docker", signal.SIGINT, 130),
        ("docker", signal.SIGTERM, 143),
        ("buildkit", signal.SIGINT, 130),
        ("podman", signal.SIGTERM, 143),
    ],
)
def test_a_signal_ends_the_build_and_leaves_nothing(
    world: World, tmp_path: Path, name: str, number: signal.Signals, code: int
) -> None:
    world.require("podman" if name == "podman" else "docker", "registry", "base", "channel", "miniconda")
    before = containers("podman") if name == "podman" else {}
    command = [*ENVKIT, "build", "--cpu", "--engine", name, "--no-cache", "--progress", "plain"]
    with (tmp_path / "talk").open("w") as talk, subprocess.Popen(
        command, stdout=talk, stderr=talk, env=environment(world, tmp_path), cwd=tmp_path,
    ) as process:  # fmt: skip
        deadline = time.monotonic() + 120
        while "RUN" not in (tmp_path / "talk").read_text():
            assert process.poll() is None, (tmp_path / "talk").read_text()[-2000:]
            assert time.monotonic() < deadline
            time.sleep(0.1)
        time.sleep(2)
        notes = list((tmp_path / "envkit" / "runs").glob("*.json"))
        made = [ident for note in notes for ident in json.loads(note.read_text())["containers"]]
        process.send_signal(number)
        assert process.wait(timeout=60) == code
    assert "error: ended by SIG" in (tmp_path / "talk").read_text()
    assert "hint: run the same command again" in (tmp_path / "talk").read_text()
    assert not list((tmp_path / "envkit" / "runs").glob("*"))
    left = containers("podman" if name == "podman" else "docker")
    assert not [ident for ident in left if any(ident.startswith(one[:12]) for one in made)]
    if name == "podman":
        assert set(left) <= set(before)
