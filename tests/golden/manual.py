"""The manual pages in `man/`, made from what the command line declares; the wheel puts them into share/man/man1."""

import re
from collections.abc import Collection, Iterator
from pathlib import Path

import click

from envkit import __version__
from envkit.cli.declare import help_parts, sections
from envkit.cli.help import pages
from envkit.cli.main import COMMANDS, EXIT_CODES
from envkit.ground.settings import SETTINGS
from tests.support.command_lines import every_command

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "man"
_RELEASED = re.compile(rf"^## \[{re.escape(__version__)}\] - (\S+)$", re.MULTILINE)
_SENTENCE = re.compile(r"(?<=[a-z)`]\.) (?=[A-Z])")
_HEAD = '.\\" Made from the command line by `python -m tests.golden --update`; do not edit.\n'
_FILES = (
    ("envkit.toml", "Settings of the current folder; also [tool.envkit] in pyproject.toml."),
    ("~/.config/envkit/envkit.toml", "Settings of your user account."),
    ("envkit.lock", "The lock that `envkit lock` writes and `envkit build` installs."),
)


def escaped(text: str) -> str:
    """Return text as roff shows it literally."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("~", "\\(ti")
    text = text.replace("^", "\\(ha").replace('"', "\\(dq")
    text = "".join(sign if sign.isascii() else f"\\[u{ord(sign):04X}]" for sign in text)
    return re.sub(r"^\.", r"\\&.", text, flags=re.MULTILINE)


def prose(text: str) -> str:
    """Return a paragraph: one sentence a line, and words between backquotes in bold."""
    sentences = _SENTENCE.split(" ".join(text.split()))
    lines = [re.sub(r"`([^`]+)`", r"\\fB\1\\fR", escaped(line)) for line in sentences]
    return "\n".join(re.sub(r"^\\\(aq", r"\\&\\(aq", line) for line in lines)


def manual_pages() -> dict[str, bytes]:
    """Return the pages by file name, such as `envkit-build.1`."""
    topics = pages(ROOT / "docs")
    return {
        f"{_name(path)}.1": _page(path, command, context, topic=_topic(path, topics)).encode()
        for path, command, context in every_command()
    }


def _name(path: str) -> str:
    return path.replace(" ", "-")


def _topic(path: str, topics: Collection[str]) -> str | None:
    name = path.split(" ")[1] if " " in path else "commands"
    return name if name in topics else None


def _about(path: str, command: click.Command) -> str:
    words = path.split(" ")
    text = COMMANDS[words[1]][1] if len(words) == 2 else str(help_parts(command)[0])
    first = " ".join(text.split()).partition(". ")[0].rstrip(".")
    return first[0].lower() + first[1:]


def _page(path: str, command: click.Command, context: click.Context, *, topic: str | None) -> str:
    released = _RELEASED.search((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    assert released is not None, f"CHANGELOG.md has no day for {__version__}"
    parts = [
        f'.TH {_name(path).upper()} 1 {released[1]} "envkit {__version__}" "envkit manual"\n.nh\n.ad l\n',
        f".SH NAME\n{escaped(_name(path))} \\- {prose(_about(path, command))}\n",
        f".SH SYNOPSIS\n.B {escaped(path)}\n{escaped(' '.join(command.collect_usage_pieces(context)))}\n",
        ".SH DESCRIPTION\n" + ".PP\n".join(prose(one) + "\n" for one in help_parts(command) if isinstance(one, str)),
        *_commands(command, context),
        ".SH OPTIONS\n" + "".join(_options(command, context)),
        *_examples(command),
        *(_environment() if " " not in path else ()),
        ".SH EXIT STATUS\n" + "".join(_item(f"\\fB{code}\\fR", meaning) for code, meaning in EXIT_CODES.items()),
        f".SH SEE ALSO\n{_see_also(path, command, context)}\n",
    ]
    if topic is not None:
        parts.append(f".PP\n.B envkit help {topic}\nshows the documentation page.\n")
    return _HEAD + "".join(parts)


def _item(tag: str, text: str) -> str:
    return f".TP\n{tag}\n{prose(text)}\n"


def _commands(command: click.Command, context: click.Context) -> Iterator[str]:
    if isinstance(command, click.Group):
        yield ".SH COMMANDS\n"
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            path = f"{context.command_path} {name}"
            about = _about(path, found)
            yield _item(f"\\fB{escaped(_name(path))}\\fR(1)", f"{about[0].upper()}{about[1:]}.")


def _options(command: click.Command, context: click.Context) -> Iterator[str]:
    for section, options in sections(command, context).items():
        yield f".SS {section.value}\n"
        for one in options:
            assert isinstance(one, click.Option)
            value = "" if one.is_flag else f" \\fI{escaped(one.make_metavar(context))}\\fR"
            names = ", ".join(f"\\fB{escaped(name)}\\fR" for name in one.opts)
            yield _item(f"{names}{value}", one.help or "")


def _examples(command: click.Command) -> Iterator[str]:
    found = [example for part in help_parts(command) if isinstance(part, list) for example in part]
    if found:
        yield ".SH EXAMPLES\n"
        for line, about in found:
            yield _item(f"\\fB{escaped(line)}\\fR", about) if about else f".TP\n\\fB{escaped(line)}\\fR\n"


def _environment() -> Iterator[str]:
    yield ".SH ENVIRONMENT\n"
    for one in SETTINGS:
        yield _item(f"\\fB{one.variable}\\fR", f"{one.meaning[0].upper()}{one.meaning[1:]}.")
    yield _item("\\fBNO_COLOR\\fR", "If it is set and not empty, output has no colors.")
    yield ".SH FILES\n"
    for name, text in _FILES:
        yield _item(f"\\fI{escaped(name)}\\fR", text)


def _see_also(path: str, command: click.Command, context: click.Context) -> str:
    above = [path.rpartition(" ")[0]] if " " in path else []
    below = [f"{path} {name}" for name in command.list_commands(context)] if isinstance(command, click.Group) else []
    named = [f"\\fB{escaped(_name(one))}\\fR(1)" for one in (*above, *below)]
    return ",\n".join(named)
