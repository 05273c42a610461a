from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from envkit.cli.main import run
from envkit.image.name import ImageName
from envkit.run import runners
from tests.support.judging import Replay, document, inspected, plan, printed
from tests.support.launches import NOISY, record, timed

MADE = plan(cuda=None)
VALUES = [2.0, 2.02, 1.98, 2.01, 1.99]


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)


def folder(name: str, values: list[float], **changed: Any) -> str:
    path = Path(name)
    path.mkdir()
    for place, value in enumerate(values):
        (path / f"{place}.json").write_text(json.dumps(record(value, **changed)))
    return name


def images(monkeypatch: pytest.MonkeyPatch, *, gate: str = "clean", **took: float) -> None:
    """A runner with images of these names, each launch of which takes so long."""

    def chosen(image: ImageName, name: str, reporter: Any, **options: Any) -> tuple[Replay, ImageName]:
        del name, reporter, options

        def answer(spec: dict[str, Any]) -> bytes:
            return printed(document(timed(took[image.typed], gate=gate), nonce=spec["nonce"]), spec["nonce"])

        return Replay(answer, image=inspected(MADE)), image

    monkeypatch.setattr(runners, "choose_for", chosen)


@pytest.mark.parametrize(
    ("factor", "code", "word"), [(1.0, 0, "SAME"), (1.3, 7, "REGRESSION"), (0.7, 0, "IMPROVEMENT")]
)
def test_folders_of_records(capsys: pytest.CaptureFixture[str], factor: float, code: int, word: str) -> None:
    folder("a", VALUES)
    folder("b", [factor * value for value in VALUES])
    assert run(["compare", "a", "b"]) == code
    out = capsys.readouterr().out
    assert out.splitlines()[0].split() == ["metric", "A", "B", "B", "/", "A", "interval", "p", "verdict"]
    assert "C14.bench.mlp.fp32@cpu" in out
    assert f"{factor:.3f}" in out
    assert "(96.8%)" in out
    assert "5 and 5 launches" in out
    assert "can reach: 0.0079 (Holm); required: 0.05" in out
    assert out.splitlines()[-1] == f"{word}  exit code {code}"


def test_single_records_are_too_few_and_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    folder("a", VALUES[:1])
    folder("b", VALUES[:1])
    assert run(["compare", "a/0.json", "b/0.json"]) == 5
    assert "1 and 1 launches are usable, 5 per side are needed" in capsys.readouterr().out


def test_other_machines_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    folder("a", VALUES)
    folder("b", VALUES, host={"cpu_model": "Other CPU"})
    assert run(["compare", "a", "b"]) == 2
    err = capsys.readouterr().err
    assert "cannot be compared: different machines: processor Test CPU vs Other CPU" in err
    assert "hint: compare records of one machine" in err


def test_a_folder_without_records_is_no_image(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "none").mkdir()
    assert run(["compare", str(tmp_path / "none"), "./none"]) == 2
    assert "none: no record (*.json) in this folder" in capsys.readouterr().err


def test_an_image_and_records_do_not_mix(capsys: pytest.CaptureFixture[str]) -> None:
    folder("a", VALUES)
    assert run(["compare", "a", "img"]) == 2
    assert "do not alternate" in capsys.readouterr().err


@pytest.mark.parametrize(("slow", "code"), [(2.0, 0), (3.0, 7)])
def test_images_are_launched_in_turns_and_kept(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], slow: float, code: int
) -> None:
    images(monkeypatch, old=2.0, new=slow)
    Path("old").mkdir()  # a folder that only shares the name
    command = ["compare", "old", "new", "--only", "c14", "--keep", "kept", "-o", "out.json", "--progress", "quiet"]
    assert run(command) == code
    tree = json.loads(Path("out.json").read_bytes())
    assert (tree["schema"], tree["exit_code"], tree["interleaved"], tree["seed"]) == ("envkit.compare/1", code, True, 0)
    assert [tree["first"]["name"], tree["second"]["name"]] == ["old", "new"]
    assert len(list(Path("kept/a").glob("*.json"))) == len(list(Path("kept/b").glob("*.json"))) == 5
    capsys.readouterr()
    assert run(["compare", "kept/a", "kept/b"]) == code
    assert run(command) == 2
    assert "kept contains records of another comparison" in capsys.readouterr().err


def test_a_busy_machine_is_launched_twice_as_often(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    images(monkeypatch, gate=NOISY, old=2.0, new=3.0)
    assert run(["compare", "old", "new", "--launches", "6", "--progress", "quiet", "--only", "C14"]) == 7
    out = capsys.readouterr().out
    assert "12 and 12 launches" in out
    assert "note: the machine was busy: only the quieter launches count, at least 6 per side" in out


def test_json_to_stdout_is_data_and_the_table_is_talk(capsys: pytest.CaptureFixture[str]) -> None:
    folder("a", VALUES)
    folder("b", VALUES)
    assert run(["compare", "a", "b", "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["verdict"] == "SAME"
    assert "C14.bench.mlp.fp32@cpu" in captured.err


def test_fewer_than_five_launches_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["compare", "a", "b", "--launches", "4"]) == 2
    assert "4 is not in the range x>=5" in capsys.readouterr().err


def test_the_page_has_the_same_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder("a", VALUES)
    folder("b", [1.3 * value for value in VALUES])
    assert run(["compare", "a", "b", "--report", "html=page.html"]) == 7
    assert "REGRESSION" in capsys.readouterr().out
    assert "<title>REGRESSION: a and b</title>" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize("typed", ["md=a.md", "html=", "html", "html=-", "html=."])
def test_a_report_that_is_no_page_is_refused_before_anything_runs(
    typed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["compare", "no", "images", "--report", typed]) == 2
    err = capsys.readouterr().err
    assert f"--report {typed!r}" in err
    assert "\nhint: --report html=" in err
