"""Mistakes on the command line, and what is answered: the word that was meant, or where to look."""

import pytest

from envkit.cli.main import run


@pytest.mark.parametrize(
    ("typed", "message", "hint"),
    [
        ("build --cud 12.6", "unknown option '--cud'; did you mean --cuda?", "envkit build --help"),
        ("resolve --gpus A100", "unknown option '--gpus'; did you mean --gpu?", "envkit resolve --help"),
        ("resolve --cuda12.6", "unknown option '--cuda12.6'; did you mean --cuda 12.6?", "envkit resolve --help"),
        ("config --jsn", "unknown option '--jsn'; did you mean --json?", "envkit config --help"),
        (
            "build --tier deep",
            "envkit build has no option --tier, but envkit verify, envkit compare, envkit export have it",
            "envkit verify --help",
        ),
        ("lock --ssh", "envkit lock has no option --ssh, but envkit run, envkit shell have it", "envkit run --help"),
        ("verify --write", "unknown option '--write'; did you mean --write-baseline?", "envkit verify --help"),
        ("resolve --keep 1", "envkit resolve has no option --keep, but envkit compare has it", "envkit compare --help"),
        ("build --zzzzzz", "unknown option '--zzzzzz'", "envkit build --help"),
        ("resolve -j", "unknown option '-j'", "envkit resolve --help"),
        (
            "--cuda 12.6",
            "envkit has no option --cuda, but envkit init, envkit resolve, envkit install have it",
            "envkit init --help",
        ),
        ("HELP", "unknown command 'HELP'; did you mean `envkit help`?", "envkit help --help"),
        ("matrix lst", "unknown command 'lst'; did you mean `envkit matrix list`?", "envkit matrix list --help"),
        ("cache xyzzy", "unknown command 'xyzzy'", "envkit cache --help lists the commands"),
        ("resolve 12.6", "unknown image definition '12.6'", "versions are options: --cuda 12.6, --torch 12.6 or"),
        ("lock torch==2.7", "unknown image definition 'torch==2.7'", "versions are options: --torch 2.7"),
        ("lock defualt", "unknown image definition 'defualt'", "did you mean default? use one of "),
    ],
)
def test_a_mistake_is_answered_with_what_was_meant(
    typed: str, message: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(typed.split()) == 2
    told = capsys.readouterr()
    assert told.out == ""
    first, _, rest = told.err.partition("\n\nhint: ")
    assert first.startswith(f"error: {message}")
    assert rest.startswith(hint)


@pytest.mark.parametrize("columns", [20, 40, 59])
def test_help_fits_a_narrow_terminal(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert run(["completion", "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if len(line) > max(columns, 26) and not line.startswith("  envkit ")] == []
