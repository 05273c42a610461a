"""Sections of help texts: every option of every command is in one, and the texts fit the terminal."""

import re

import click
import pytest

from envkit.cli.declare import Section, SectionOption, new_command, option, sections
from envkit.cli.main import run
from tests.support.command_lines import every_command

COMMANDS = {path: (command, context) for path, command, context in every_command()}
_TITLES = [section.value for section in Section]


def titles(text: str) -> list[str]:
    return re.findall(r"^(\S.*):$", text, re.MULTILINE)


def shown(path: str, columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert run([*path.split()[1:], "--help"]) == 0
    return capsys.readouterr().out


def test_every_option_is_declared_in_a_section() -> None:
    assert len(COMMANDS) > 30
    bare = [
        f"{path} {parameter.opts[0]}"
        for path, (command, context) in COMMANDS.items()
        for parameter in command.get_params(context)
        if isinstance(parameter, click.Option) and not isinstance(parameter, SectionOption)
    ]
    assert bare == [f"{path} -h" for path in COMMANDS]  # click's own


@pytest.mark.parametrize("path", sorted(COMMANDS))
def test_help_lists_every_visible_option_once_in_sections(
    path: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command, context = COMMANDS[path]
    told = shown(path, 80, monkeypatch, capsys)
    found = [title for title in titles(told) if title != "Commands"]
    assert found == [title for title in _TITLES if title in found]
    names = [one.opts[-1] for options in sections(command, context).values() for one in options]
    visible = [one for one in command.get_params(context) if isinstance(one, click.Option) and not one.hidden]
    assert sorted(names) == sorted(one.opts[-1] for one in visible)
    listed = told[told.index(f"\n{found[0]}:\n") :]
    assert [name for name in names if len(re.findall(rf"^  .*{name}(?![\w-])", listed, re.MULTILINE)) < 1] == []


@pytest.mark.parametrize("columns", [80, 200])
@pytest.mark.parametrize("path", sorted(COMMANDS))
def test_options_fit_the_terminal(
    path: str, columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = shown(path, columns, monkeypatch, capsys)
    listed = told[told.index(f"\n{titles(told)[0]}:\n") :]
    assert max(map(len, listed.splitlines())) < min(columns, 100)


@pytest.mark.parametrize("path", sorted(COMMANDS))
def test_a_value_is_named_by_what_it_is(path: str) -> None:
    command, context = COMMANDS[path]
    shown = [one for options in sections(command, context).values() for one in options]
    vague = {"TEXT", "PATH", "INTEGER", "FLOAT", "INTEGER RANGE", "FLOAT RANGE"}
    valued = [one for one in shown if isinstance(one, click.Option) and not one.is_flag and not one.metavar]
    assert [one.opts for one in valued if one.make_metavar(context) in vague] == []
    assert [one.opts for one in shown if isinstance(one, click.Option) and not one.help] == []


def test_the_options_of_a_build_by_section(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    told = shown("envkit build", 80, monkeypatch, capsys)
    assert titles(told) == [
        *("Request", "Input", "Several images", "Lock", "Build", "Tags and registries", "Verification"),
        *("Output", "General"),
    ]
    assert "\nLock:\n  --locked FILE  Install this lock. [envkit.lock if it fits, else solve now]\n" in told


def test_sections_follow_their_order_and_hidden_options_are_in_none() -> None:
    @new_command("one")
    @option(Section.GENERAL, "--late", is_flag=True, help="Late.")
    @option(Section.REQUEST, "--hidden", hidden=True)
    @option(Section.REQUEST, "--early", type=click.IntRange(1, 9), metavar="N", help="Early.")
    def command() -> None: ...

    context = click.Context(command, info_name="one")
    assert command.get_help(context) == (
        "Usage: one [OPTIONS]\n\nRequest:\n  --early N  Early.\n\n"
        "General:\n  --late  Late.\n  --help  Show this message and exit."
    )
