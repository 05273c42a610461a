"""From the files of a project to an image: `init`, `resolve`, `lock` and `build` as a user types them.

The packages are stubs of an index and a channel on loopback; the embedded engine assembles the image without a base.
"""

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from envkit.lock.request import torch_wheels
from envkit.lock.store import read_lock
from envkit.plan.copying import merged
from envkit.plan.definition import load
from envkit.plan.model import BuildPlan
from envkit.plan.planner import plan_of
from tests.golden.projects import NAMES, PROJECTS
from tests.lock.commands import conda_rows, envkit, read_layout
from tests.lock.plans import FACTS
from tests.lock.served import Dist, Pkg, Site, put_channel, put_index

pytestmark = pytest.mark.long

# A venv needs wheels alone; for an image of conda packages the channel would need the archives of a whole Python.
_WHEELS = {"template": "wheels", "source": "pytorch"}
GIVEN = {
    "cog": _WHEELS | {"os": "debian12"},
    "dockerfile": _WHEELS | {"python": "3.10"},  # of Ubuntu 22.04, which the Dockerfile asks for
    "environment": {},
    "pyproject": _WHEELS | {"python": "3.11", "os": "debian12"},
    "requirements": _WHEELS | {"python": "3.11", "os": "debian12"},
}
BUILT = sorted(set(NAMES) - {"environment"})


def begun(name: str, tmp_path: Path) -> Path:
    """A copy of a project, with the definition that `envkit init` wrote."""
    folder = tmp_path / name
    shutil.copytree(PROJECTS / name, folder)
    done = envkit(folder, "init")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("next: envkit build image.yaml\n")
    return folder


def typed(given: Mapping[str, str]) -> list[str]:
    return [word for key, value in given.items() for word in (f"--{key}", value)]


def served(site: Site, plan: BuildPlan) -> dict[str, str]:
    """Serve what a plan needs, one version of each package; returns the settings."""
    for channel in plan.channels:
        put_channel(site, channel, [on_python(row, plan.resolution.python) for row in conda_rows(plan)])
    family = [Requirement(line) for line in torch_wheels(plan)]
    others = [Requirement(line) for line in plan.pip]
    wanted: dict[str, SpecifierSet] = {}
    for one in (*family, *others):
        wanted[one.name] = wanted.get(one.name, SpecifierSet()) & one.specifier
    own = {one.name for one in family}
    rows = {name: Dist(name, version_in(specifier)) for name, specifier in wanted.items()}
    put_index(site, f"/whl/{(plan.resolution.index or '').rpartition('/')[2]}", [rows[name] for name in sorted(own)])
    put_index(site, "/simple", [rows[name] for name in sorted(rows.keys() - own)])
    found = {"ENVKIT_CONDA_CHANNEL_ALIAS": site.url, "ENVKIT_PYTORCH_INDEX": f"{site.url}/whl"}
    return found | {"ENVKIT_PYTHON_INDEX": f"{site.url}/simple"}


def on_python(row: Pkg, python: str) -> Pkg:
    """The row for another Python than the one of the shipped images."""
    name = row.name.partition("<")[0].strip()
    rest = row.name.removeprefix(name).strip()
    if name == "python":
        return replace(row, version=f"{python}.7")
    version = version_in(SpecifierSet(rest)) if rest else row.version
    depends = tuple(one.replace("3.11", python) for one in row.depends)
    return replace(row, name=name, version=version, depends=depends)


def version_in(wanted: SpecifierSet) -> str:
    """A version that is allowed: one that is named, or one of the major below an upper bound."""
    named = [one.version for one in wanted]
    below = [f"{Version(version).major - 1}.99" for version in named]
    return next(one for one in (*named, *below, "1.0") if wanted.contains(one))


def planned(folder: Path, given: Mapping[str, str]) -> BuildPlan:
    return plan_of(load(str(folder / "image.yaml")), dict(given), FACTS)


@pytest.mark.parametrize("name", NAMES)
def test_a_project_is_resolved_rendered_and_locked(name: str, tmp_path: Path, site: Site) -> None:
    folder, given = begun(name, tmp_path), GIVEN[name]
    env = served(site, planned(folder, given))
    for arguments in (
        ["resolve", "image.yaml"],
        ["render", "image.yaml", "--check"],
        ["lock", "image.yaml", *typed(given), "--base", "none"],
        ["lock", "image.yaml", *typed(given), "--base", "none", "--check"],
    ):
        done = envkit(folder, *arguments, env=env)
        assert done.returncode == 0, f"{arguments}: {done.stderr}"
    lock = read_lock(folder / "envkit.lock")
    assert {one.name for one in lock.wheels} >= {Requirement(line).name.lower() for line in planned(folder, given).pip}


def built(folder: Path, name: str, env: Mapping[str, str], out: str) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Build with the folder's lock; return the image's configuration and its files by path."""
    flags = ["--engine", "embedded", "--base", "none", "--no-verify", "--output", f"oci:{out}"]
    more = {"XDG_STATE_HOME": str(folder.parent / "state")}
    done = envkit(folder, "build", "image.yaml", *typed(GIVEN[name]), *flags, env=dict(env) | more)
    assert done.returncode == 0, done.stderr
    assert "lock: envkit.lock" in done.stderr
    return read_layout(folder / out)


def locked(folder: Path, name: str, site: Site) -> dict[str, str]:
    env = served(site, planned(folder, GIVEN[name]))
    done = envkit(folder, "lock", "image.yaml", *typed(GIVEN[name]), "--base", "none", env=env)
    assert done.returncode == 0, done.stderr
    return env


@pytest.mark.parametrize("name", BUILT)
def test_a_project_is_built_with_its_files_and_settings(name: str, tmp_path: Path, site: Site) -> None:
    folder = begun(name, tmp_path)
    env = locked(folder, name, site)
    plan = planned(folder, GIVEN[name])
    wanted = {path: one.data for path, one in merged(plan).items()}
    config, files = built(folder, name, env, "out")
    assert (config["WorkingDir"], config.get("Cmd", [])) == (plan.workdir, list(plan.cmd))
    assert config.get("ExposedPorts", {}) == {port: {} for port in plan.ports}
    assert config.get("Volumes", {}) == {path: {} for path in plan.volumes}
    assert config["Labels"]["envkit.plan"] == plan.digest
    assert {path: files.get(path) for path in wanted} == wanted
    assert any("/site-packages/torch-" in path for path in files)


def test_changed_code_is_another_image_of_the_same_lock(tmp_path: Path, site: Site) -> None:
    folder = begun("dockerfile", tmp_path)
    env = locked(folder, "dockerfile", site)
    first, again = built(folder, "dockerfile", env, "a"), built(folder, "dockerfile", env, "b")
    assert first == again
    (folder / "train.py").write_text("print(2)\n")
    config, files = built(folder, "dockerfile", env, "c")
    assert files["app/train.py"] == b"print(2)\n"
    assert config["Labels"]["envkit.lock"] == first[0]["Labels"]["envkit.lock"]
    assert config["Labels"]["envkit.plan"] != first[0]["Labels"]["envkit.plan"]


def test_changed_requirements_make_the_lock_stale(tmp_path: Path, site: Site) -> None:
    folder = begun("dockerfile", tmp_path)
    env = locked(folder, "dockerfile", site)
    (folder / "requirements.txt").write_text("accelerate>=0.31\n")
    check = envkit(folder, "lock", "image.yaml", *typed(GIVEN["dockerfile"]), "--base", "none", "--check", env=env)
    assert check.returncode == 4
    assert "pip: accelerate>=0.30" in check.stderr
