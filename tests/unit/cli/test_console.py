import io
import json

import pytest

from envkit.cli import console
from envkit.cli.config import redacted


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("plain ümlaut\ttab\n", "plain ümlaut\ttab"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("\x1b]52;c;aGk=\x07", "\\x1b]52;c;aGk=\\x07"),
        ("abc\u202ecba", "abc\\x202ecba"),
        ("nul\x00byte", "nul\\x00byte"),
        ("::add-mask::secret", " ::add-mask::secret"),
        ("  ##vso[task.setvariable]x", "   ##vso[task.setvariable]x"),
    ],
)
def test_a_log_line_cannot_steer_the_terminal(raw: str, shown: str) -> None:
    assert console.printable(raw) == shown


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


def test_json_lines_are_one_object_each() -> None:
    stream = io.StringIO()
    reporter = console.JsonLines(stream)
    reporter.advance(1, None)
    reporter.log("\x1b[0m")
    assert [json.loads(line) for line in stream.getvalue().splitlines()] == [
        {"event": "progress", "done": 1, "total": None},
        {"event": "log", "line": "\\x1b[0m"},
    ]


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
