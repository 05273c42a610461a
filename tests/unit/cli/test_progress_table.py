"""What is drawn of many builds at once."""

import io
import json

import pytest
from rich.console import Console

from envkit.cli import progress_table
from tests.unit.fleet.samples import outcome

EVENTS = [
    ("a", "step", ("begin",)),
    ("b", "step", ("download 3 wheels (9 MB)\x1b[2J",)),
    ("b", "advance", (2 << 20, 9 << 20)),
    ("b", "note", ("pushed",)),
    ("a", "note", ("pushed",)),  # what all of them say is told once
]


def fed(drawn: progress_table.ProgressTable) -> None:
    for event in EVENTS:
        drawn.heard(event)
    drawn.ended(outcome("a", place="oci:a"))
    drawn.ended(outcome("b", "failed", 8, error="refused"))
    drawn.heard(("b", "step", ("too late",)))
    drawn.note("2 builds at once")
    drawn.close()


def test_lines_begin_with_the_image(capsys: pytest.CaptureFixture[str]) -> None:
    fed(progress_table.progress_table("plain", ["a", "b"]))
    assert capsys.readouterr().err.splitlines() == [
        "a: begin",
        "b: download 3 wheels (9 MB)",
        "b: note: pushed",
        "a: built after 1.5 s: oci:a",
        "b: failed after 1.5 s: refused",
        "note: 2 builds at once",
    ]


def test_events_are_objects_with_the_image(capsys: pytest.CaptureFixture[str]) -> None:
    fed(progress_table.progress_table("json", ["a", "b"]))
    rows = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert rows[0] == {"event": "step", "image": "a", "text": "begin"}
    assert rows[2] == {"event": "progress", "image": "b", "done": 2 << 20, "total": 9 << 20}
    assert rows[4] == {"event": "end", "image": "a", "status": "built", "exit_code": 0}
    assert rows[6] == {"event": "note", "image": None, "text": "2 builds at once"}
    assert len(rows) == 7


def test_quiet_is_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    fed(progress_table.progress_table("quiet", ["a", "b"]))
    assert capsys.readouterr() == ("", "")


def test_the_table_shows_all_images_with_their_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    drawn = progress_table.LiveTable(["a", "b", "c"], clock=lambda: 7.0)
    drawn.live.stop()
    for event in EVENTS:
        drawn.heard(event)
    drawn.ended(outcome("a"))
    screen = Console(file=io.StringIO(), width=100)
    screen.print(drawn.table())
    assert isinstance(screen.file, io.StringIO)
    lines = [line.rstrip() for line in screen.file.getvalue().splitlines()]
    assert lines[0].split() == ["image", "state", "s", "what"]
    assert lines[1].split() == ["a", "built", "2", "begin"]
    assert lines[2].split() == [
        "b",
        "at",
        "work",
        "0",
        "download",
        "3",
        "wheels",
        "(9",
        "MB)",
        "2",
        "of",
        "9",
        "MB",
    ]
    assert lines[3].split() == ["c", "waiting"]
    assert lines[4] == "1 of 3 done"


def test_a_long_table_shows_those_at_work_and_those_that_failed() -> None:
    drawn = progress_table.LiveTable([f"i{number}" for number in range(40)])
    drawn.live.stop()
    drawn.heard(("i7", "step", ("begin",)))
    drawn.ended(outcome("i8", "failed", 8))
    drawn.ended(outcome("i9"))
    assert [name for name, _ in drawn.shown()] == ["i7", "i8"]


def test_a_terminal_gets_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    drawn = progress_table.progress_table("auto", ["a"])
    drawn.close()
    assert isinstance(drawn, progress_table.LiveTable)
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(progress_table.progress_table("auto", ["a"]), progress_table.Lines)


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True
