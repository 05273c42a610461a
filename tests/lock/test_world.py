"""Locks of real sources: the world's conda channel, this machine's Python index, Debian's own packages."""

import hashlib
import urllib.request
from pathlib import Path

import pytest

from envkit.ground.errors import EnvironmentProblem
from envkit.lock import apt
from envkit.lock.store import read_lock
from tests.lock.commands import envkit
from tests.world.places import UnavailableError
from tests.world.world import World

pytestmark = pytest.mark.engine


def test_the_cpu_image_is_locked_against_a_real_channel(world: World, tmp_path: Path) -> None:
    world.require("channel")
    done = envkit(tmp_path, "lock", "cpu", "--base", "none", env=world.env())
    assert done.returncode == 0, done.stderr
    lock = read_lock(tmp_path / "envkit.lock")
    names = {one.name: one for one in lock.conda}
    assert {"python", "pytorch", "numpy", "tini", "sympy", "setuptools"} <= set(names)
    assert names["pytorch"].build.startswith("cpu")
    assert names["pytorch"].size > 50_000_000
    assert lock.wheels == ()
    tini = names["tini"]
    url = tini.url.replace("https://conda.anaconda.org", str(world.channel_alias))
    with urllib.request.urlopen(url) as answer:
        data = answer.read()
    assert (hashlib.sha256(data).hexdigest(), len(data)) == (tini.sha256, tini.size)


def test_cuda_torch_is_locked_without_downloading_it(tmp_path: Path) -> None:
    definition = tmp_path / "train.yaml"
    definition.write_text(
        "schema: envkit.image/1\ntitle: x\ntemplate: wheels\ncompanions: []\n"
        'request:\n  torch: "2.7.1"\n  cuda: "12.6"\n  source: pypi\n  os: debian12\n  python: "3.11"\n'
    )
    done = envkit(tmp_path, "lock", "train.yaml", "--base", "none")
    if done.returncode == 9:
        raise UnavailableError(f"the Python index here: {done.stderr.splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    wheels = {one.name: one for one in read_lock(tmp_path / "envkit.lock").wheels}
    assert {"torch", "triton", "nvidia-cublas-cu12", "nvidia-cudnn-cu12", "nvidia-nccl-cu12"} <= set(wheels)
    assert len(wheels) == 25
    assert wheels["torch"].version == "2.7.1"
    assert wheels["torch"].size == 821_174_704
    assert wheels["nvidia-cublas-cu12"].version == "12.6.4.1"
    assert 2.7e9 < sum(one.size for one in wheels.values()) < 3.0e9


@pytest.mark.long
def test_a_bootstrapped_base_is_locked_to_its_packages(tmp_path: Path) -> None:
    done = envkit(tmp_path, "lock", "--torch", "2.7.1", "--template", "wheels", "--source", "pypi",
                  "--base", "bootstrap:debian/bookworm")  # fmt: skip
    if done.returncode == 9:
        raise UnavailableError(f"Debian's packages or the Python index: {done.stderr.splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    base = read_lock(tmp_path / "envkit.lock").base
    names = {one.name for one in base.packages}
    assert {"libc6", "dpkg", "apt", "bash", "ca-certificates", "python3", "tini"} <= names
    assert all(one.sha256 and one.size > 0 for one in base.packages)
    assert not {"systemd", "man-db", "python3-pip"} & names


def test_a_suite_that_apt_does_not_know_is_named() -> None:
    with pytest.raises(
        EnvironmentProblem, match=r"(apt on this machine has no sources for Debian nosuch|apt is not installed)"
    ):
        apt.packages("nosuch", "linux-64", None)
