from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from envkit.checks.catalog import catalog
from envkit.cli.main import run
from envkit.ground.paths import state_dir
from envkit.ground.state import LastBuilt, write_last
from envkit.plan.store import store_plan
from envkit.run import runners
from tests.support.judging import Replay, document, inspected, observation, plan, printed

CPU, GPU = plan(cuda=None), plan()


def answer(spec: dict[str, Any]) -> bytes:
    checks = [observation(entry.id, "host", "skip") for entry in catalog()]
    return printed(document(*checks, nonce=spec["nonce"]), spec["nonce"])


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> Replay:
    replay = Replay(answer, image=inspected(CPU))
    monkeypatch.setattr(runners, "choose", lambda *_args, **_options: replay)
    return replay


def built(made: Any) -> None:
    store_plan(state_dir(), made)
    last = LastBuilt(
        image="sha256:" + "c" * 64, tags=(), plan=made.digest, engine="docker", built="2026-01-01T00:00:00Z"
    )
    write_last(state_dir(), last)


def test_without_image_the_one_built_last_is_verified(runner: Replay, capsys: pytest.CaptureFixture[str]) -> None:
    built(CPU)
    assert run(["verify", "--progress", "quiet"]) == 6
    out = capsys.readouterr().out
    assert out.startswith("ERROR  train: ")
    assert "image     sha256:cccc" in out
    assert runner.spec["plan"] == CPU.digest
    kept = Path(out.rstrip().rsplit("record: ", 1)[1])
    assert json.loads(kept.read_bytes())["summary"]["exit_code"] == 6


def test_nothing_built_yet_is_told(runner: Replay, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify"]) == 2
    assert "no image was built here yet" in capsys.readouterr().err
    assert runner.argv == ()


def test_the_kept_plan_is_found_by_the_images_label(runner: Replay) -> None:
    store_plan(state_dir(), CPU)
    run(["verify", "img", "--progress", "quiet"])
    assert runner.spec["plan"] == CPU.digest
    assert runner.spec["loader"] is not None


def test_a_given_plan_comes_before_every_other(runner: Replay, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(GPU.canonical())
    assert run(["verify", "img", "--plan", str(path), "--progress", "quiet"]) == 6
    assert runner.spec["cuda"] == "12.6"


def test_json_to_stdout_is_data_and_the_report_is_talk(runner: Replay, capsys: pytest.CaptureFixture[str]) -> None:
    assert runner.name == "replay"
    code = run(["verify", "img", "--json", "--progress", "quiet"])
    captured = capsys.readouterr()
    tree = json.loads(captured.out)
    assert (tree["schema"], tree["summary"]["exit_code"]) == ("envkit.verify/1", code)
    assert "Exit code" in captured.err


def test_json_to_a_file_holds_the_exit_code(runner: Replay, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert runner.name == "replay"
    path = tmp_path / "out" / "record.json"
    code = run(["verify", "img", "-o", str(path), "--progress", "quiet"])
    assert json.loads(path.read_bytes())["summary"]["exit_code"] == code
    assert f"record: {path}" in capsys.readouterr().out


def test_a_record_that_cannot_be_written_is_an_error_after_the_report(
    runner: Replay, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert runner.name == "replay"
    (tmp_path / "file").write_text("x")
    assert run(["verify", "img", "-o", str(tmp_path / "file" / "r.json"), "--progress", "quiet"]) == 9
    captured = capsys.readouterr()
    assert "Exit code 6." in captured.out
    assert captured.err.startswith(f"error: -o {tmp_path}/file/r.json: ")


@pytest.mark.requirement("R58")
def test_a_state_folder_that_cannot_be_written_is_no_obstacle(
    runner: Replay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert runner.name == "replay"
    (tmp_path / "blocked").write_text("x")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "blocked"))
    assert run(["verify", "img", "--progress", "quiet"]) == 6
    assert "record:" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--allow-cpu", "--require-gpu"], "contradict"),
        (["--only", "C98"], "unknown check C98"),
        (["--timeout", "0"], "--timeout"),
        (["--tier", "fast"], "--tier"),
        (["--plan", "none.json"], "none.json"),
    ],
)
def test_a_wrong_command_line_is_exit_2(
    runner: Replay, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["verify", "img", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert runner.argv == ()


def test_a_wrong_check_is_told_before_anything_is_looked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", "--skip", "C98"]) == 2  # nothing was built yet
    assert "unknown check C98" in capsys.readouterr().err


def test_ids_may_be_joined_and_written_small(runner: Replay) -> None:
    run(["verify", "img", "--only", "c00,C01", "--progress", "quiet"])
    assert runner.argv[-2:] == ("--only", "C00,C01")


def test_list_names_the_checks_and_runs_nothing(runner: Replay, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len([entry for entry in catalog() if entry.tier == "quick"])
    assert lines[0].startswith("C00  quick     host   ")
    assert runner.argv == ()


def test_the_plans_own_tier_is_the_default(runner: Replay) -> None:
    built(CPU)
    run(["verify", "--progress", "quiet"])
    assert runner.argv[runner.argv.index("--tier") + 1] == CPU.smoke.tier


def test_several_images_give_one_table(
    runner: Replay, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(runners, "choose_for", lambda image, *_args, **_options: (runner, image))
    store_plan(state_dir(), CPU)
    assert run(["verify", "a", "b", "a", "-o", "matrix.json", "--progress", "quiet"]) == 6
    out = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in out[1:3]] == [["a", "ERROR"], ["b", "ERROR"]]
    assert out[-1].startswith("exit code 6; records: ")
    tree = json.loads(Path("matrix.json").read_bytes())
    assert [one["image"] for one in tree["proofs"]] == ["a", "b"]
    assert all(json.loads(Path(one["kept"]).read_bytes()) == one["record"] for one in tree["proofs"])


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["a", "b", "--plan", "plan.json"], "--plan is for one image on one machine"),
        (["a", "b", "--report", "md=x"], "--report md is for one image on one machine"),
        (["a", "b", "--self-test"], "--self-test is for one image on one machine"),
        (["a", "--workers", "all"], "--workers needs --scheduler"),
        (["a", "--scheduler", "here"], "--scheduler 'here' is not tcp://HOST:PORT or tls://HOST:PORT"),
        (["--scheduler", "tcp://h:1"], "--scheduler needs the names of images"),
        (["oci:out", "--scheduler", "tcp://h:1"], "'oci:out' is not in a registry"),
    ],
)
def test_what_many_images_cannot_have(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", *argv]) == 2
    assert f"error: {message}" in capsys.readouterr().err


def test_a_matrix_may_be_stdouts_data(
    runner: Replay, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(runners, "choose_for", lambda image, *_args, **_options: (runner, image))
    assert run(["verify", "a", "b", "--json", "--progress", "quiet"]) != 0
    told = capsys.readouterr()
    assert json.loads(told.out)["schema"] == "envkit.fleet-verify/1"
    assert told.err.startswith("image ")


def test_a_folder_that_is_not_there_is_one_error_before_anything_runs(
    runner: Replay, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(runner, "inspect", asked.append)
    assert run(["verify", "img", "--data", "absent", "--progress", "quiet"]) == 2
    assert capsys.readouterr().err.startswith("error: --data: 'absent' does not exist\n")
    assert (asked, runner.argv) == ([], ())


def test_the_users_data_and_dataset_reach_the_run(runner: Replay, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    run(["verify", "img", "--data", "data", "--dataset", "package:make", "--progress", "quiet"])
    assert runner.limits.data == tmp_path / "data"
    assert runner.spec["data"]["dataset"] == "package:make"


@pytest.mark.parametrize("option", [["--data", "."], ["--dataset", "a:b"]])
def test_data_are_for_one_image_on_this_machine(option: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", "one", "two", *option]) == 2
    assert f"{option[0]} is for one image on one machine" in capsys.readouterr().err
    assert run(["verify", "one", "--self-test", *option]) == 2
    assert "--self-test compares timings and does not read data" in capsys.readouterr().err
