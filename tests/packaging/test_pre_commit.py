"""pre-commit installs envkit from a repository and runs its hooks on the files of a project."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from envkit.cli.main import COMMANDS
from envkit.lock.store import to_text
from tests.support.locks import lock_for
from tests.support.plans import shipped_plan

ROOT = Path(__file__).parents[2]
HOOKS = ROOT / ".pre-commit-hooks.yaml"
PARTS = ("envkit", "templates", "images", "docs", "pyproject.toml", "README.md", "LICENSE", HOOKS.name)
IMAGE = "schema: envkit.image/1\ntitle: one\nrequest: {torch: 2.7.1, cuda: '12.6'}\n"


def git(folder: Path, *words: str) -> str:
    author = {f"GIT_{who}_{what}": "a@example.com" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    done = subprocess.run(
        ["git", *words], cwd=folder, env=os.environ | author, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with envkit as it is here."""
    folder = tmp_path_factory.mktemp("envkit-repository")
    for name in PARTS:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, folder / name)
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "envkit")
    return folder


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, source: Path) -> Path:
    """A repository with a definition, its lock and the hooks."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "image.yaml").write_text(IMAGE)
    plan = shipped_plan(str(folder / "image.yaml"))
    (folder / "envkit.lock").write_text(to_text(lock_for(plan)))
    hooks = [{"id": hook["id"]} for hook in yaml.safe_load(HOOKS.read_text())]
    repo = {"repo": str(source), "rev": git(source, "rev-parse", "HEAD"), "hooks": hooks}
    (folder / ".pre-commit-config.yaml").write_text(yaml.safe_dump({"repos": [repo]}))
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    return folder


def pre_commit(project: Path) -> tuple[int, str]:
    """Run the hooks on all files; their environment is made by the first run and kept beside the project."""
    done = subprocess.run(
        [sys.executable, "-m", "pre_commit", "run", "--all-files", "--color", "never"],
        cwd=project,
        env=os.environ | {"PRE_COMMIT_HOME": f"{project}-home"},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def verdicts(told: str) -> dict[str, str]:
    lines = [line for line in told.splitlines() if line.startswith("envkit ") and line.endswith(("Passed", "Failed"))]
    return {line.partition("...")[0].strip("."): line.rpartition(".")[2] for line in lines}


def test_each_hook_runs_a_command_that_exists() -> None:
    for hook in yaml.safe_load(HOOKS.read_text()):
        program, command, *_ = hook["entry"].split()
        assert (program, hook["language"]) == ("envkit", "python")
        assert command in COMMANDS


@pytest.mark.long
def test_pre_commit_passes_and_fails_with_the_files(project: Path) -> None:
    names = ("envkit validate", "envkit lock --check", "envkit render --check")
    code, told = pre_commit(project)
    assert verdicts(told) == dict.fromkeys(names, "Passed"), told
    assert code == 0

    (project / "image.yaml").write_text(IMAGE + "pip: [einops]\n")
    code, told = pre_commit(project)
    assert verdicts(told) == dict(zip(names, ("Passed", "Failed", "Passed"), strict=True)), told
    assert "envkit.lock is stale" in told
    assert code == 1

    (project / "image.yaml").write_text(IMAGE + "pipp: [einops]\n")
    code, told = pre_commit(project)
    assert verdicts(told) == dict.fromkeys(names, "Failed"), told
    assert "unknown key; did you mean pip?" in told
    assert code == 1
