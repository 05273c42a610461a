from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from envkit.checks.catalog import catalog
from envkit.cli import build, build_flags
from envkit.cli.main import run
from envkit.cli.record_output import ReportTarget, for_stdout, write_reports
from envkit.engines.model import BaseImage, BuiltImage
from envkit.ground.errors import EnvironmentProblem
from envkit.ground.paths import state_dir
from envkit.pipeline.building import BuildResult
from envkit.plan.store import store_plan
from envkit.report.formats import KINDS
from envkit.run import runners
from envkit.verify.record import Record, schema
from tests.support.judging import Replay, document, inspected, observation, plan, printed
from tests.support.records import gpu_record
from tests.support.schema import faults
from tests.unit.cli.test_build import PLAN

CPU = plan(cuda=None)
RECORD = Record(gpu_record())
DIGEST = "sha256:" + "0" * 64
BUILT = BuiltImage(
    id=DIGEST,
    tags=("train:1",),
    engine="docker",
    size=1_500_000_000,
    base=BaseImage(reference=f"debian@{DIGEST}", digest=DIGEST, origin="registry", name="docker.io/library/debian:12"),
    plan_digest=DIGEST,
    labels=(),
    duration_s=1.0,
    log_file=None,
)


def answer(spec: dict[str, Any]) -> bytes:
    checks = [observation(entry.id, "host", "skip") for entry in catalog()]
    return printed(document(*checks, nonce=spec["nonce"]), spec["nonce"])


@pytest.fixture(autouse=True)
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Replay:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    monkeypatch.chdir(tmp_path)
    replay = Replay(answer, image=inspected(CPU))
    monkeypatch.setattr(runners, "choose", lambda *_args, **_options: replay)
    store_plan(state_dir(), CPU)
    return replay


def verify(*arguments: str) -> int:
    return run(["verify", "img", "--progress", "quiet", *arguments])


def test_every_kind_is_written_in_one_run(capsys: pytest.CaptureFixture[str]) -> None:
    wanted = [argument for kind in KINDS for argument in ("--report", f"{kind}=out/report.{kind}")]
    code = verify(*wanted)
    assert capsys.readouterr().out.startswith("ERROR  train")
    tree = json.loads(Path("out/report.json").read_bytes())
    assert faults(tree, schema()) == []
    assert tree["summary"]["exit_code"] == code == 6
    assert ET.fromstring(Path("out/report.junit").read_bytes()).tag == "testsuites"
    assert Path("out/report.md").read_text().startswith("## 🛑 ERROR: train")
    assert Path("out/report.html").read_text().startswith("<!doctype html>")
    assert sorted(path.name for path in Path("out").iterdir()) == sorted(f"report.{kind}" for kind in KINDS)


def test_a_report_to_stdout_is_data_and_the_text_is_talk(capsys: pytest.CaptureFixture[str]) -> None:
    assert verify("--report", "md=-") == 6
    captured = capsys.readouterr()
    assert captured.out.startswith("## 🛑 ERROR: train")
    assert "Exit code 6." in captured.err


def test_an_old_file_stays_whole_where_the_new_one_cannot_be_written(capsys: pytest.CaptureFixture[str]) -> None:
    Path("file").write_text("kept")
    assert verify("--report", "html=file/r.html", "--report", "md=r.md") == 9
    captured = capsys.readouterr()
    assert "error: --report html=file/r.html: File exists (" in captured.err
    assert "name a file in a writable folder" in captured.err
    assert ". Exit code " in captured.out
    assert Path("file").read_text() == "kept"
    assert Path("r.md").exists()


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["--report", "html"], "'html' is not KIND=FILE", "--report html=report.html"),
        (["--report", "html="], "'html=' is not KIND=FILE", "--report html=report.html"),
        (["--report", "pdf=x"], "unknown report 'pdf'", "use one of json, junit, md, html, html-full"),
        (["--report", "html=."], "'.' is a folder", "--report html=./report.html"),
        (["--report", "md=x", "--report", "html=./x"], "./x is used twice", "its own file"),
        (
            ["--report", "md=-", "--report", "html=-"],
            "--report md=- and --report html=-: only one document can go to stdout",
            "to files",
        ),
        (
            ["--json", "--report", "html=-"],
            "--report html=- and --json: only one document can go to stdout",
            "to files",
        ),
    ],
)
def test_what_cannot_be_written_is_told_before_anything_runs(
    runner: Replay, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str, hint: str
) -> None:
    assert verify(*arguments) == 2
    captured = capsys.readouterr()
    assert message.replace("'.'", ".") in captured.err
    assert hint in captured.err
    assert runner.argv == ()


def test_reports_on_no_verification_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["build", "--no-verify", "--report", "html=r.html"]) == 2
    assert "--report and --no-verify contradict each other" in capsys.readouterr().err


def test_the_schema_of_the_record_is_printed(runner: Replay, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", "--schema"]) == 0
    printed_schema = json.loads(capsys.readouterr().out)
    assert printed_schema == schema()
    assert faults(RECORD.tree, printed_schema) == []
    assert runner.argv == ()


def test_a_step_of_github_gets_its_summary_after_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "summary.md")
    Path("summary.md").write_text("before\n")
    assert verify() == 6
    assert Path("summary.md").read_text().startswith("before\n\n## 🛑 ERROR: train")
    assert verify() == 6
    assert Path("summary.md").read_text().count("## 🛑 ERROR: train") == 2


@pytest.mark.parametrize("left", [5000, 400, 1, 0])
def test_the_summary_stays_within_githubs_limit(monkeypatch: pytest.MonkeyPatch, left: int) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "summary.md")
    Path("summary.md").write_bytes(b"x" * ((1 << 20) - left))
    assert write_reports(RECORD, ()) is None
    size = Path("summary.md").stat().st_size
    assert size <= 1 << 20
    assert ("## ❌ FAIL: train" in Path("summary.md").read_text()) == (left >= 400)


def test_a_summary_that_cannot_be_written_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "no/such/folder/summary.md")
    assert verify() == 6
    assert "note: the step summary cannot be written" in capsys.readouterr().err


def test_only_one_report_is_stdouts_data() -> None:
    assert for_stdout(RECORD, [ReportTarget("md", "x.md")]) is None
    assert for_stdout(RECORD, [ReportTarget("md", "x.md"), ReportTarget("json", "-")]) == RECORD.to_bytes()


def test_a_build_writes_reports_and_its_document_even_where_one_of_them_cannot_be_written(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("file").write_text("kept")
    wanted = (ReportTarget("html", "file/r.html"), ReportTarget("md", "r.md"))
    for built in ("built.json", "-"):
        Path("r.md").unlink(missing_ok=True)
        with pytest.raises(EnvironmentProblem, match="--report html="):
            build._publish(BuildResult(image=BUILT, plan=PLAN, record=RECORD), built, wanted)
        assert Path("r.md").read_text().startswith("## ❌ FAIL: train")
    assert json.loads(Path("built.json").read_bytes())["verification"]["verdict"] == "FAIL"
    printed_text = capsys.readouterr().out
    assert json.loads(printed_text[printed_text.index("\n{") :])["schema"] == build_flags.SCHEMA


@pytest.mark.parametrize("verb", ["verify", "build"])
def test_a_folder_is_refused_as_a_file_before_anything_runs(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("out").mkdir()
    assert run([verb, "-o", "out/"]) == 2
    told = capsys.readouterr()
    assert (told.out, told.err) == ("", "error: -o out/ is a folder\n\nhint: -o out/record.json\n")
