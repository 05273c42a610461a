"""`ci/facts.sh`, which the scheduled jobs run, in a copy of this checkout with a remote of its own."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.facts_restore import without
from tests.evidence.conftest import Index
from tests.support.torch_wheels import REQUIRES, release

pytestmark = [pytest.mark.long, pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")]
ROOT = Path(__file__).parents[2]
FOLDERS = ("envkit", "tests", "docs", "templates", "images", "ci", "man")
FILES = ("Dockerfile", "environment.yml", "pyproject.toml", "action.yml", "CHANGELOG.md", "README.md")
Shell = Callable[..., str]


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """Run a command in a checkout, with the envkit of that checkout and without the user's git configuration."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, rest in (("python", ""), ("envkit", " -m envkit")):
        (programs / name).write_text(f'#!/bin/sh\nexec {sys.executable}{rest} "$@"\n')
        (programs / name).chmod(0o755)
    names = {f"GIT_{who}_{what}": f"facts{at}" for who in ("AUTHOR", "COMMITTER")
             for what, at in (("NAME", ""), ("EMAIL", "@example.com"))}  # fmt: skip
    own = {"PATH": f"{programs}:{os.environ['PATH']}", "GIT_CONFIG_GLOBAL": os.devnull, "FACTS_TORCH": "2.15.0"}

    def call(folder: Path, *words: str) -> str:
        done = subprocess.run(
            words, cwd=folder, env={**os.environ, **names, **own}, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return call


@pytest.fixture
def checkout(tmp_path: Path, shell: Shell) -> Path:
    """A checkout of facts that lack torch 2.15.0 from the Python index, with a remote."""
    folder, remote = tmp_path / "checkout", tmp_path / "remote.git"
    folder.mkdir()
    for name in FOLDERS:
        shutil.copytree(ROOT / name, folder / name)
    for name in FILES:
        shutil.copy(ROOT / name, folder)
    (folder / ".gitignore").write_text("__pycache__/\n")
    data = folder / "envkit" / "facts" / "data"
    for path in (data / "evidence").glob("*.jsonl"):
        path.write_text("".join(row for row in path.read_text().splitlines(keepends=True) if '"2.15.0' not in row))
    for name in ("torch_releases", "torch_cuda_variants"):
        (data / f"{name}.yaml").write_text(without((data / f"{name}.yaml").read_text(), "2.15.0"))
    shell(folder, "python", "-m", "envkit.facts.snapshot")
    shell(tmp_path, "git", "init", "--quiet", "--bare", "--initial-branch=main", str(remote))
    shell(folder, "git", "init", "--quiet", "--initial-branch=main")
    shell(folder, "git", "add", "--all")
    shell(folder, "git", "commit", "--quiet", "--message", "Facts of yesterday")
    shell(folder, "git", "remote", "add", "origin", str(remote))
    shell(folder, "git", "push", "--quiet", "origin", "main")
    return folder


@pytest.mark.usefixtures("index")
def test_a_new_release_is_one_branch_that_a_second_run_updates(checkout: Path, shell: Shell, tmp_path: Path) -> None:
    remote = tmp_path / "remote.git"
    before = shell(remote, "git", "rev-parse", "main")
    assert shell(checkout, "ci/facts.sh", "update") == "facts/update\n"
    assert "+  - torch: 2.15.0" in shell(remote, "git", "diff", "main", "facts/update", "--", "*/torch_releases.yaml")
    assert shell(remote, "git", "log", "-1", "--format=%s", "facts/update") == "Facts: torch 2.15.0\n"
    shell(checkout, "git", "switch", "--quiet", "main")
    assert shell(checkout, "ci/facts.sh", "update") == "facts/update\n"
    assert shell(remote, "git", "branch", "--format=%(refname:short)").split() == ["facts/update", "main"]
    assert shell(remote, "git", "rev-list", "--count", "main..facts/update") == "1\n"
    assert shell(remote, "git", "rev-parse", "main") == before
    # Where the change is merged, there is nothing left to propose.
    assert shell(checkout, "ci/facts.sh", "update") == ""


def test_a_difference_of_a_known_release_names_its_proof(
    index: Index, checkout: Path, shell: Shell, tmp_path: Path
) -> None:
    shell(checkout, "ci/facts.sh", "update")
    assert shell(checkout, "ci/facts.sh", "check") == ""
    index.put(release(requires=[one.replace("2.30.7", "2.30.8") for one in REQUIRES]))
    assert shell(checkout, "ci/facts.sh", "check") == "facts/check\n"
    message = shell(tmp_path / "remote.git", "git", "log", "-1", "--format=%B", "facts/check")
    assert "nccl: facts 2.30.7, files 2.30.8" in message
    assert "metadata of torch-2.15.0-cp311-cp311-manylinux_2_28_x86_64.whl (" in message
