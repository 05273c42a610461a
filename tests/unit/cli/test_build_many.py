"""What `envkit build` says of several images before any engine is asked, and how it shows what became of them."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from envkit.cli.build import named_images, publish_several
from envkit.cli.main import run
from envkit.cli.progress_table import ProgressTable
from envkit.cli.record_output import ReportTarget
from envkit.engines.model import BuildOptions
from envkit.fleet import build_task
from envkit.fleet.expand import Expanded
from envkit.fleet.run import FleetRequest, FleetRun, explain_interruption, stopped, with_locks
from envkit.ground.errors import EngineError, EnvironmentProblem, InterruptedRun
from envkit.ground.settings import Settings
from envkit.pipeline.locking import Locks
from tests.support.flags import build_flags
from tests.unit.fleet.samples import IMPOSSIBLE, cell, outcome, task

MATRIX = """schema: envkit.matrix/1
image: cpu
axes: {python: ["3.11"], torch: ["2.7.*", "1.0.*"]}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, in which the command runs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("typed", "message", "hint"),
    [
        (["cpu", "--all"], "names and --all each select the images to build", "give one of them"),
        (["--all", "--matrix", "m.yaml"], "--all and --matrix each select the images to build", "give one of them"),
        (["--jobs", "2"], "--jobs is for several images", "envkit build a b c, --all, or --matrix FILE"),
        (["cpu", "--resume"], "--resume is for several images", "envkit build a b c, --all, or --matrix FILE"),
        (
            ["--skip-impossible"],
            "--skip-impossible is for several images",
            "envkit build a b c, --all, or --matrix FILE",
        ),
        (
            ["cpu", "devel", "-t", "a:1"],
            "-t is for one image",
            "--output registry:HOST/NAME gives each image its own tag",
        ),
        (["cpu", "devel", "--plan", "p"], "--plan is for one image", "name several images by their definitions"),
        (["cpu", "devel", "--locked", "l"], "--locked is for one image", "leave it out: every image's lock is solved"),
        (["cpu", "devel", "--report", "junit=j"], "--report is for one image", "-o FILE and --report html=FILE cover"),
        (["cpu", "devel", "--push"], "--push is for one image", "--output registry:HOST/NAME pushes each image"),
        (
            ["cpu", "devel", "--offline"],
            "--offline is for one image",
            "for each image: envkit lock, then envkit build --locked FILE",
        ),
        (
            ["cpu", "devel", "--output", "registry:h.example/a:1"],
            "--output 'registry:h.example/a:1' names a tag",
            "--o",
        ),
        (["cpu", "cqu"], "unknown image definition 'cqu'", "did you mean cpu? use one of "),
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
    assert named_images(build_flags("cpu", "devel", "cpu")).images == ("cpu", "devel")
    found = named_images(build_flags("--all"))
    assert found.where == "the shipped images"
    assert {"cpu", "default", "devel"} <= set(found.images)
    (tmp_path / "images").mkdir()
    for name in ("b.yaml", "a.yml", "notes.txt"):
        (tmp_path / "images" / name).touch()
    found = named_images(build_flags("--all"))
    assert (found.where, found.images) == ("./images", ("images/a.yml", "images/b.yaml"))


def test_only_several_images_are_several() -> None:
    assert not build_flags().builds_several
    assert not build_flags("a", "--jobs", "2").builds_several
    for words in (("a", "b"), ("--all",), ("--matrix", "m"), ("a", "--scheduler", "tcp://h:1")):
        assert build_flags(*words).builds_several
    build_flags("a").check()
    assert build_flags("a").definition == "a"
    assert build_flags().definition is None


def test_tasks_get_their_locks_and_what_cannot_be_locked_is_an_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Locks, asked: object, base: str) -> None:
        del self, asked, base
        raise EngineError("there is no image nothing:1", hint="check the image name and tag")

    monkeypatch.setattr(Locks, "chosen", refuse)
    rows = [(cell("a"), task("a")), (cell("b"), task("b"))]
    done = {"a": outcome("a", "present")}
    locks = Locks.__new__(Locks)
    first, second = with_locks(rows, done, locks, {})
    assert first is done["a"]
    assert (second.name, getattr(second, "status", None)) == ("b", build_task.FAILED)
    assert list(with_locks(rows, {}, None, {})) == [task("a"), task("b")]


def test_the_end_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cells = (cell("a"), cell("b"))
    found = Expanded(cells=cells, impossible=(IMPOSSIBLE,))
    outcomes = [
        outcome("b", "failed", 8, error="refused\x1b[2J", hint="log in", details=("401",), log="/log"),
        outcome("a", place="oci:out/a"),
    ]
    request = FleetRequest(
        expanded=found, where="m.yaml", settings=Settings({}), options=BuildOptions(), engine="embedded"
    )
    ended = FleetRun(request=request, listener=ProgressTable(), outcomes=outcomes, jobs=2)
    publish_several(ended, str(tmp_path / "out.json"), seconds=1.0, skip=True)
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
    publish_several(ended, None, seconds=1.0, skip=True, pages=[ReportTarget("html", str(tmp_path / "page.html"))])
    assert "refused" in (tmp_path / "page.html").read_text()
    capsys.readouterr()
    publish_several(ended, None, seconds=1.0, skip=True, pages=[ReportTarget("html", "-")])
    out, err = capsys.readouterr()
    assert out.startswith("<!doctype html>")
    assert err.startswith("image")
    publish_several(replace(ended, jobs=None), "-", seconds=1.0, skip=False)
    out, err = capsys.readouterr()
    assert json.loads(out)["jobs"] is None
    assert err.startswith("image")
    with pytest.raises(EnvironmentProblem, match=r"-o .*: .*; the images were built"):
        publish_several(ended, str(tmp_path / "out.json" / "x"), seconds=1.0, skip=True)


def test_an_interruption_says_how_to_go_on() -> None:
    error = InterruptedRun(2)
    explain_interruption(error, 3, 8)
    assert (error.details, error.hint) == (
        ("3 of 8 images are done",),
        "run the same command with --resume to continue",
    )
    tasks, done = [task("a"), task("b")], [outcome("a")]
    for ended, code in ((error, 130), (EnvironmentProblem("the cluster is gone"), 9), (KeyboardInterrupt(), 130)):
        (left,) = stopped(tasks, done, ended)
        assert (left.name, left.status, left.exit_code) == ("b", build_task.STOPPED, code)
