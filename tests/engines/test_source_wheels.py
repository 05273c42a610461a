"""A package that exists only as source: built once in the sandbox, locked, and installed alike by both engines."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from envkit.lock.model import BUILT, Lock
from envkit.lock.store import read_lock
from tests.engines.conformance.sources import TORCH, TORCH_FILES
from tests.lock.served import Served, Site
from tests.support.sources import FASTSUM, put_files, sdist, wheel_files
from tests.support.wheels import raw_zip, wheel_entries
from tests.world.channel import packed
from tests.world.world import World

pytestmark = [pytest.mark.engine, pytest.mark.long]
DEFINITION = f"""schema: envkit.image/1
title: From source
template: wheels
companions: []
request: {{torch: "{TORCH}", cpu: true, source: pytorch}}
allow_source: [fastsum]
"""
BASE = ("--base", "bootstrap:debian/bookworm")
TAG = "localhost/envkit-test/from-source:1"
# Every file of the package but those that say which installer put it there, and bytecode, which wheels have none of.
INSIDE = """
import fastsum, hashlib, json, pathlib, sysconfig
root = pathlib.Path(sysconfig.get_path("purelib"))
files = {str(one.relative_to(root)): hashlib.sha256(one.read_bytes()).hexdigest() for one in root.glob("fastsum*/**/*")
         if one.is_file() and one.suffix != ".pyc"
         and one.name not in ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json")}
print(json.dumps([fastsum.answer(), files]))
"""


@dataclass(frozen=True)
class Place:
    """A folder with a definition and its lock, and the settings."""

    folder: Path
    variables: dict[str, str]
    site: Site

    @property
    def lock(self) -> Lock:
        return read_lock(self.folder / "envkit.lock")

    @property
    def built(self) -> Path:
        return self.folder / "cache" / "envkit" / "built"

    def envkit(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        argv = [sys.executable, "-m", "envkit", *arguments]
        return subprocess.run(
            argv, capture_output=True, text=True, check=False, cwd=self.folder, env=self.variables, timeout=900
        )


@pytest.fixture(scope="module")
def place(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    world.require("docker", "channel")
    folder = tmp_path_factory.mktemp("source")
    (folder / "train.yaml").write_text(DEFINITION)
    with Served() as site:
        setuptools = wheel_files(packed(), "setuptools")
        put_files(site, "/simple", {"fastsum-1.2.tar.gz": sdist(FASTSUM), **setuptools})
        # Nothing here computes, so a stand-in of torch does.
        torch = raw_zip(wheel_entries(TORCH_FILES, name="torch", version=f"{TORCH}+cpu"))
        put_files(site, "/whl/cpu", {f"torch-{TORCH}+cpu-py3-none-any.whl": torch, **setuptools})
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("ENVKIT_", "PIP_"))}
        variables = kept | world.env() | {"ENVKIT_PYTHON_INDEX": f"{site.url}/simple"}
        variables |= {"ENVKIT_PYTORCH_INDEX": f"{site.url}/whl"}
        variables |= {"XDG_STATE_HOME": str(folder / "state"), "XDG_CACHE_HOME": str(folder / "cache")}
        found = Place(folder, variables, site)
        done = found.envkit("lock", "train.yaml", *BASE, "--progress", "plain")
        assert done.returncode == 0, done.stderr[-3000:]
        assert "build fastsum 1.2 from source in a sandbox (bubblewrap, without network)" in done.stderr
        yield found


def test_the_lock_says_what_the_wheel_was_built_from_and_in_what(place: Place) -> None:
    (wheel,) = (one for one in place.lock.wheels if one.source == BUILT)
    (source,), (builder,) = place.lock.sources, place.lock.builders
    assert (wheel.name, source.url) == ("fastsum", f"{place.site.url}/simple/files/fastsum-1.2.tar.gz")
    assert source.sha256 == hashlib.sha256(sdist(FASTSUM)).hexdigest()
    assert [one.name for one in builder.wheels] == ["setuptools"]
    assert {"gcc", "python3-dev"} <= {one.name for one in builder.base.packages}


def _in_docker(place: Place) -> list[object]:
    done = place.envkit("build", "train.yaml", "--engine", "docker", "-t", TAG, "--no-verify", "--progress", "plain")
    assert done.returncode == 0, done.stderr[-3000:]
    argv = ["docker", "run", "--rm", "--network", "none", TAG, "python", "-c", INSIDE]
    run = subprocess.run(argv, capture_output=True, text=True, check=True, env=place.variables)
    found: list[object] = json.loads(run.stdout)
    return found


def _in_bubblewrap(place: Place) -> list[object]:
    done = place.envkit("build", "train.yaml", "--engine", "embedded", "--output", "oci:image", "--no-verify")
    assert done.returncode == 0, done.stderr[-3000:]
    script = (
        "import sys; from envkit.run.bubblewrap import BubblewrapRunner; from envkit.run.model import RunLimits\n"
        "from envkit.ground.progress import Silent\n"
        "from envkit.image.name import image_name\n"
        "done = BubblewrapRunner().run(image_name('oci:image'), ['python', '-c', sys.argv[1]], {}, gpus=None,"
        " limits=RunLimits(), reporter=Silent())\n"
        "sys.stderr.buffer.write(done.stderr); sys.stdout.buffer.write(done.stdout)"
    )
    argv = [sys.executable, "-c", script, INSIDE]
    variables = place.variables | {"PYTHONPATH": str(Path.cwd())}
    run = subprocess.run(argv, capture_output=True, text=True, check=True, cwd=place.folder, env=variables)
    found: list[object] = json.loads(run.stdout)
    return found


def test_both_engines_install_the_same_bytes(place: Place) -> None:
    in_docker, in_bubblewrap = _in_docker(place), _in_bubblewrap(place)
    assert in_docker == in_bubblewrap
    answer, files = in_docker
    assert answer == 42
    assert isinstance(files, dict)
    assert any(name.endswith(".so") for name in files)


NOSY = """
import pathlib, socket
if pathlib.Path("{folder}").exists(): raise SystemExit("the host's files are there")
try: socket.create_connection(("127.0.0.1", {port}), timeout=5)
except OSError: pass
else: raise SystemExit("the network is there")
from setuptools import setup
setup(name="nosy", version="1", py_modules=[])
"""


def test_a_build_script_reaches_neither_the_network_nor_the_hosts_files(place: Place) -> None:
    setup = NOSY.replace("{port}", place.site.url.rpartition(":")[2]).replace("{folder}", str(place.folder))
    put_files(place.site, "/simple", {"nosy-1.tar.gz": sdist({"setup.py": setup}, "nosy-1")})
    (place.folder / "nosy.yaml").write_text(DEFINITION.replace("fastsum", "nosy"))
    done = place.envkit("lock", "nosy.yaml", *BASE, "--progress", "plain", "-o", "nosy.lock")
    assert done.returncode == 0, done.stderr[-3000:]


def test_without_its_cache_the_wheel_is_built_again_with_the_locks_bytes(place: Place) -> None:
    shutil.rmtree(place.built)
    done = place.envkit("build", "train.yaml", "--engine", "embedded", "--output", "oci:again", "--no-verify",
                        "--progress", "plain")  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert "is not in the cache; building it again" in done.stderr
    (made,) = place.built.glob("*/*.whl")
    assert hashlib.sha256(made.read_bytes()).hexdigest() == next(
        one.sha256 for one in place.lock.wheels if one.source == BUILT
    )
