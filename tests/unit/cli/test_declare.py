"""Sections of help texts: every option of every command is in one, and the texts fit the terminal."""

import re
from dataclasses import dataclass, fields
from importlib.metadata import version
from inspect import unwrap
from pathlib import Path
from typing import Any, get_type_hints

import click
import pytest

from envkit.cli.declare import (
    Section,
    SectionCommand,
    SectionOption,
    argument,
    group,
    help_parts,
    new_command,
    new_group,
    option,
    parameters,
    quiet_option,
    sections,
)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class NoOptions:
    """A command without options."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedSections:
    """Options whose sections are not in their order, one of them hidden."""

    late: bool = option(Section.GENERAL, "--late", is_flag=True, help="Late.")
    hidden: str | None = option(Section.REQUEST, "--hidden", hidden=True)
    early: int | None = option(Section.REQUEST, "--early N", type=click.IntRange(1, 9), help="Early.")


def test_sections_follow_their_order_and_hidden_options_are_in_none() -> None:
    @new_command("one", MixedSections)
    def command(flags: MixedSections) -> None: ...

    context = click.Context(command, info_name="one")
    assert command.get_help(context) == (
        "Usage: one [OPTIONS]\n\nRequest:\n  --early N  Early.\n\n"
        "General:\n  --late         Late.\n  -q, --quiet    Print only errors and the result.\n"
        "  -v, --verbose  Print more details.\n  --help         Show this message and exit."
    )


@pytest.mark.parametrize("path", sorted(COMMANDS))
def test_every_command_has_q_and_v_in_the_general_section(path: str) -> None:
    command, context = COMMANDS[path]
    general = sections(command, context)[Section.GENERAL]
    flags = {one.opts[0]: one for one in general if isinstance(one, click.Option)}
    assert all(flags[name].is_flag for name in ("-q", "-v"))
    assert (flags["-q"].help or "").startswith("Print only errors and the ")


@pytest.fixture
def _settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder whose settings file is noted, and a variable."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "envkit.toml").write_text('docker_cli = "docker"\n')
    monkeypatch.setenv("ENVKIT_PYTHON_INDEX", "https://user:secret@index.example.com/simple")


@pytest.mark.usefixtures("_settings")
@pytest.mark.parametrize(
    ("flags", "notes", "details"), [([], True, False), (["-q"], False, False), (["-v"], True, True)]
)
def test_notes_and_settings_are_told_by_verbosity(
    flags: list[str], notes: bool, details: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["resolve", "--cuda", "11.8", *flags]) == 0
    told = capsys.readouterr()
    assert ("note: " in told.err, "setting python_index" in told.err) == (notes, details)
    assert "secret" not in told.err
    assert "CUDA" in told.out


@pytest.mark.usefixtures("_settings")
def test_the_flag_of_a_group_holds_for_its_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["matrix", "-q", "list", "builds", "--torch", "2.7.1"]) == 0
    assert capsys.readouterr().err == ""


def test_quiet_keeps_errors(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["resolve", "-q", "--cuda", "99"]) == 3
    told = capsys.readouterr()
    assert (told.out, told.err.startswith("error: no build matches --cuda 99\n")) == ("", True)


@pytest.mark.parametrize(("flags", "told"), [([], False), (["-v"], True)])
def test_verbose_names_the_cause_of_an_error(
    flags: list[str], told: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "image.yaml").write_bytes(b"schema: envkit.image/1\ntitle: \xff\n")
    assert run(["resolve", str(tmp_path / "image.yaml"), *flags]) == 2
    assert ("\ncaused by UnicodeDecodeError: " in capsys.readouterr().err) is told


def test_verbose_does_not_name_a_conflict_that_was_worded_again(capsys: pytest.CaptureFixture[str]) -> None:
    """`--format conda` implies a source; the conflict that `resolve` shows names the flag in its place."""
    assert run(["resolve", "-v", "--cuda", "99", "--format", "conda"]) == 3
    assert "caused by" not in capsys.readouterr().err


def test_a_verbose_version_names_the_libraries(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["version", "-v"]) == 0
    assert f"click {version('click')}" in capsys.readouterr().out


@pytest.mark.parametrize("columns", [60, 80, 200])
@pytest.mark.parametrize("path", sorted(COMMANDS))
def test_what_an_example_is_about_fits_the_terminal(
    path: str, columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    examples = [one for part in help_parts(COMMANDS[path][0]) if isinstance(part, list) for one in part]
    told = shown(path, columns, monkeypatch, capsys).splitlines()
    for command, about in examples:
        (line,) = [line for line in told if line.strip() == command or line.startswith(f"  {command}   ")]
        below = told[told.index(line) + 1]
        assert line.endswith(about) if line.strip() != command else below.strip() == about or not about
        assert len(line) <= max(columns, len(command) + 2)


def test_examples_stand_in_one_column_where_they_fit() -> None:
    @new_command("one", NoOptions, help="Do it.\n\n\b\none a     about a\none bb  about bb, at some length\none ccc")
    def command(flags: NoOptions) -> None: ...

    def told(width: int) -> list[str]:
        context = click.Context(command, info_name="one", terminal_width=width)
        lines = command.get_help(context).splitlines()
        return lines[lines.index("  Do it.") + 2 : lines.index("General:") - 1]

    assert told(60) == ["  one a    about a", "  one bb   about bb, at some length", "  one ccc"]
    assert told(30) == ["  one a   about a", "  one bb", "      about bb, at some length", "  one ccc"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Options that several commands share."""

    folder: Path | None = option(Section.INPUT, "--folder DIR", type=click.Path(path_type=Path), help="A folder.")
    depth: int = option(Section.INPUT, "-d", "--how-deep N", type=int, default=1, help="How deep. [1]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """A command's options: its own, those that are shared, and what its own parser sets."""

    word: str = argument(metavar="WORD")
    place: Place = group(Place, depth={"names": ("--deep",), "default": 3, "help": "Deep. [3]"})
    rest: tuple[str, ...]
    quiet: bool = quiet_option()
    names: tuple[str, ...] = option(Section.OUTPUT, "--name NAME", multiple=True, help="A name.")


class WithRest(SectionCommand):
    """A command whose last word is not parsed."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        rest = super().parse_args(ctx, args[:-1])
        ctx.params["rest"] = tuple(args[-1:])
        return rest


def test_a_command_gets_its_options_as_one_value() -> None:
    got: list[Search] = []

    @new_command("search", Search, cls=WithRest)
    def command(flags: Search) -> int:
        """Search for WORD."""
        got.append(flags)
        return 7

    typed = ["--deep", "2", "--name", "a", "word", "--folder", "here", "--name", "b", "last"]
    assert command.main(typed, "search", standalone_mode=False) == 7
    assert got == [
        Search(word="word", place=Place(folder=Path("here"), depth=2), rest=("last",), quiet=False, names=("a", "b"))
    ]
    assert command.main(["x", "last"], "search", standalone_mode=False) == 7
    assert got[1].place == Place(folder=None, depth=3)


def test_options_stand_in_the_order_of_the_fields_with_their_changes() -> None:
    found = {parameter.name: parameter for parameter in parameters(Search)}
    assert list(found) == ["word", "folder", "depth", "quiet", "names"]
    assert [found[name].opts for name in ("folder", "depth", "names")] == [["--folder"], ["--deep"], ["--name"]]
    assert [found[name].metavar for name in ("word", "folder", "depth", "quiet")] == ["WORD", "DIR", "N", None]
    (own,) = (parameter for parameter in parameters(Place) if parameter.name == "depth")
    assert (own.opts, own.default) == (["-d", "--how-deep"], 1)  # a change holds for one command


def test_a_group_of_commands_has_options_and_commands() -> None:
    got: list[object] = []

    @new_group("all", Place, invoke_without_command=True)
    def every(flags: Place) -> None:
        got.append(flags)

    @new_command("one", NoOptions, parent=every)
    def one(flags: NoOptions) -> None:
        got.append(flags)

    every.main(["-d", "4", "one"], "all", standalone_mode=False)
    assert got == [Place(folder=None, depth=4), NoOptions()]


def declared(kind: type) -> dict[str, Any]:
    """Return the type of each field with an option by the name of the field, those of shared dataclasses included."""
    found: dict[str, Any] = {}
    for field in fields(kind):
        inner = field.metadata.get("group")
        found |= declared(inner) if inner is not None else {field.name: field.type}
    return found


@pytest.mark.parametrize("path", sorted(COMMANDS))
def test_an_option_is_declared_once_and_its_field_has_the_type_of_its_values(path: str) -> None:
    command, context = COMMANDS[path]
    if path in ("envkit", "envkit matrix"):  # groups without options of their own
        return
    assert command.callback is not None
    types = declared(get_type_hints(unwrap(command.callback))["flags"])
    own = [parameter for parameter in command.params if parameter.expose_value]
    names = [name for parameter in command.get_params(context) for name in parameter.opts]
    assert len(names) == len(set(names))
    assert {parameter.name for parameter in own} == types.keys() - {"argv"}
    for parameter in own:
        assert parameter.name is not None
        text = types[parameter.name]
        is_flag = isinstance(parameter, click.Option) and parameter.is_flag
        is_tuple = parameter.multiple or parameter.nargs == -1
        assert (parameter.name, text.startswith("tuple["), text == "bool") == (
            parameter.name, is_tuple or parameter.nargs > 1, is_flag
        )  # fmt: skip
        always = is_flag or is_tuple or parameter.required or isinstance(parameter.default, str | int)
        assert always or "None" in text, parameter.name
