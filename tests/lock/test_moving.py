"""What a lock keeps of the one before it: a request that moved, a name that is updated, everything that is upgraded."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from envkit.lock.store import read_lock
from tests.lock.commands import envkit
from tests.lock.served import Dist, Site, put_index

LOCK = ("lock", "image.yaml", "--base", "none")
CUBLAS = "nvidia-cublas-cu12"
OLD = (
    Dist("torch", "2.6.0", ("triton==3.2.0", f"{CUBLAS}==12.4.5", "sympy==1.13.1", "filelock")),
    Dist("torchvision", "0.21.0", ("torch==2.6.0", "numpy")),
    Dist("triton", "3.2.0"),
    Dist(CUBLAS, "12.4.5"),
    Dist("sympy", "1.13.1"),
    Dist("filelock", "3.17"),
    Dist("numpy", "2.2.3"),
    Dist("requests", "2.32.3", ("idna",)),
    Dist("idna", "3.10"),
)
NEW = (
    Dist("torch", "2.7.1", ("triton==3.3.1", f"{CUBLAS}==12.6.4", "sympy>=1.13.3", "filelock")),
    Dist("torchvision", "0.22.1", ("torch==2.7.1", "numpy")),
    Dist("triton", "3.3.1"),
    Dist(CUBLAS, "12.6.4"),
    Dist("sympy", "1.14"),
    Dist("filelock", "3.20"),
    Dist("numpy", "2.4.6"),
    Dist("requests", "2.34", ("idna",)),
    Dist("idna", "3.11"),
)
OLD_VERSIONS = {dist.name: dist.version for dist in OLD}
FAMILY = {"torch": "2.7.1", "torchvision": "0.22.1", "triton": "3.3.1", CUBLAS: "12.6.4", "sympy": "1.14"}


def define(folder: Path, torch: str, *pip: str) -> None:
    lines = ["schema: envkit.image/1", "title: Image", "template: wheels", "request:", f'  torch: "{torch}"']
    lines += ['  python: "3.11"', "  source: pypi", f"pip: [{', '.join(pip)}]"]
    (folder / "image.yaml").write_text("\n".join(lines) + "\n")


def publish(site: Site, folder: str, dists: Sequence[Dist]) -> dict[str, str]:
    """Serve an index of its own folder, so that uv remembers no page of the one before."""
    return {"ENVKIT_PYTHON_INDEX": put_index(site, folder, dists)}


def versions(folder: Path) -> Mapping[str, str]:
    return {wheel.name: wheel.version for wheel in read_lock(folder / "envkit.lock").wheels}


@pytest.fixture
def year_old(site: Site, tmp_path: Path) -> dict[str, str]:
    """Lock torch 2.6, then publish a year of releases; return the settings."""
    define(tmp_path, "2.6.*", "numpy", "requests")
    done = envkit(tmp_path, *LOCK, env=publish(site, "/old", OLD))
    assert done.returncode == 0, done.stderr
    assert versions(tmp_path) == OLD_VERSIONS
    return publish(site, "/new", (*OLD, *NEW))


@pytest.mark.parametrize("update", [(), ("--update", "torch"), ("--update", "Torch", "--update", "torchvision")])
def test_a_newer_torch_moves_with_its_family_and_nothing_else(
    update: tuple[str, ...], year_old: dict[str, str], tmp_path: Path
) -> None:
    define(tmp_path, "2.7.*", "numpy", "requests")
    done = envkit(tmp_path, *LOCK, *update, "--json", env=year_old)
    assert done.returncode == 0, done.stderr
    assert versions(tmp_path) == OLD_VERSIONS | FAMILY
    assert len(json.loads(done.stdout)["changes"]) == len(FAMILY)
