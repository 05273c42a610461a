"""The steps of action.yml, run as a runner runs them: same shell, same variables, files for outputs and summary."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from envkit.export.github import uses

ROOT = Path(__file__).parents[2]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text())


@dataclass(frozen=True)
class Ran:
    """What a step left behind."""

    code: int
    outputs: dict[str, str]
    summary: str
    folder: Path
    stdout: str
    stderr: str


@pytest.fixture
def runner(tmp_path: Path) -> Path:
    """A runner's folder, whose envkit is the one under test."""
    programs = tmp_path / "temp" / "envkit" / "bin"
    programs.mkdir(parents=True)
    for name in ("envkit", "python"):
        (programs / name).write_text(f'#!/bin/sh\nexec {Path(sys.executable).with_name(name)} "$@"\n')
        (programs / name).chmod(0o755)
    (tmp_path / "work").mkdir()
    return tmp_path


def run(runner: Path, command: str, *words: str) -> Ran:
    (step,) = (one for one in ACTION["runs"]["steps"] if one.get("id") == "run")
    output, summary = runner / "output", runner / "summary"
    output.write_text("")
    summary.write_text("")
    defaults = {name: given["default"] for name, given in ACTION["inputs"].items() if "default" in given}
    inputs = defaults | {"command": command, "args": "\n".join(words)}
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", "-c", step["run"]],
        cwd=runner / "work",
        env={
            **{name: value for name, value in os.environ.items() if not name.startswith("ENVKIT_")},
            **{name: _filled(value, inputs) for name, value in step["env"].items()},
            "RUNNER_TEMP": str(runner / "temp"),
            "GITHUB_OUTPUT": str(output),
            "GITHUB_STEP_SUMMARY": str(summary),
            "XDG_STATE_HOME": str(runner / "state"),
            "NO_COLOR": "1",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    pairs = dict(line.split("=", 1) for line in output.read_text().splitlines())
    return Ran(done.returncode, pairs, summary.read_text(), runner / "work", done.stdout, done.stderr)


def _filled(value: str, inputs: dict[str, str]) -> str:
    name = value.removeprefix("${{ inputs.").removesuffix(" }}")
    assert value == f"${{{{ inputs.{name} }}}}"
    return inputs[name]


def test_a_command_that_proves_nothing_gives_its_output_and_code(runner: Path) -> None:
    ran = run(runner, "resolve", "--cuda", "11.8", "--json")
    assert ran.code == 0, ran.stderr
    assert json.loads(ran.stdout)["cuda"] == "11.8"
    assert ran.outputs == {"exit-code": "0", "verdict": "", "image": "", "digest": "", "record": ""}


def test_verify_gives_verdict_reports_and_summary(runner: Path) -> None:
    ran = run(runner, "verify", "--runner", "host", "--only", "C00", "--allow-cpu")
    assert ran.outputs["exit-code"] == str(ran.code)
    assert ran.outputs["record"] == "envkit-reports/record.json"
    record = json.loads((ran.folder / "envkit-reports" / "record.json").read_bytes())
    assert ran.outputs["verdict"] == record["summary"]["verdict"]
    assert {path.name for path in (ran.folder / "envkit-reports").iterdir()} == {
        "record.json",
        "junit.xml",
        "report.html",
    }
    assert ran.outputs["verdict"] == "NOT_VERIFIED"
    assert "NOT VERIFIED: host" in ran.summary


def test_a_failure_is_the_steps_failure(runner: Path) -> None:
    ran = run(runner, "resolve", "--torch", "9.9")
    assert ran.code == 3
    assert ran.outputs["exit-code"] == "3"
    ran = run(runner, "build", "no-such-image")
    assert ran.code == 2
    assert ran.outputs == {"exit-code": "2", "verdict": "", "image": "", "digest": "", "record": ""}


def test_outputs_of_an_earlier_step_are_not_taken_for_this_ones(runner: Path) -> None:
    reports = runner / "work" / "envkit-reports"
    reports.mkdir()
    (reports / "record.json").write_text('{"summary": {"verdict": "PASS"}}')
    (reports / "build.json").write_text('{"digest": "sha256:0"}')
    assert run(runner, "resolve", "--cuda", "11.8").outputs["verdict"] == ""
    outputs = run(runner, "build", "no-such-image").outputs
    assert (outputs["verdict"], outputs["digest"]) == ("", "")
    assert [path.name for path in reports.iterdir()] == ["build.json"]
    assert json.loads((reports / "build.json").read_text())["failure"]["exit_code"] == 2


@pytest.mark.parametrize("words", [("--matrix", "many.yaml"), ("--matrix=many.yaml",), ("cpu", "no-such-image")])
def test_many_images_are_built_without_the_reports_of_one(runner: Path, words: tuple[str, ...]) -> None:
    impossible = 'schema: envkit.matrix/1\nimage: cpu\naxes: {torch: ["2.7", "9.9"]}\n'
    (runner / "work" / "many.yaml").write_text(impossible)
    ran = run(runner, "build", *words)
    assert "--report" not in ran.stderr
    assert ran.code == (2 if "cpu" in words else 3), ran.stderr
    assert ran.outputs == {"exit-code": str(ran.code), "verdict": "", "image": "", "digest": "", "record": ""}


def test_many_images_are_verified_without_the_reports_of_one(runner: Path) -> None:
    assert "--report" not in run(runner, "verify", "a:1", "b:1", "--runner", "host").stderr
    assert "--report" not in run(runner, "verify", "--scheduler", "tcp://127.0.0.1:1", "a:1").stderr


def test_a_line_is_one_word(runner: Path) -> None:
    ran = run(runner, "resolve", "--torch", "2.7; echo $HOME `id` *", "", "--cuda", "12.6")
    assert ran.code == 2
    assert "--torch: '2.7; echo $HOME `id` *' is not a version" in ran.stderr


def test_every_output_is_one_that_the_step_writes(runner: Path) -> None:
    wanted = {f"${{{{ steps.run.outputs.{name} }}}}" for name in run(runner, "config").outputs}
    assert {one["value"] for one in ACTION["outputs"].values()} == wanted


def test_the_python_that_it_sets_up_is_the_release_of_the_workflows() -> None:
    line = next(line for line in (ROOT / "action.yml").read_text().splitlines() if "setup-python@" in line)
    reference = line.split("uses: ")[1]
    assert reference == uses(reference.split(" ")[0])
    assert " # v" in reference
