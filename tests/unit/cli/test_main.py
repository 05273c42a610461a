import errno
import re
import signal

import click
import pytest

from envkit.cli import main
from envkit.ground import signals
from envkit.ground.errors import InterruptedRun, UsageError


def run(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = main.run(arguments)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_help_lists_every_verb_in_the_order_of_the_work(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(["--help"], capsys)
    assert code == 0
    places = [out.index(f"\n  {verb} ") for verb in main.COMMANDS]
    assert places == sorted(places)


@pytest.mark.parametrize("verb", list(main.COMMANDS))
def test_every_verb_has_help(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run([verb, "--help"], capsys)
    assert code == 0
    assert f"envkit {verb}" in out


def test_an_unknown_verb_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(["bulid"], capsys)
    assert (code, out) == (2, "")
    assert "error: unknown command 'bulid'; did you mean `envkit build`?" in err


def test_an_unknown_flag_points_at_the_help_of_its_verb(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(["config", "--jsn"], capsys)
    assert code == 2
    assert "hint: envkit config --help" in err


@pytest.mark.parametrize(
    ("arguments", "where"),
    [(["resolve", "--cuda"], "envkit resolve"), (["matrix", "list", "--torch"], "envkit matrix")],
)
def test_a_flag_without_its_value_points_at_the_help_of_its_verb(
    arguments: list[str], where: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(arguments, capsys)
    assert code == 2
    assert err.startswith("error: option '--")
    assert "requires an argument\n" in err
    assert f"hint: {where} --help" in err


@pytest.mark.parametrize("arguments", [[], ["matrix"]])
def test_without_a_verb_the_help_is_shown_and_is_no_error(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(arguments, capsys)
    assert (code, out) == (2, "")
    assert err.startswith("Usage: envkit")
    assert "error:" not in err
    assert "hint:" not in err


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (
            UsageError("bad thing", hint="do this", details=("second",)),
            2,
            "error: bad thing\n  second\n\nhint: do this\n",
        ),
        (InterruptedRun(15), 143, "error: ended by SIGTERM\n"),
        (click.Abort(), 130, "error: ended by SIGINT\n"),
        (
            OSError(errno.ENOSPC, "No space left on device", "/out/plan.json"),
            9,
            (
                "error: No space left on device: /out/plan.json\n\n"
                "hint: check the path, its permissions and the free disk space\n"
            ),
        ),
        (RecursionError(), 2, "error: the input is nested too deeply\n"),
        (MemoryError(), 9, "error: not enough memory for this input\n\nhint: free -m, ulimit -v\n"),
    ],
)
def test_every_failure_is_a_message_and_a_code(
    error: Exception, code: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main._explain(error) == code
    assert capsys.readouterr().err == text


@pytest.mark.requirement("R29")
@pytest.mark.parametrize("swallowed", [True, False], ids=["swallowed", "turned into another error"])
def test_a_signal_ends_the_run_whatever_became_of_its_exception(
    swallowed: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(**_: object) -> int:
        try:
            signal.raise_signal(signal.SIGTERM)
        except InterruptedRun as error:
            if not swallowed:
                raise RuntimeError("Error calling __set_name__") from error
        return 0

    monkeypatch.setattr(main.envkit, "main", work)
    before = [signal.getsignal(number) for number in signals.ENDING]
    try:
        assert main.run([]) == 143
    finally:
        for number, handler in zip(signals.ENDING, before, strict=True):
            signal.signal(number, handler)
    assert capsys.readouterr().err == "error: ended by SIGTERM\n"


def test_a_current_folder_that_was_deleted_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def gone() -> str:
        raise FileNotFoundError(errno.ENOENT, "No such file or directory")

    missing = FileNotFoundError(errno.ENOENT, "No such file or directory", "/x")
    assert main._explain(missing) == 9
    assert capsys.readouterr().err.startswith("error: No such file or directory: /x\n")
    monkeypatch.setattr("os.getcwd", gone)
    assert main._explain(FileNotFoundError(errno.ENOENT, "No such file or directory")) == 9
    assert capsys.readouterr().err == "error: the current folder was deleted\n\nhint: cd to a folder that exists\n"


def test_a_bug_shows_its_traceback_and_exits_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main._explain(ZeroDivisionError("division by zero")) == 1
    err = capsys.readouterr().err
    assert "this is a bug in envkit" in err
    assert "ZeroDivisionError: division by zero" in err


def test_foreign_words_in_an_error_steer_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    error = UsageError("a\x1b[2J\x1b[Hb\x9bc", hint="d\u202ee", details=("f\x1b]0;title\x07g", "h\nover two lines"))
    assert main._explain(error) == 2
    assert capsys.readouterr().err == ("error: ab\\x9bc\n  fg\n  h\nover two lines\n\nhint: d\\x202ee\n")


def test_errors_have_color_on_a_terminal_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert main.run(["resolve", "--torch", "99"]) == 3
    plain = capsys.readouterr().err
    assert "\x1b" not in plain
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    assert main.run(["resolve", "--torch", "99"]) == 3
    colored = capsys.readouterr().err
    assert colored.startswith("\x1b[31m\x1b[1merror:\x1b[0m no build matches")
    assert re.sub(r"\x1b\[[0-9;]*m", "", colored) == plain
