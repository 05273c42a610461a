"""The scripts of exported pipelines, run as a runner runs them: into a real registry, with an image of a few files."""

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.engines.oci_images import registry
from tests.engines.small_channel import channel
from tests.engines.test_fleet import DEFINITION, push_base
from tests.engines.test_push import record
from tests.engines.test_registry_output import held
from tests.support.exports import PIN, exported, main_file, read_yaml

pytestmark = pytest.mark.engine


@dataclass(frozen=True)
class Runner:
    """A runner's checkout, in which a matrix was exported."""

    folder: Path
    host: str
    repository: str
    env: Mapping[str, str]

    def export(self, kind: str, *flags: str) -> Any:
        argv = [
            "envkit",
            "export",
            kind,
            "--matrix",
            "matrix.yaml",
            "--registry",
            self.repository,
            "--out",
            "./",
            "--requirement",
            PIN,
        ]
        subprocess.run([*argv, *flags], cwd=self.folder, env=self.env, check=True, capture_output=True)
        (path,) = (path for path in self.folder.rglob("*.yml") if path.name in (".gitlab-ci.yml", "envkit.yml"))
        return yaml.safe_load(path.read_text())

    def run(self, script: str, given: Mapping[str, str]) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", "-c", script],
            cwd=self.folder, env={**self.env, **given}, capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip

    @property
    def built(self) -> dict[str, Any]:
        path = next(self.folder.glob("reports/**/build.json"))
        document: dict[str, Any] = json.loads(path.read_text())
        return document


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """A conda channel and a registry with a base image."""
    folder = tmp_path_factory.mktemp("places")
    (folder / "registry").mkdir()
    with channel(folder) as served, registry(folder / "registry") as host:
        push_base(host, folder, 1)
        yield served.address, host


@pytest.fixture
def runner(places: tuple[str, str], tmp_path: Path) -> Runner:
    address, host = places
    repository = f"{host}/ci/{secrets.token_hex(4)}"
    (tmp_path / "small.yaml").write_text(DEFINITION)
    axes = {"python": ["3.11"], "torch": ["2.13.0"], "base": [f"{host}/team/base1:1"]}
    (tmp_path / "matrix.yaml").write_text(
        json.dumps({"schema": "envkit.matrix/1", "image": "./small.yaml", "axes": axes})
    )
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ENVKIT_")}
    own = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(tmp_path / "home"),
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "ENVKIT_CONDA_CHANNEL_ALIAS": address,
        "REGISTRY": repository,
        "REGISTRY_USER": "someone",
        "REGISTRY_PASSWORD": 'a "b" $c',
        "CI_DEFAULT_BRANCH": "main",
    }
    return Runner(tmp_path, host, repository, {**kept, **own})


def test_a_pipeline_without_verification_builds_and_pushes(runner: Runner) -> None:
    tree = runner.export("gitlab", "--set", "proof=none")
    (row,) = tree["build"]["parallel"]["matrix"]
    script = "\n".join(tree["build"]["script"])
    other = runner.run(script, {**row, "CI_COMMIT_BRANCH": "feature"})
    assert other.returncode == 0, other.stderr
    assert held(f"{runner.repository}:{row['TAG']}") is None
    done = runner.run(script, {**row, "CI_COMMIT_BRANCH": "main"})
    assert done.returncode == 0, done.stderr
    reference = runner.built["push"]["reference"]
    assert held(f"{runner.repository}:{row['TAG']}") == reference.partition("@")[2]
    config = runner.folder / "home" / ".docker" / "config.json"
    assert config.stat().st_mode & 0o777 == 0o600
    assert list(json.loads(config.read_text())["auths"]) == [runner.host]


def step(job: Any, name: str) -> str:
    (found,) = (one["run"] for one in job["steps"] if one.get("name") == name)
    return str(found)


def test_a_workflow_tags_what_is_proved_and_nothing_else(runner: Runner) -> None:
    build = runner.export("github")["jobs"]["build"]
    (row,) = build["strategy"]["matrix"]["include"]
    given = {"CELL": row["cell"], "TAG": row.get("tag", row["cell"]), "BASE": row["base"]}
    # The image's Python is not a program, so that no verification can pass.
    done = runner.run(step(build, "Build and verify"), {**given, "GITHUB_REF": "refs/heads/main"})
    assert done.returncode not in (0, 1, 2), done.stderr
    assert held(f"{runner.repository}:{given['TAG']}") is None
    assert runner.built["push"]["tagged"] is False
    written = runner.folder / "reports" / "record.json"
    assert json.loads(written.read_bytes())["summary"]["verdict"] != "PASS"
    # The job for GPUs has the digest, and a record of its own.
    reference = runner.built["push"]["reference"]
    program = runner.folder / "temp" / "envkit" / "bin" / "envkit"
    program.parent.mkdir(parents=True)
    program.symlink_to(Path(sys.executable).with_name("envkit"))
    given |= {"IMAGE": reference, "RUNNER_TEMP": str(runner.folder / "temp")}
    verify = read_yaml(main_file(exported("github", ("cu126",))))["jobs"]["verify"]
    (runner.folder / "build" / "reports").mkdir(parents=True)
    (runner.folder / "build" / "reports" / "build.json").write_text(json.dumps(runner.built))
    done = runner.run(step(verify, "Verify on the GPU"), given)
    assert (done.returncode, done.stderr) == (1, "the build did not verify this image\n")
    tag = step(verify, "Tag verified images")
    assert runner.run(tag, given).returncode == 5
    record(written, runner.built["image"])
    done = runner.run(tag, given)
    assert done.returncode == 0, done.stderr
    assert held(f"{runner.repository}:{row['cell']}") == reference.partition("@")[2]
