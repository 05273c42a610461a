"""`envkit run FOLDER`: a project's files become a verified image that runs, and the second time nothing is done again.

A real conda channel, a real torch, the embedded engine and bubblewrap.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.world import apptainer
from tests.world.world import up

pytestmark = [pytest.mark.engine, pytest.mark.long]
_PROJECT = "name: train\nchannels: [conda-forge]\ndependencies: [python=3.11, pytorch, numpy]\n"
_SCRIPT = "import os, sys, torch\nprint(torch.ones(2).sum().item(), os.getcwd(), *sys.argv[1:])\nsys.exit(7)\n"
_AWAY = {"ENVKIT_CONDA_CHANNEL_ALIAS": "http://127.0.0.1:9", "ENVKIT_PYTHON_INDEX": "http://127.0.0.1:9/simple/"}


@dataclass(frozen=True, slots=True)
class Project:
    """A folder with an environment.yml and a train.py, and the variables of a home without anything."""

    folder: Path
    env: dict[str, str]

    def envkit(self, *argv: str, **env: str) -> "subprocess.CompletedProcess[str]":
        """Run a command in the folder above the project."""
        return subprocess.run(
            [sys.executable, "-m", "envkit", *argv], cwd=self.folder.parent, env={**self.env, **env},
            check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def train(self, **env: str) -> "subprocess.CompletedProcess[str]":
        return self.envkit("run", "./train", "--", "python", "train.py", "--epochs", "2", **env)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    found = up(("registry", "base", "channel"))
    found.require("registry", "base", "channel")
    home = tmp_path_factory.mktemp("project")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ENVKIT_", "XDG_"))}
    folder = home / "train"
    folder.mkdir()
    (folder / "environment.yml").write_text(_PROJECT)
    (folder / "train.py").write_text(_SCRIPT)
    yield Project(folder, {**kept, **found.env(), "HOME": str(home), "ENVKIT_ENGINE": "embedded"})
    shutil.rmtree(home / ".cache", ignore_errors=True)


@pytest.fixture(scope="module")
def first(project: Project) -> "subprocess.CompletedProcess[str]":
    return project.train()


def test_the_first_run_builds_verifies_and_runs(first: "subprocess.CompletedProcess[str]") -> None:
    assert first.returncode == 7, first.stderr
    assert first.stdout == "2.0 /workspace --epochs 2\n"
    for said in ("CPU, Python 3.11, for the CPU, because this machine has no NVIDIA", "lock: ", "assemble", " passed"):
        assert said in first.stderr


@pytest.mark.usefixtures("first")
def test_the_second_run_asks_no_index_and_builds_nothing(project: Project) -> None:
    again = project.train(**_AWAY)
    assert (again.returncode, again.stdout) == (7, "2.0 /workspace --epochs 2\n")
    assert len(again.stderr.splitlines()) == 1, again.stderr  # what the container got


@pytest.mark.usefixtures("first")
def test_a_shell_and_watch_take_the_same_image(project: Project) -> None:
    watched = project.envkit("watch", "./train", "--", "python", "-c", "print(3)", **_AWAY)
    assert (watched.returncode, watched.stdout) == (0, "3\n"), watched.stderr
    printed = project.envkit("shell", "train/", "--print", "srun", **_AWAY)
    assert printed.returncode == 0, printed.stderr
    assert f"--workspace={project.folder}" in printed.stdout


@pytest.mark.usefixtures("first")
def test_another_definition_makes_another_image(project: Project) -> None:
    text = (project.folder / "environment.yml").read_text()
    (project.folder / "environment.yml").write_text(f"{text}variables: {{GREETING: hello}}\n")
    try:
        done = project.envkit("run", "./train", "--", "printenv", "GREETING")
    finally:
        (project.folder / "environment.yml").write_text(text)
    assert (done.returncode, done.stdout) == (0, "hello\n"), done.stderr
    assert "verify: " in done.stderr


@pytest.mark.usefixtures("first")
def test_an_image_that_was_removed_is_built_again(project: Project) -> None:
    (images,) = Path(project.env["HOME"]).glob(".local/state/envkit/images")
    shutil.rmtree(images)
    done = project.envkit("run", "./train", "--", "true")
    assert done.returncode == 0, done.stderr
    assert "assemble" in done.stderr


def test_an_image_that_fails_its_verification_is_not_run(project: Project) -> None:
    (project.folder / "broken.yaml").write_text(
        'schema: envkit.image/1\ntitle: Broken\ncompanions: []\nrequest: {os: debian12, python: "3.11", cpu: true}\n'
        "env: {CUDA_LAUNCH_BLOCKING: '1'}\nentrypoint: [no-such-program]\n"
    )
    for _ in range(2):  # a failed image is not kept as a good one
        done = project.envkit("run", "train/broken.yaml", "--", "echo", "ran")
        assert (done.returncode, done.stdout) == (6, ""), done.stderr
        assert "no-such-program" in done.stderr
        assert "failed its verification, so nothing was run" in done.stderr


@pytest.mark.usefixtures("first")
def test_a_definition_that_comes_with_envkit_is_built_by_its_name(project: Project) -> None:
    words = ("run", "cpu", "--", "python", "-c", "import os, torch; print(torch.__version__, os.environ.get('WHOSE'))")
    done = project.envkit(*words)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(" None\n")
    again = project.envkit(*words, **_AWAY)
    assert (again.returncode, again.stdout) == (0, done.stdout), again.stderr
    assert len(again.stderr.splitlines()) == 1, again.stderr


@pytest.mark.usefixtures("first")
def test_an_image_of_the_same_name_is_what_runs(project: Project) -> None:
    (project.folder / "mine.yaml").write_text(
        'schema: envkit.image/1\ntitle: Mine\ncompanions: []\nrequest: {os: debian12, python: "3.11", cpu: true}\n'
        "env: {WHOSE: mine}\n"
    )
    built = project.envkit("build", "train/mine.yaml", "-t", "default", "--no-verify")
    assert built.returncode == 0, built.stderr
    # Where an engine answers, a name without a file is that of an image in the engine.
    done = project.envkit("run", "default", "--", "printenv", "WHOSE", ENVKIT_RUNNER="bubblewrap")
    assert (done.returncode, done.stdout) == (0, "mine\n"), done.stderr


def test_a_folder_without_a_project_says_what_it_looked_for(project: Project) -> None:
    (project.folder / "empty").mkdir()
    done = project.envkit("run", "./train/empty", "--", "true")
    assert done.returncode == 2
    assert "requirements.txt" in done.stderr
    assert "Traceback" not in done.stderr


@dataclass(frozen=True, slots=True)
class Cluster:
    """The project on a machine with Apptainer, and the folder for its SIF files."""

    project: Project
    folder: Path

    def build(self, file: str, **env: str) -> "subprocess.CompletedProcess[str]":
        path = f"{apptainer.program().parent}:{self.project.env['PATH']}"
        argv = ("build", "./train", "--cpu", "--no-verify", "--output", f"sif:{self.folder}/{file}")
        return self.project.envkit(*argv, **{"PATH": path, **env})


@pytest.fixture(scope="module")
def cluster(
    project: Project, first: "subprocess.CompletedProcess[str]", tmp_path_factory: pytest.TempPathFactory
) -> Cluster:
    assert first.returncode == 7
    return Cluster(project, tmp_path_factory.mktemp("cluster"))


def test_a_real_apptainer_runs_the_sif_file_of_a_project(cluster: Cluster) -> None:
    built = cluster.build("train.sif")
    assert built.returncode == 0, built.stderr
    assert [path.name for path in cluster.folder.iterdir()] == ["train.sif"]
    # The tests' own root may lack capabilities that Apptainer would give to root.
    argv = [str(apptainer.program()), "exec", "--no-privs", str(cluster.folder / "train.sif")]
    done = subprocess.run([*argv, "python", "-c", "import torch; print(torch.ones(2).sum().item())"],
                          check=False, capture_output=True, text=True)  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "2.0\n"), done.stderr


def test_a_failure_of_apptainer_is_shown_and_leaves_the_old_file(cluster: Cluster, tmp_path: Path) -> None:
    old, no_folder = cluster.folder / "old.sif", tmp_path / "no folder"
    old.write_bytes(b"old")
    no_folder.touch()
    done = cluster.build("old.sif", APPTAINER_TMPDIR=str(no_folder))
    assert done.returncode == 8
    assert "build ended with exit code" in done.stderr
    assert old.read_bytes() == b"old"
    assert not [path for path in cluster.folder.iterdir() if path.name.startswith(".")]


def test_without_apptainer_nothing_is_built(cluster: Cluster, tmp_path: Path) -> None:
    done = cluster.build("none.sif", PATH=str(tmp_path))
    assert done.returncode == 9
    assert "--output sif: needs apptainer or singularity on PATH" in done.stderr
    assert "assemble" not in done.stderr
