import io
import json

import pytest

from envkit.cli import console
from envkit.cli.config import redacted


@pytest.mark.requirement("R36")
@pytest.mark.parametrize("marker", ["##[add-mask]x", "##vso[task.setvariable a=b]c", "\x1b[2J", "::stop-commands::x"])
def test_a_log_line_steers_neither_the_terminal_nor_ci(marker: str) -> None:
    stream = io.StringIO()
    for reporter in (console.Plain(stream), console.JsonLines(stream)):
        for say in (reporter.log, reporter.note, reporter.step):
            say(f"a {marker}")
            say(marker)
    assert marker not in stream.getvalue()


def test_plain_lines_carry_step_log_and_note() -> None:
    stream = io.StringIO()
    reporter = console.Plain(stream)
    reporter.step("build")
    reporter.log("Step 1/2")
    reporter.advance(1, 2)
    reporter.note("no registry answers")
    step, log, note = stream.getvalue().splitlines()
    assert step.endswith("s] build")
    assert (log, note) == ("  | Step 1/2", "note: no registry answers")


def test_plain_lines_tell_of_bytes_now_and_then() -> None:
    stream, now = io.StringIO(), [100.0]
    reporter = console.Plain(stream, lambda: now[0])
    reporter.step("download")
    for second in range(25):
        now[0] = 100.0 + second
        reporter.advance(second * 200_000_000, 5_000_000_000)
        reporter.advance(second, 25)
    assert stream.getvalue().splitlines() == [
        "[   0.0s] download",
        "[  10.0s]   2000 of 5000 MB, 200 MB/s",
        "[  20.0s]   4000 of 5000 MB, 200 MB/s",
    ]


@pytest.mark.parametrize(
    ("done", "total", "rate", "said"),
    [
        (3, 40, 1.0, "3/40"),
        (3, None, None, "3"),
        (1_500_000, None, 2_000_000.0, "2 MB, 2 MB/s"),
        (0, 3_027_000_000, None, "0 of 3027 MB"),
    ],
)
def test_an_amount_is_told_in_its_own_unit(done: int, total: int | None, rate: float | None, said: str) -> None:
    assert console.amount(done, total, rate) == said


def test_the_bar_tells_bytes_and_rate(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("TERM", "xterm")
    bar = console.Bar(verbose=False)
    bar.step("download")
    bar.advance(1_000_000_000, 3_000_000_000)
    column = bar._progress.columns[3]
    assert not isinstance(column, str)
    shown = column(bar._progress.tasks[0])
    bar.close()
    assert "1000 of 3000 MB" in str(shown)
    assert "download (" in capsys.readouterr().err


def test_json_lines_are_one_object_each() -> None:
    stream = io.StringIO()
    reporter = console.JsonLines(stream)
    reporter.advance(1, None)
    reporter.log("\x07")
    assert [json.loads(line) for line in stream.getvalue().splitlines()] == [
        {"event": "progress", "done": 1, "total": None},
        {"event": "log", "line": "\\x07"},
    ]


@pytest.mark.requirement("R58")
def test_a_closed_stream_does_not_stop_the_work() -> None:
    stream = io.StringIO()
    stream.close()
    console.Plain(stream).step("build")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://user:secret@mirror.example:8443/simple", "https://***@mirror.example:8443/simple"),
        ("https://mirror.example/a@b", "https://mirror.example/a@b"),
        ("auto", "auto"),
        (None, None),
    ],
)
def test_config_never_shows_credentials(url: str | None, shown: str | None) -> None:
    assert redacted(url) == shown


@pytest.mark.parametrize(
    ("term", "no_color", "colored"),
    [("xterm", None, True), ("xterm", "", True), ("xterm", "1", False), ("dumb", None, False)],
)
def test_color_is_for_terminals_that_know_it(
    term: str, no_color: str | None, colored: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout", io.StringIO())
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", term)
    monkeypatch.delenv("NO_COLOR", raising=False)
    if no_color is not None:
        monkeypatch.setenv("NO_COLOR", no_color)
    assert console.color() is colored


def test_a_long_log_line_leaves_the_bar_on_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    bar = console.Bar(verbose=False)
    bar.step("download 28 wheels (3027 MB)")
    bar.advance(2_800_000_000, 3_027_000_000)
    bar.log("I: running [red]a hook[/red] in a shell that has a very long command line of many, many words")
    with bar._console.capture() as shown:
        bar._console.print(bar._progress.get_renderable())
    bar.close()
    (line,) = shown.get().rstrip("\n").split("\n")
    assert "2800 of 3027 MB" in line
    assert "I: run" in line
    assert line.rstrip().endswith("\u2026")


def test_notes_are_folded_to_the_terminal_and_commands_are_not(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = "  envkit run --volume data:/data --port 8888 oci:image -- python train.py"
    note = "note: the lock names 3 packages that are not in the image: a, b, c"
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "40")
    console.tell(note)
    console.tell(command)
    assert capsys.readouterr().err.splitlines() == [
        "note: the lock names 3 packages that are",
        "    not in the image: a, b, c",
        command,
    ]
    monkeypatch.setattr("sys.stderr.isatty", lambda: False, raising=False)
    console.tell(note)
    assert capsys.readouterr().err == f"{note}\n"  # a log keeps one line for each event
