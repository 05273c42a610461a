"""uv and pip read what `envkit resolve --format` prints, against indexes on loopback."""

import os
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from envkit.lock import uv
from envkit.plan import install
from envkit.resolve.model import Resolution
from envkit.resolve.request import parse
from envkit.resolve.resolver import resolve
from tests.lock.served import Dist, Site, put_index
from tests.support.plans import facts

# Driver and GPU of three machines, none of them this one.
MACHINES = [("450.80.02", "V100"), ("535.104.05", "A100"), ("570.86.15", "RTX 5090")]


def served(site: Site, driver: str, gpu: str) -> tuple[Resolution, str]:
    """The resolution for a machine with its index on loopback, and another index as the default one."""
    fields = {"driver": driver, "gpu": (gpu,), "source": "pytorch", "python": "3.11"}
    found = resolve(parse(fields, facts()), facts())
    local = found.local_version or ""
    names = {"torch": found.torch, "torchvision": found.torchvision, "torchaudio": found.torchaudio}
    own = [Dist(name, f"{version}{local}", ("sympy",)) for name, version in names.items() if version]
    others = [Dist("torch", "9.9"), Dist("sympy", "1.14"), Dist("numpy", "1.26"), Dist("setuptools", "81")]
    default = put_index(site, "/simple", others)
    return replace(found, index=put_index(site, "/whl", own)), default


@pytest.mark.parametrize(("driver", "gpu"), MACHINES)
def test_uv_locks_the_answer_for_another_machine(driver: str, gpu: str, site: Site, tmp_path: Path) -> None:
    found, default = served(site, driver, gpu)
    (tmp_path / "pyproject.toml").write_text(install.text_of(found, "uv"))
    env = {**os.environ, "UV_DEFAULT_INDEX": default, "UV_PYTHON": sys.executable}
    done = subprocess.run(
        [uv.binary(), "lock", "--no-config"], cwd=tmp_path, env=env, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    locked = {one["name"]: one for one in tomllib.loads((tmp_path / "uv.lock").read_text())["package"]}
    assert locked["torch"]["version"] == f"{found.torch}{found.local_version}"
    assert locked["torch"]["source"] == {"registry": found.index}
    assert locked["sympy"]["source"] == {"registry": default}


@pytest.mark.parametrize(("driver", "gpu"), MACHINES)
def test_pip_reads_the_requirements(driver: str, gpu: str, site: Site, tmp_path: Path) -> None:
    found, default = served(site, driver, gpu)
    file = tmp_path / "requirements.txt"
    file.write_text(install.text_of(found, "requirements"))
    argv = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--dry-run",
        "--ignore-installed",
        "--isolated",
        "--index-url",
        default,
    ]
    done = subprocess.run([*argv, "-r", str(file)], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"torch-{found.torch}{found.local_version}" in done.stdout
