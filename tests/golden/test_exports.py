"""What is exported is what is kept, and passes the checkers of those who will read it."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from check_jsonschema import main as check_jsonschema
from click.testing import CliRunner

from envkit.export.github import uses
from tests.golden.cases import FOLDER, ROOT
from tests.golden.exports import exports
from tests.support.exports import PIN, read_yaml

UPDATE = "run `python -m tests.golden --update` if this change is meant"
KEPT = {FOLDER / folder / path: data for folder, path, data in exports()}
WORKFLOWS = sorted(path for path in KEPT if ".github" in path.parts)
PIPELINES = sorted(path for path in KEPT if path.name == ".gitlab-ci.yml")
ACTION = ROOT / "action.yml"
OWN_JOBS = sorted((ROOT / ".github" / "workflows").iterdir())
OWN_PIPELINE = ROOT / "ci" / "gitlab" / "facts.yml"
COMPONENT = ROOT / "ci" / "gitlab" / "envkit.yml"


def tool(name: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a tool of the development environment, or one of the machine's own."""
    own = Path(sys.executable).with_name(name)
    return subprocess.run(
        [own if own.exists() else name, *arguments], capture_output=True, text=True, check=False, cwd=ROOT
    )


def schema_faults(schema: str, *files: Path) -> str:
    done = CliRunner().invoke(check_jsonschema, ["--builtin-schema", schema, *map(str, files)])
    return "" if done.exit_code == 0 else done.output


@pytest.mark.parametrize("path", sorted(KEPT), ids=lambda path: str(path.relative_to(FOLDER)))
def test_files_are_as_kept(path: Path) -> None:
    assert path.is_file(), UPDATE
    assert path.read_text() == KEPT[path].decode(), UPDATE


def test_workflows_and_the_action_fit_githubs_schema() -> None:
    assert len(WORKFLOWS) == 2
    assert schema_faults("vendor.github-workflows", *OWN_JOBS, *WORKFLOWS) == ""
    assert schema_faults("custom.github-workflows-require-timeout", *OWN_JOBS, *WORKFLOWS) == ""
    assert schema_faults("vendor.github-actions", ACTION) == ""


def test_pipelines_fit_gitlabs_schema() -> None:
    assert len(PIPELINES) == 2
    assert schema_faults("vendor.gitlab-ci", OWN_PIPELINE, *PIPELINES) == ""


def test_the_component_fits_gitlabs_schema_with_its_inputs_in_place(tmp_path: Path) -> None:
    header, body = COMPONENT.read_text().split("\n---\n")
    inputs = yaml.safe_load(header)["spec"]["inputs"]
    for name, given in inputs.items():
        assert f"$[[ inputs.{name} ]]" in body, name
        # Without a default, GitLab demands the input: what is installed has to be said.
        assert ("default" in given) is (name != "requirement")
        body = body.replace(f"$[[ inputs.{name} ]]", str(given.get("default", PIN)))
    assert "$[[" not in body
    (tmp_path / "component.yml").write_text(body)
    (tmp_path / "header.yml").write_text(header)
    assert schema_faults("vendor.gitlab-ci", tmp_path / "component.yml", tmp_path / "header.yml") == ""
    job = yaml.safe_load(body)["envkit"]
    for part in ("before_script", "script"):
        _sound("\n".join(job[part]), "sh", tmp_path)


def test_the_schemas_are_awake(tmp_path: Path) -> None:
    bad = tmp_path / "bad.yml"
    bad.write_text("on: push\njobs:\n  a:\n    runs_on: x\n    steps: 3\n")
    assert "runs_on" in schema_faults("vendor.github-workflows", bad)
    bad.write_text("build:\n  script: [true]\n  paralel: 3\n  timeout: [1]\n")
    assert "timeout" in schema_faults("vendor.gitlab-ci", bad)


def test_no_audit_of_workflows_and_the_action_finds_anything() -> None:
    done = tool("zizmor", "--offline", "--no-config", "--format", "json", ACTION, *OWN_JOBS, *WORKFLOWS)
    assert [(one["ident"], one["desc"]) for one in json.loads(done.stdout)] == []
    assert done.returncode == 0, done.stderr


def test_the_audit_is_awake(tmp_path: Path) -> None:
    bad = tmp_path / ".github" / "workflows" / "bad.yml"
    bad.parent.mkdir(parents=True)
    bad.write_text(
        "on: pull_request_target\njobs:\n  a:\n    runs-on: ubuntu-24.04\n    steps:\n"
        "      - uses: actions/checkout@v4\n      - run: echo ${{ github.event.pull_request.title }}\n"
    )
    found = {one["ident"] for one in json.loads(tool("zizmor", "--offline", "--format", "json", bad).stdout)}
    assert {"dangerous-triggers", "template-injection", "unpinned-uses"} <= found


@pytest.mark.skipif(shutil.which("actionlint") is None, reason="actionlint is on no Python index; it is not installed")
def test_actionlint_finds_nothing(tmp_path: Path) -> None:
    config = tmp_path / "actionlint.yaml"
    config.write_text("self-hosted-runner:\n  labels: [gpu]\n")
    done = tool("actionlint", "-config-file", config, *OWN_JOBS, *WORKFLOWS)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", [ACTION, *OWN_JOBS, *WORKFLOWS], ids=lambda path: str(path.relative_to(ROOT)))
def test_scripts_of_workflows_are_sound(path: Path, tmp_path: Path) -> None:
    tree = read_yaml(path.read_text())
    jobs = [tree["runs"]] if "runs" in tree else list(tree["jobs"].values())
    steps = [step for job in jobs for step in job["steps"] if "run" in step]
    assert steps
    for step in steps:
        _sound(step["run"], "bash", tmp_path)


@pytest.mark.parametrize("path", PIPELINES, ids=lambda path: str(path.relative_to(FOLDER)))
def test_scripts_of_pipelines_are_sound(path: Path, tmp_path: Path) -> None:
    tree = yaml.safe_load(path.read_text())
    for name in ("build", "verify"):
        for part in ("before_script", "script"):
            _sound("\n".join(tree[name][part]), "sh", tmp_path)


def test_the_scripts_of_the_facts_jobs_are_sound(tmp_path: Path) -> None:
    _sound("\n".join(yaml.safe_load(OWN_PIPELINE.read_text())["facts"]["script"]), "sh", tmp_path)
    _sound((ROOT / "ci" / "facts.sh").read_text(), "bash", tmp_path)


def test_the_own_jobs_pin_actions_as_exported_workflows_do() -> None:
    lines = [line.split("uses: ")[1] for path in OWN_JOBS for line in path.read_text().splitlines() if "uses: " in line]
    jobs = [job for path in OWN_JOBS for job in read_yaml(path.read_text())["jobs"].values()]
    # The checkout, and a Python; a container brings its own.
    assert len(lines) == sum(2 - ("container" in job) for job in jobs)
    assert all(" # v" in line and line == uses(line.partition(" ")[0]) for line in lines)


def _sound(script: str, shell: str, folder: Path) -> None:
    place = folder / "script.sh"
    place.write_text(script)
    done = tool("shellcheck", f"--shell={shell}", place)
    assert done.returncode == 0, done.stdout


def test_shellcheck_is_awake(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="SC2086"):
        _sound('ls $1\necho "$1"', "bash", tmp_path)
