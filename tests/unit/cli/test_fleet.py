"""What `envkit build` says of several images before any engine is asked, and how it shows what became of them."""

import json
from pathlib import Path
from typing import Any

import pytest

from envkit.cli import fleet
from envkit.cli.fleet import Asked, chosen
from envkit.cli.fleet_report import publish
from envkit.cli.main import run
from envkit.fleet import work
from envkit.fleet.cells import Expanded
from envkit.fleet.locks import Locks
from envkit.ground.errors import EngineError, InterruptedRun, SurroundingsError
from tests.unit.fleet.samples import IMPOSSIBLE, cell, outcome, task

MATRIX = """schema: envkit.matrix/1
image: cpu
axes: {python: ["3.11"], torch: ["2.7.*", "1.0.*"]}
"""


def asked(**more: Any) -> Asked:
    row: dict[str, Any] = dict.fromkeys(fleet.FLAGS) | {"definitions": (), "every": False}
    return Asked(**row | {"resume": False, "skip_impossible": False} | more)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, in which the command runs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("typed", "message", "hint"),
    [
        (["cpu", "--all"], "names and --all each say which images to build", "give one of them"),
        (["--all", "--matrix", "m.yaml"], "--all and --matrix each say which images to build", "give one of them"),
        (["--jobs", "2"], "--jobs is for several images", "envkit build a b c, --all, or --matrix FILE"),
        (["cpu", "--resume"], "--resume is for several images", "envkit build a b c, --all, or --matrix FILE"),
        (
            ["--skip-impossible"],
            "--skip-impossible is for several images",
            "envkit build a b c, --all, or --matrix FILE",
        ),
        (["cpu", "devel", "-t", "a:1"], "-t is for one image", "--output registry:HOST/NAME gives each image a tag"),
        (["cpu", "devel", "--plan", "p"], "--plan is for one image", "several are named by their definitions"),
        (["cpu", "devel", "--locked", "l"], "--locked is for one image", "leave it out: every image's lock is solved"),
        (["cpu", "devel", "--report", "junit=j"], "--report is for one image", "-o FILE tells of all of them"),
        (["cpu", "devel", "--push"], "--push is for one image", "--output registry:HOST/NAME sends each of them there"),
        (["cpu", "devel", "--offline"], "--offline is for one image", "envkit lock, then envkit build --locked FILE"),
        (
            ["cpu", "devel", "--output", "registry:h.example/a:1"],
            "--output 'registry:h.example/a:1' names a tag",
            "--o",
        ),
        (["cpu", "cqu"], "unknown image definition 'cqu'", "use one of "),
        (["--matrix", "none.yaml"], "none.yaml", ""),
        (["cpu", "devel", "--engine", "kaniko"], "--engine 'kaniko' is not one of auto, docker", "--engine auto"),
    ],
)
def test_what_is_refused(
    typed: list[str], message: str, hint: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    del folder
    assert run(["build", "--progress", "quiet", *typed]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"error: {message}")
    assert f"\nhint: {hint}" in err


def test_impossible_cells_stop_everything_before_it_begins(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.yaml").write_text(MATRIX)
    assert run(["build", "--matrix", "m.yaml"]) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith('error: cpu-python3.11-torch1.0 is impossible: no build matches --torch "1.0.*": because ')
    assert "\nhint: --skip-impossible builds the other 1\n" in err
    (tmp_path / "m.yaml").write_text(MATRIX.replace('"2.7.*", ', ""))
    assert run(["build", "--matrix", "m.yaml", "--skip-impossible"]) == 3
    assert "\nhint: envkit resolve " in capsys.readouterr().err


def test_which_images_are_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert chosen(asked(definitions=("cpu", "devel", "cpu"))).images == ("cpu", "devel")
    found = chosen(asked(every=True))
    assert found.where == "the images that come with envkit"
    assert {"cpu", "default", "devel"} <= set(found.images)
    (tmp_path / "images").mkdir()
    for name in ("b.yaml", "a.yml", "notes.txt"):
        (tmp_path / "images" / name).touch()
    found = chosen(asked(every=True))
    assert (found.where, found.images) == ("./images", ("images/a.yml", "images/b.yaml"))


def test_only_several_images_are_several() -> None:
    assert not asked().several
    assert not asked(definitions=("a",), jobs=2).several
    assert asked(definitions=("a", "b")).several
    assert asked(every=True).several
    assert asked(matrix=Path("m")).several
    assert asked(definitions=("a",), scheduler="tcp://h:1").several
    assert fleet.check(asked(definitions=("a",))) == "a"
    assert fleet.check(asked()) is None


def test_tasks_get_their_locks_and_what_cannot_be_locked_is_an_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Locks, plan: object, base: str) -> None:
        del self, plan, base
        raise EngineError("there is no image nothing:1", hint="check the image name and tag")

    monkeypatch.setattr(Locks, "of", refuse)
    rows = [(cell("a"), task("a")), (cell("b"), task("b"))]
    done = {"a": outcome("a", "present")}
    locks = Locks.__new__(Locks)
    first, second = fleet._tasks(rows, done, locks)
    assert first is done["a"]
    assert (second.name, getattr(second, "status", None)) == ("b", work.FAILED)
    assert list(fleet._tasks(rows, {}, None)) == [task("a"), task("b")]


def test_the_end_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cells = (cell("a"), cell("b"))
    found = Expanded(cells=cells, impossible=(IMPOSSIBLE,))
    outcomes = [
        outcome("b", "failed", 8, error="refused\x1b[2J", hint="log in", details=("401",), log="/log"),
        outcome("a", place="oci:out/a"),
    ]
    publish(found, outcomes, "m.yaml", str(tmp_path / "out.json"), began=0.0, jobs=2, skip=True)
    out, err = capsys.readouterr()
    assert [line.split()[:2] for line in out.splitlines()] == [
        ["image", "outcome"],
        ["a", "built"],
        ["b", "failed"],
        ["train-torch1.0", "impossible"],
    ]
    assert "1 built, 1 failed; 1 impossible, in " in err
    assert "\nb: refused\n  401\n  log: /log\n  hint: log in\n" in err
    assert json.loads((tmp_path / "out.json").read_text())["exit_code"] == 8
    publish(found, outcomes, "m.yaml", "-", began=0.0, jobs=None, skip=False)
    out, err = capsys.readouterr()
    assert json.loads(out)["jobs"] is None
    assert err.startswith("image")
    with pytest.raises(SurroundingsError, match=r"-o .*: .*; the images are built"):
        publish(found, outcomes, "m.yaml", str(tmp_path / "out.json" / "x"), began=0.0, jobs=2, skip=True)


def test_an_interruption_says_how_to_go_on() -> None:
    error = InterruptedRun(2)
    fleet._tell_interrupted(error, 3, 8)
    assert (error.details, error.hint) == (("3 of 8 images are done",), "the same command with --resume goes on")
    tasks, done = [task("a"), task("b")], [outcome("a")]
    for ended, code in ((error, 130), (SurroundingsError("the cluster is gone"), 9), (KeyboardInterrupt(), 130)):
        (stopped,) = fleet._stopped(tasks, done, ended)
        assert (stopped.name, stopped.status, stopped.exit_code) == ("b", work.STOPPED, code)
