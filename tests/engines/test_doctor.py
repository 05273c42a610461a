"""`envkit doctor` as people type it: on this machine, on real images, and on what an engine really prints."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from tests.support.schema import faults
from tests.world.world import World

pytestmark = pytest.mark.engine
ENVKIT = (sys.executable, "-m", "envkit", "doctor")


def doctor(*arguments: str, env: dict[str, str] | None = None, stdin: str = "") -> tuple[int, dict[str, Any]]:
    done = subprocess.run(
        [*ENVKIT, *arguments, "--json"], capture_output=True, text=True, check=False, timeout=120, input=stdin,
        env={**os.environ, **(env or {})},
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    tree: dict[str, Any] = json.loads(done.stdout)
    schema = json.loads((resources.files("envkit.doctor") / "doctor.schema.json").read_text(encoding="utf-8"))
    assert not faults(tree, schema)
    assert tree["exit_code"] == done.returncode
    return done.returncode, tree


def findings(tree: dict[str, Any]) -> set[str]:
    return {one["id"] for section in tree["sections"] for one in section["findings"]}


def facts(tree: dict[str, Any], section: str) -> dict[str, str]:
    found = next(one for one in tree["sections"] if one["id"] == section)
    return {one["name"]: one["value"] for one in found["facts"]}


def test_this_machine_is_told_of_as_it_is(place: World) -> None:
    place.require("docker")
    code, tree = doctor()
    assert code == 0, tree["conclusion"]
    assert not any(one.endswith("-unanswered") for one in findings(tree))
    assert facts(tree, "engines")["runs: docker"] == "works"
    assert facts(tree, "system")["kernel"].startswith(os.uname().release)
    assert facts(tree, "limits")["CPUs"].startswith(str(len(os.sched_getaffinity(0))))


def test_the_torch_of_a_python_is_asked_itself(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise SystemExit('a file of the current folder')")
    done = subprocess.run(
        [*ENVKIT, "--python", sys.executable, "--json"], capture_output=True, text=True, check=False, timeout=120,
        cwd=tmp_path,
    )  # fmt: skip
    found = facts(json.loads(done.stdout), "torch")
    version = subprocess.run(
        [sys.executable, "-c", "import torch; print(torch.__version__)"], capture_output=True, text=True, check=True
    ).stdout.strip()
    assert found["torch"] == version
    assert found["Python"].endswith("(--python)")


def test_a_machine_with_nothing_gets_an_answer_too(tmp_path: Path) -> None:
    empty = {"PATH": str(tmp_path), "HOME": str(tmp_path), "DOCKER_HOST": f"unix://{tmp_path}/none.sock"}
    code, tree = doctor(env=empty)
    # The embedded engine builds without any program, and nothing runs an image.
    assert code == 9
    assert "nothing-runs" in findings(tree)
    assert "nothing-builds" not in findings(tree)
    assert facts(tree, "gpu").get("GPUs", "none") == "none"


@pytest.mark.long
def test_an_engine_that_hangs_does_not_hang_the_answer(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "hangs.sock"))
        server.listen()
        _, tree = doctor(env={"DOCKER_HOST": f"unix://{tmp_path}/hangs.sock"})
    assert "did not answer" in facts(tree, "engines")["builds: docker"]


def test_an_image_of_an_engine_and_its_files_are_looked_at(pinned: str, tmp_path: Path) -> None:
    code, tree = doctor("--image", pinned, "--runner", "docker")
    assert code == 0
    assert findings(tree) >= {"runs-as-root", "layers-unread"}
    archive = tmp_path / "image.tar"
    subprocess.run(["docker", "save", "-o", str(archive), pinned], check=True, capture_output=True)
    code, tree = doctor("--image", f"docker-archive:{archive}")
    assert code == 0
    assert "layers-unread" not in findings(tree)
    assert facts(tree, "image")["layers"].startswith("1, ")


def test_what_an_engine_says_of_a_missing_image_is_recognized(place: World) -> None:
    place.require("docker", "registry", "base")
    assert place.base is not None
    name = place.base.rpartition(":")[0] + ":11.2.1-base-none"
    done = subprocess.run(["docker", "pull", name], capture_output=True, text=True, check=False)
    assert done.returncode
    code, tree = doctor("--log", "-", stdin=done.stdout + done.stderr)
    assert code == 0
    assert findings(tree) == {"manifest-unknown"}


def test_what_the_kernel_makes_of_a_full_shared_memory_is_recognized(pinned: str) -> None:
    fill = "dd if=/dev/zero of=/dev/shm/x bs=64k count=8 2>&1; exit 1"
    done = subprocess.run(
        ["docker", "run", "--rm", "--network", "none", "--shm-size", "64k", pinned, "sh", "-c", fill],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    _, tree = doctor("--log", "-", stdin=done.stdout + done.stderr)
    assert findings(tree) == {"shm-exhausted"}


FAILING = {
    "COPY absent.txt /": {"copy-missing"},
    "RUN nvcc --version": {"program-not-found"},
    "RUN dd if=/dev/zero of=/dev/full bs=1k count=1": {"disk-full"},
    "RUN sh -c 'kill -9 $$'; exit 137": {"killed"},
}


@pytest.mark.parametrize("buildkit", ["0", pytest.param("1", marks=pytest.mark.long)], ids=["docker", "buildkit"])
@pytest.mark.parametrize("step", FAILING)
def test_what_a_failing_build_prints_is_recognized(
    place: World, pinned: str, tmp_path: Path, buildkit: str, step: str
) -> None:
    (tmp_path / "Dockerfile").write_text(f"FROM {pinned}\n{step}\n")
    done = subprocess.run(
        [place.docker_client or "docker", "build", "--no-cache", str(tmp_path)],
        capture_output=True, text=True, check=False, env={**os.environ, "DOCKER_BUILDKIT": buildkit},
    )  # fmt: skip
    assert done.returncode
    code, tree = doctor("--log", "-", stdin=done.stdout + done.stderr)
    assert code == (5 if "kill" in step else 0)  # the log does not say who killed it
    assert findings(tree) == FAILING[step], done.stdout + done.stderr
