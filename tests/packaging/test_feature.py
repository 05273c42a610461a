"""The dev container feature: what its file says fits the specification, and its script installs envkit."""

import hashlib
import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from envkit import __version__
from envkit.ground.naming import FILE_STEM
from envkit.ground.requirement import LINE
from tests.packaging.test_wheel import ROOT, build
from tests.support.exports import PIN

FEATURE = ROOT / "ci" / "features" / "envkit"
# Of the properties that the specification names, those that are written here; it allows no others.
TYPES: dict[str, Any] = {
    "id": str, "version": str, "name": str, "description": str, "options": dict, "installsAfter": list,
}  # fmt: skip
OPTION = {"boolean": bool, "string": str}


def install(folder: Path, **options: str) -> subprocess.CompletedProcess[str]:
    """Run the script as a builder of dev containers does, with another prefix."""
    path = options.pop("PATH", os.environ["PATH"])
    env = {"PATH": path, "HOME": str(folder), "PREFIX": str(folder / "prefix"), "TOOLS": "false", "REQUIREMENT": PIN}
    env |= options
    return subprocess.run(
        ["sh", FEATURE / "install.sh"], env=env, capture_output=True, text=True, check=False, cwd=folder, timeout=300
    )


def programs(folder: Path, scripts: Mapping[str, str]) -> str:
    """A folder with these scripts, and with the basic programs of this machine."""
    folder.mkdir()
    for name in ("sh", "find", "grep", "head", "mkdir", "rm", "ln"):
        found = next(Path(one, name) for one in os.environ["PATH"].split(":") if Path(one, name).exists())
        (folder / name).symlink_to(found)
    for name, text in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    return str(folder)


def test_the_file_is_as_the_specification_wants_it() -> None:
    tree = json.loads((FEATURE / "devcontainer-feature.json").read_text())
    assert {name: type(value) for name, value in tree.items()} == TYPES
    assert tree["id"] == FEATURE.name
    assert tree["version"] == __version__
    for option in tree["options"].values():
        assert set(option) - {"proposals"} == {"type", "default", "description"}
        assert isinstance(option["default"], OPTION[option["type"]])


def test_the_script_has_the_defaults_of_the_file() -> None:
    options = json.loads((FEATURE / "devcontainer-feature.json").read_text())["options"]
    script = (FEATURE / "install.sh").read_text()
    for name, option in options.items():
        default = str(option["default"]).lower() if option["type"] == "boolean" else option["default"]
        assert f"${{{name.upper()}:-{default}}}" in script


def test_the_script_is_sound() -> None:
    tool = Path(sys.executable).with_name("shellcheck")
    done = subprocess.run([tool, FEATURE / "install.sh"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert os.access(FEATURE / "install.sh", os.X_OK)


@pytest.mark.parametrize(
    "text",
    ["", "envkit", "envkit==0.2.0", "envkit-gpu==0.2.0", "git+https://git.example/e@main",
     "/srv/envkit_gpu-1-py3-none-any.whl", f"{PIN}\nnumpy", f"{PIN} --index-url=https://evil.example"],
)  # fmt: skip
def test_a_requirement_that_can_be_someone_elses_is_refused(text: str, tmp_path: Path) -> None:
    done = install(tmp_path, REQUIREMENT=text, PYTHON=sys.executable)
    assert done.returncode == 1
    assert "is not a file with its --hash=sha256:, a commit, or a version with hashes" in done.stderr
    assert not (tmp_path / "prefix").exists()


@pytest.mark.parametrize("path", ["ci/features/envkit/install.sh", "ci/gitlab/envkit.yml", "action.yml"])
def test_scripts_check_a_requirement_as_the_exports_do(path: str) -> None:
    text = (ROOT / path).read_text()
    assert f"line='{LINE}'\n" in text
    assert f"/{FILE_STEM}-*.whl" in text


@pytest.mark.parametrize("asked", ["no-such-python", "false"])
def test_a_python_that_cannot_run_envkit_is_named(asked: str, tmp_path: Path) -> None:
    done = install(tmp_path, PYTHON=asked)
    assert (done.returncode, done.stderr) == (
        1, f"envkit: python: {asked} is not Python 3.11 or newer with venv and ensurepip\n",
    )  # fmt: skip
    assert not (tmp_path / "prefix").exists()


def test_without_python_and_apt_it_says_what_is_missing(tmp_path: Path) -> None:
    done = install(tmp_path, PATH=programs(tmp_path / "bin", {}))
    assert done.returncode == 1
    assert "no Python 3.11 or newer, and no apt-get" in done.stderr


def test_python_and_tools_come_from_apt(tmp_path: Path) -> None:
    """Nothing is installed: the Python that apt-get brings is too old, and the other one makes no environment."""
    scripts = {"apt-get": f'echo "$*" >> {tmp_path}/calls', "python3": "exit 1", "own": '[ "$1" = -c ]'}
    path = programs(tmp_path / "bin", scripts)
    done = install(tmp_path, PATH=path)
    assert "the system's Python is older than 3.11" in done.stderr
    assert "install -y -q --no-install-recommends python3-venv" in (tmp_path / "calls").read_text().splitlines()
    install(tmp_path, PATH=path, TOOLS="true", PYTHON="own")
    assert (tmp_path / "calls").read_text().splitlines()[-1].endswith("--no-install-recommends bubblewrap mmdebstrap")


@pytest.mark.long
def test_it_installs_the_wheel_twice(tmp_path: Path) -> None:
    wheel = build("wheel", ROOT, tmp_path / "dist")
    requirement = f"{wheel} --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}"
    wrong = install(tmp_path, PYTHON=sys.executable, REQUIREMENT=f"{requirement[:-6]}000000", PIP_NO_INDEX="1")
    assert wrong.returncode != 0
    assert "DO NOT MATCH THE HASHES" in wrong.stderr
    # The dependencies come from the running environment, as in tests/packaging/test_wheel.py.
    own = {"PIP_NO_DEPS": "1", "PIP_NO_INDEX": "1", "PYTHONPATH": sysconfig.get_path("purelib")}
    for _ in range(2):
        done = install(tmp_path, PYTHON=sys.executable, REQUIREMENT=requirement, **own)
        assert done.returncode == 0, done.stderr
        assert done.stdout == f"envkit {__version__}\n"
    program = tmp_path / "prefix" / "bin" / "envkit"
    assert program.resolve().is_relative_to(tmp_path / "prefix" / "lib" / "envkit")
    shown = subprocess.run(
        [program, "resolve", "--cuda", "11.8", "--json"],
        env={"PYTHONPATH": own["PYTHONPATH"], "HOME": str(tmp_path)}, capture_output=True, check=True, cwd=tmp_path,
    )  # fmt: skip
    assert json.loads(shown.stdout)["torch"] == "2.7.1"
