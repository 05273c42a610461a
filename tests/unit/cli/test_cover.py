"""`envkit cover`: inventories on stdin and in files, the table, the documents and the exit codes."""

import io
import json
import sys
from pathlib import Path

import pytest

from envkit.cli import main

HOSTS = "name,gpu,driver,count\nold,V100,580.65.06,8\nnew,B200,580.65.06,4\n"


@pytest.fixture(autouse=True)
def no_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ENVKIT_FACTS", raising=False)


def run(arguments: list[str], capsys: pytest.CaptureFixture[str], text: str = HOSTS) -> tuple[int, str, str]:
    Path("hosts").write_text(text)
    code = main.run(["cover", "--hosts", "hosts", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_images_machines_reasons_and_savings(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(["--torch", "2.11"], capsys)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "2 images serve 12 of 12 machines (2 kinds, read as csv)"
    assert lines[2].split() == ["image", "torch", "CUDA", "Python", "source", "driver", "GPUs", "machines"]
    assert "torch2.11.0-cu126 serves" in lines
    assert "  V100 (sm_70), driver 580.65.06  native  8  old" in lines
    assert "  forced by V100 (sm_70), driver 580.65.06 (old)" in lines
    assert "    torch 2.11.0 for CUDA 12.8 and 13.0: no code for V100 (sm_70)" in lines
    assert "  without new (B200 (sm_100), driver 580.65.06): 1 image would be enough" in lines


def test_json_has_a_schema(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(["--json", "--torch", "2.11"], capsys)
    tree = json.loads(out)
    assert code == 0
    assert tree["schema"] == "envkit.cover/1"
    assert [image["resolution"]["cuda"] for image in tree["images"]] == ["12.6", "13.0"]


def test_stdin_and_what_flags_complete(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"n[1-2] gpu:big:8 x\nn3 gpu:4 y\n")))
    code = main.run(["cover", "--hosts", "-", "--driver", "550.54.15", "--gpu", "T4", "--alias", "big=A100"])
    out = capsys.readouterr().out
    assert code == 0
    assert "read as slurm" in out
    assert "A100 (sm_80), driver 550.54.15" in out
    assert "T4 (sm_75), driver 550.54.15" in out


def test_machines_that_nothing_runs_on_are_named_and_exit_3(capsys: pytest.CaptureFixture[str]) -> None:
    bad = HOSTS + "odd,K80,550.54.15,1\n"
    code, out, err = run([], capsys, bad)
    assert code == 3
    assert "no image runs on K80 (sm_37), driver 550.54.15 (odd)" in out
    assert err.startswith("error: no image runs on 1 of 3 kinds of machines: K80 (sm_37), driver 550.54.15 (odd)\n")
    assert "driver branch R470 is the last that supports K80 (sm_37); driver 550.54.15 is newer\n" in err
    assert run(["--skip-impossible"], capsys, bad)[0] == 0


def test_no_machine_can_be_served(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(["--torch", "2.15", "--cuda", "11.8"], capsys)
    assert code == 3
    assert out.startswith("0 images serve 0 of 12 machines")
    assert "hint: envkit resolve" in err


def test_the_matrix_is_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["--matrix", "fleet.yaml"], capsys)[0] == 0
    assert "schema: envkit.matrix/1" in (tmp_path / "fleet.yaml").read_text()
    code, _, err = run(["--matrix", "/proc/none/fleet.yaml"], capsys)
    assert (code, "--matrix /proc/none/fleet.yaml" in err) == (9, True)


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["--cpu"], "--cpu: a CPU image serves every machine of its platform", "envkit resolve --cpu"),
        (
            ["--allow-forward-compat"],
            "--allow-forward-compat: an image for it runs on the driver branch of one kind",
            "--gpu A100",
        ),
        (["--alias", "big"], "--alias 'big' is not NAME=GPU", "--alias big=A100"),
        (["--alias", "big=Zorg"], "--alias: unknown GPU 'Zorg'", "compute capability"),
        (["--torch", "2,7"], "--torch: '2,7' is not a version", "write an exact version"),
        (["--driver", "abc"], "hosts, line 2: host 'a': 'abc' is not a driver version", "550.54.15"),
    ],
)
def test_faults_of_usage(arguments: list[str], message: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(arguments, capsys, "name,gpu\na,T4\n")
    assert code == 2
    assert message in err
    assert hint in err


def test_a_file_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["cover", "--hosts", "nowhere"]) == 2
    assert "error: --hosts nowhere: No such file or directory" in capsys.readouterr().err


@pytest.mark.parametrize("columns", [80, 40])
def test_the_answer_is_folded_to_the_terminal(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = run(["--torch", "2.11", "--skip-impossible"], capsys, HOSTS + "odd,K80,550.54.15,1\n")[1]
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", str(columns))
    _, out, _ = run(["--torch", "2.11", "--skip-impossible"], capsys, HOSTS + "odd,K80,550.54.15,1\n")
    assert max(len(line) for line in plain.splitlines()) > columns
    assert max(len(line) for line in out.splitlines()) <= columns
    assert "no code for V100 (sm_70)" in " ".join(out.split())
