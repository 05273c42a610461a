"""Whole images by the embedded engine, from real packages: they run, and their bytes depend on their lock alone."""

import json
import os
import random
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from envkit.assemble.engine import EmbeddedBuilder
from envkit.engines.model import BuildOptions
from envkit.ground import settings
from envkit.ground.errors import UsageError
from envkit.lock.store import read_lock
from envkit.plan.definition import load
from envkit.plan.planner import plan_of
from tests.support.file_images import read_folder
from tests.support.heard import Heard
from tests.support.plans import facts
from tests.world import apt
from tests.world.world import up

pytestmark = pytest.mark.engine
# Only what the world's channel and index hold.
CPU = 'schema: envkit.image/1\ntitle: CPU\ncompanions: []\nrequest: {os: debian12, python: "3.11", cpu: true}\n'
WHEELS = """schema: envkit.image/1
title: Wheels
template: wheels
companions: []
request: {torch: "2.13.0", cpu: true, source: pytorch}
"""
MULTIPLY = "import torch; print(torch.__version__, (torch.ones(3, 3) @ torch.ones(3, 3)).sum().item())"


@dataclass(frozen=True, slots=True)
class Locked:
    """A plan and its lock, as files."""

    plan: Path
    lock: Path


@pytest.fixture(scope="module", autouse=True)
def _world() -> Iterator[None]:
    found = up(("docker", "registry", "base", "channel"))
    found.require("registry", "base", "channel")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in found.env().items():
            patch.setenv(name, value)
        yield


def _locked(folder: Path, definition: str, *flags: str) -> Locked:
    file = folder / "image.yaml"
    file.write_text(definition)
    (folder / "plan.json").write_bytes(plan_of(load(str(file)), {}, facts()).canonical())
    argv = [sys.executable, "-m", "envkit", "lock", str(file), "-o", str(folder / "envkit.lock"), *flags]
    done = subprocess.run(argv, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return Locked(folder / "plan.json", folder / "envkit.lock")


@pytest.fixture(scope="module")
def cpu(tmp_path_factory: pytest.TempPathFactory) -> Locked:
    """torch for the CPU from the conda channel, on a registry's base."""
    return _locked(tmp_path_factory.mktemp("cpu"), CPU)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Cache and state that the tests of this module share."""
    return tmp_path_factory.mktemp("shared")


@pytest.fixture(scope="module")
def first(cpu: Locked, folder: Path) -> str:
    """The digest of the CPU image, built here first."""
    return _built(cpu, folder)


def _document(locked: Locked, folder: Path, **more: object) -> str:
    return json.dumps({"folder": str(folder), "plan": str(locked.plan), "lock": str(locked.lock), **more})


def _built(locked: Locked, folder: Path, *before: str, env: dict[str, str] | None = None, **more: object) -> str:
    done = subprocess.run(
        [*before, sys.executable, "-m", "tests.engines.embedded_build"],
        input=_document(locked, folder, **more),
        env={**os.environ, **(env or {})},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return done.stdout.strip()


def _run_in_docker(locked: Locked, folder: Path) -> str:
    name = f"localhost/envkit-test/{secrets.token_hex(4)}:1"
    _built(locked, folder, output=f"docker-daemon:{name}")
    try:
        argv = ["docker", "run", "--rm", "--network", "none", "--read-only", "--tmpfs", "/tmp", name]
        done = subprocess.run([*argv, "python", "-c", MULTIPLY], check=True, capture_output=True, text=True)
        return done.stdout.strip()
    finally:
        subprocess.run(["docker", "rmi", "--force", name, "small:1"], check=False, capture_output=True)


@pytest.mark.long
def test_torch_from_conda_runs_in_docker(cpu: Locked, folder: Path, first: str) -> None:
    assert first.startswith("sha256:")
    assert _run_in_docker(cpu, folder).endswith(" 27.0")


@pytest.mark.long
def test_the_layout_is_whole_for_other_tools(first: str, folder: Path) -> None:
    layout = folder / "state" / "images" / "small_1"
    assert read_folder(layout).digest == first
    skopeo = apt.require("skopeo", "skopeo")
    done = subprocess.run([skopeo, "inspect", f"oci:{layout}:latest"], check=True, capture_output=True, text=True)
    assert json.loads(done.stdout)["Digest"] == first


@pytest.mark.requirement("R38")
def test_a_warm_cache_gives_the_same_image_and_fetches_nothing(first: str, cpu: Locked, folder: Path) -> None:
    away = {"ENVKIT_CONDA_CHANNEL_ALIAS": "http://127.0.0.1:9/nothing"}
    assert _built(cpu, folder, env=away) == first


@pytest.mark.long
def test_the_bytes_depend_on_the_lock_alone(first: str, cpu: Locked, tmp_path: Path) -> None:
    before = [apt.require("faketime", "faketime"), "2031-03-04 05:06:07", "taskset", "-c", "0"]
    varied = {"TZ": "Asia/Kathmandu", "LC_ALL": "C", "PYTHONHASHSEED": "7", "HOME": str(tmp_path)}
    elsewhere = tmp_path / "an other place"
    elsewhere.mkdir()
    assert _built(cpu, elsewhere, *before, env=varied, umask=0o077) == first


@pytest.mark.requirement("R30")
@pytest.mark.long
def test_killed_builds_leave_a_cache_that_can_be_used(cpu: Locked, first: str, folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "cache" / "downloads", tmp_path / "cache" / "downloads")
    for _ in range(3):
        argv = [sys.executable, "-m", "tests.engines.embedded_build"]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
            assert process.stdin is not None
            process.stdin.write(_document(cpu, tmp_path))
            process.stdin.close()
            time.sleep(random.uniform(0.5, 4))
            process.kill()
    assert _built(cpu, tmp_path) == first


@pytest.mark.long
def test_a_base_without_the_systems_python_is_refused(tmp_path: Path) -> None:
    locked = _locked(tmp_path, WHEELS)
    plan = plan_of(load(str(tmp_path / "image.yaml")), {}, facts())
    mirrors = settings.load({}, os.environ, tmp_path).mirrors()
    builder = EmbeddedBuilder(state=tmp_path / "state", cache=tmp_path / "cache")
    with pytest.raises(UsageError, match="lacks python3, tini; the embedded engine cannot install") as caught:
        builder.build(plan, read_lock(locked.lock), BuildOptions(mirrors=mirrors), Heard())
    assert "--base bootstrap:debian/bookworm" in (caught.value.hint or "")


@pytest.mark.long
def test_wheels_run_on_a_base_made_from_packages(tmp_path: Path) -> None:
    apt.require("mmdebstrap", "mmdebstrap")
    locked = _locked(tmp_path, WHEELS, "--base", "bootstrap:debian/bookworm")
    made = _built(locked, tmp_path)
    assert _run_in_docker(locked, tmp_path).endswith(" 27.0")
    shutil.rmtree(tmp_path / "cache" / "layers")
    assert _built(locked, tmp_path) == made
