from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from envkit.cli.main import run
from envkit.ground.paths import state_dir
from envkit.verify.question import question_of, questions_json
from tests.support.judging import document, observation, plan, printed

QUESTION = question_of(plan(), name="train", image="registry.example.com/team/train:1", only=("C04",))
ASKED = ["verify", "--observed", "pod.log", "--questions", "questions.json"]


@pytest.fixture(autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    Path("questions.json").write_text(questions_json([QUESTION]))
    answer = document(observation("C04", "gpu:0", "skip"), nonce=QUESTION.nonce)
    Path("pod.log").write_bytes(printed(answer, QUESTION.nonce))


def test_a_log_is_judged_kept_and_its_exit_code_returned(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*ASKED, "-o", "r.json", "--report", "junit=r.xml"]) == 5
    captured = capsys.readouterr()
    assert "NO_GPU" in captured.out
    assert "S00 to S06 are left out, because registry.example.com/team/train:1 itself was not read" in captured.err
    assert json.loads(Path("r.json").read_bytes())["summary"]["verdict"] == "NOT_VERIFIED"
    assert Path("r.xml").exists()
    assert len(list((state_dir() / "records").iterdir())) == 1
    assert run(["verify", "--judge", "r.json"]) == 5


def test_a_log_can_come_through_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(Path("pod.log").read_bytes())))
    assert run(["verify", "--observed", "-", "--questions", "questions.json"]) == 5


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["verify", "--observed", "pod.log"], "--observed needs --questions, the exported file"),
        (["verify", "--questions", "questions.json"], "--questions needs --observed, the log to judge"),
        ([*ASKED, "--tier", "deep"], "--tier and --observed contradict each other"),
        ([*ASKED, "img"], "IMAGE and --observed contradict"),
        ([*ASKED, "--self-test"], "--self-test and --observed contradict"),
        (
            ["verify", "--judge", "r.json", "--self-test"],
            "--self-test and --judge contradict each other",
        ),
        (["verify", "--judge", "r.json", "--allow-cpu"], "--allow-cpu and --judge"),
        ([*ASKED, "--judge", "r.json"], "--judge and --observed contradict each other"),
        ([*ASKED, "--allow-cpu", "--require-gpu"], "--allow-cpu and --require-gpu contradict each other"),
        (["verify", "--observed", "none.log", "--questions", "questions.json"], "none.log: No such file"),
        (["verify", "--observed", "pod.log", "--questions", "none.json"], "none.json: no such file"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 2
    assert words in capsys.readouterr().err


def test_a_cut_log_is_refused_and_leaves_no_record(capsys: pytest.CaptureFixture[str]) -> None:
    Path("pod.log").write_bytes(Path("pod.log").read_bytes()[:-40])
    assert run(ASKED) == 6
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "error: the log is cut, or is no payload's" in captured.err
    assert not (state_dir() / "records").exists()
