"""An index on which someone else owns the name of envkit's distribution: exported jobs install no file of theirs."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks._torch_index import File, plain, served
from envkit.export.model import install_script
from envkit.ground.naming import DISTRIBUTION

OURS = plain(DISTRIBUTION, "1.2.3")
THEIRS = replace(OURS, requires=("click",))  # the same name and version, other bytes
NEWER = plain(DISTRIBUTION, "1.2.4")
FOR_THIS_PYTHON = replace(THEIRS, tag=f"cp{sys.version_info[0]}{sys.version_info[1]}-none-any")  # preferred by pip


def install(tmp_path: Path, files: list[File]) -> subprocess.CompletedProcess[str]:
    """Run the lines of exported jobs with a pin of our file, in a virtual environment that knows only this index."""
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    pin = f"{DISTRIBUTION}=={OURS.version} --hash=sha256:{hashlib.sha256(OURS.data()).hexdigest()}"
    script = "\n".join(["set -eu", *install_script(str(tmp_path / "venv/bin/python"))])
    kept = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    with served(files, "index.example") as index:
        env = {**kept, **index, "REQUIREMENT": pin, "PIP_NO_CACHE_DIR": "1", "PIP_RETRIES": "0"}
        return subprocess.run(
            ["bash", "-c", script], env=env, cwd=tmp_path, capture_output=True, text=True, check=False
        )


def installed(tmp_path: Path) -> list[str]:
    found = [path.name for path in (tmp_path / "venv").glob("lib/python*/site-packages/*.dist-info")]
    shutil.rmtree(tmp_path / "venv")
    return [name for name in found if name.startswith(DISTRIBUTION.replace("-", "_"))]


@pytest.mark.parametrize(
    "files",
    [[OURS], [OURS, NEWER], [OURS, FOR_THIS_PYTHON]],
    ids=["alone", "a-newer-version-beside", "a-preferred-file-beside"],
)
def test_the_pinned_file_is_installed(tmp_path: Path, files: list[File]) -> None:
    done = install(tmp_path, files)
    assert done.returncode == 0, done.stderr
    assert installed(tmp_path) == ["envkit_gpu-1.2.3.dist-info"]


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ([THEIRS], "THESE PACKAGES DO NOT MATCH THE HASHES"),
        ([FOR_THIS_PYTHON], "THESE PACKAGES DO NOT MATCH THE HASHES"),
        ([NEWER], "No matching distribution found"),
    ],
    ids=["other-bytes", "another-tag", "another-version"],
)
def test_a_file_of_someone_else_is_not_installed(tmp_path: Path, files: list[File], says: str) -> None:
    done = install(tmp_path, files)
    assert done.returncode != 0
    assert says in done.stderr
    assert installed(tmp_path) == []
