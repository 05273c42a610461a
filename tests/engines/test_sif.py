"""`--output sif:FILE`: a real Apptainer makes the file, and its image runs there with the environment active."""

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
_IMAGE = 'schema: envkit.image/1\ntitle: CPU\ncompanions: []\nrequest: {os: debian12, python: "3.11", cpu: true}\n'
_MULTIPLY = "import torch; print((torch.ones(3, 3) @ torch.ones(3, 3)).sum().item())"


@dataclass(frozen=True, slots=True)
class Home:
    """A home with a definition, and the programs of a PATH."""

    folder: Path
    env: dict[str, str]

    def build(self, output: str, **env: str) -> "subprocess.CompletedProcess[str]":
        """Build the definition into an output, without verification."""
        argv = ["build", "image.yaml", "--engine", "embedded", "--no-verify", "--output", output]
        return subprocess.run(
            [sys.executable, "-m", "envkit", *argv], cwd=self.folder, env={**self.env, **env},
            check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL,
        )  # fmt: skip


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    found = up(("registry", "base", "channel"))
    found.require("registry", "base", "channel")
    folder = tmp_path_factory.mktemp("sif")
    (folder / "image.yaml").write_text(_IMAGE)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ENVKIT_", "XDG_"))}
    path = f"{apptainer.program().parent}:{kept['PATH']}"
    yield Home(folder, {**kept, **found.env(), "HOME": str(folder), "PATH": path})
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def sif(home: Home) -> Path:
    done = home.build("sif:made/train.sif")
    assert done.returncode == 0, done.stderr
    return home.folder / "made" / "train.sif"


def test_the_image_runs_in_apptainer(home: Home, sif: Path) -> None:
    argv = ["apptainer", "exec", str(sif), "python", "-c", _MULTIPLY]
    done = subprocess.run(argv, env=home.env, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "27.0\n"), done.stderr


def test_nothing_but_the_file_is_left(home: Home, sif: Path) -> None:
    assert [path.name for path in sif.parent.iterdir()] == ["train.sif"]
    kept = home.folder / ".apptainer" / "cache"
    assert [path for path in kept.rglob("*") if path.is_file()] == []


@pytest.mark.usefixtures("sif")
def test_a_failure_of_the_program_is_shown_and_leaves_the_old_file(home: Home, tmp_path: Path) -> None:
    """The image is refused where the program has no room for it."""
    old = home.folder / "made" / "old.sif"
    old.write_bytes(b"old")
    (tmp_path / "no folder").write_bytes(b"")
    done = home.build("sif:made/old.sif", APPTAINER_TMPDIR=str(tmp_path / "no folder"))
    assert done.returncode == 8
    assert "build ended with exit code" in done.stderr
    assert "hint: " in done.stderr
    assert old.read_bytes() == b"old"
    assert sorted(path.name for path in old.parent.iterdir()) == ["old.sif", "train.sif"]


def test_without_the_program_nothing_is_built(home: Home, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.symlink_to(sys.executable)
    done = home.build(f"sif:{tmp_path}/a.sif", PATH=str(tmp_path))
    assert done.returncode == 9
    assert "--output sif: needs apptainer or singularity on PATH" in done.stderr
    assert "assemble" not in done.stderr
