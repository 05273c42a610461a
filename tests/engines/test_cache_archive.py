"""A lock's files on a machine without a network: exported, imported, and built in a namespace without routes."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.test_exported_jobs import CPU
from tests.world.world import up

pytestmark = [pytest.mark.engine, pytest.mark.long]
_ALONE = ["unshare", "--map-root-user", "--net"]  # not even loopback is up there


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("carried")
    (folder / "small.yaml").write_text(CPU)
    yield folder
    for name in ("near", "far"):
        shutil.rmtree(folder / name, ignore_errors=True)


def envkit(home: Path, place: str, *argv: str, before: tuple[str, ...] = ()) -> "subprocess.CompletedProcess[str]":
    world = up(("registry", "base", "channel"))
    world.require("registry", "base", "channel")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ENVKIT_", "XDG_"))}
    own = {"HOME": str(home / place), "XDG_CACHE_HOME": str(home / place / "cache")}
    return subprocess.run(
        [*before, sys.executable, "-m", "envkit", *argv],
        cwd=home, env={**kept, **world.env(), **own}, check=False, capture_output=True, text=True,
    )  # fmt: skip


def built(home: Path, place: str, *more: str, before: tuple[str, ...] = ()) -> str:
    argv = ["build", "small.yaml", "--locked", "envkit.lock", "--engine", "embedded", "--no-verify", "--json"]
    done = envkit(home, place, *argv, "--output", f"oci:{place}-image", *more, before=before)
    assert done.returncode == 0, done.stderr
    return str(json.loads(done.stdout)["digest"])


def test_a_build_without_a_network_gives_the_same_image(home: Path) -> None:
    done = envkit(home, "near", "lock", "small.yaml", "--engine", "embedded", "-o", "envkit.lock")
    assert done.returncode == 0, done.stderr
    early = envkit(home, "near", "cache", "export", "need.tar")
    assert early.returncode == 4
    assert "files of the lock are not in" in early.stderr
    assert not (home / "need.tar").exists()
    digest = built(home, "near")
    done = envkit(home, "near", "cache", "export", "need.tar")
    assert done.returncode == 0, done.stderr
    with tarfile.open(home / "need.tar") as tar:
        assert tar.getnames()[:2] == ["README.txt", "envkit.lock"]
        readme = tar.extractfile("README.txt")
        assert readme is not None
        assert b"envkit cache import need.tar" in readme.read()
    done = envkit(home, "far", "cache", "import", "need.tar", before=tuple(_ALONE))
    assert done.returncode == 0, done.stderr
    assert "0 were there" in done.stdout
    assert built(home, "far", "--offline", before=tuple(_ALONE)) == digest
    again = envkit(home, "far", "cache", "import", "need.tar")
    assert again.stdout.startswith("0 files added")
