"""Read the command lines of programs that install packages: which words are packages, and which are not.

Which options take a value is a table (options.json, written by `python -m tests.options` from the programs' own
parsers), because a value looks like a package: `pip install --progress-bar off einops`. A command with an option that
the table does not have is not read at all, and neither is one whose words are known only when it runs.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import dropwhile
from pathlib import Path

from envkit.project.shell import Command, Word

_PIP = re.compile(r"pip3?(?:\.\d+)?")
_PYTHON = re.compile(r"python3?(?:\.\d+)?")
_CONDAS = ("conda", "mamba", "micromamba")
# What stands before a command and runs it: the options without a value, and those with one.
_WRAPPERS: Mapping[str, tuple[frozenset[str], frozenset[str]]] = {
    "sudo": (frozenset(["-E", "-H", "-n", "--preserve-env", "--set-home"]), frozenset(["-u", "--user"])),
    "env": (frozenset(["-i"]), frozenset(["-u"])),
    "exec": (frozenset(), frozenset()),
    "command": (frozenset(), frozenset()),
    "nohup": (frozenset(), frozenset()),
}
_CONDA_RUN = (
    frozenset(["--no-capture-output", "--live-stream", "-v"]),
    frozenset(["-n", "--name", "-p", "--prefix"]),
)
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)
# Its options are among those of `conda install`; one that is not loses the command by name.
_ENV_OF_CONDA = ((("env", "create"), "conda"), (("env", "update"), "conda"))
# Of each program: the words of the command that installs, and its table.
_COMMANDS: Mapping[str, tuple[tuple[tuple[str, ...], str], ...]] = {
    "pip": ((("install",), "pip"),),
    "uv": ((("pip", "install"), "uv pip install"), (("add",), "uv add"), (("sync",), "uv sync")),
    "apt": ((("install",), "apt-get"),),
    "conda": (*_ENV_OF_CONDA, (("install",), "conda"), (("create",), "conda")),
    "mamba": (*_ENV_OF_CONDA, (("install",), "mamba"), (("create",), "mamba")),
    "micromamba": ((("install",), "micromamba"), (("create",), "micromamba")),
}
_ROLES = {
    "file": ("--requirement", "--requirements", "--file"),
    "constraint": ("--constraint", "--constraints"),
    "index": ("--index-url", "--extra-index-url", "--find-links", "--index", "--default-index", "--torch-backend"),
    "editable": ("--editable",),
    "channel": ("--channel",),
    # With these, a command installs nothing, or not what it names.
    "void": (
        "--dry-run", "--help", "--version", "--check", "--download-only", "--print-uris", "--only-deps",
        "--no-download", "--print-config-only", "--print-context-only", "--revision",
    ),
    # With these, an image has other packages than without them.
    "lost": (
        "--no-deps", "--pre", "--no-index", "--platform", "--python-version", "--python-platform",
        "--implementation", "--abi", "--no-binary", "--no-build", "--target", "--prefix", "--root", "--group",
        "--extra", "--all-extras", "--build-constraint", "--build-constraints", "--override", "--overrides",
        "--exclude", "--excludes", "--resolution", "--prerelease", "--prerelease-package", "--exclude-newer",
        "--exclude-newer-package", "--config-settings", "--config-setting", "--config-settings-package",
        "--global-option", "--install-option", "--requirements-from-script", "--script", "--all-releases",
        "--only-final", "--uploaded-prior-to", "--no-sources", "--skip-requirements-regex", "--rev", "--tag",
        "--branch", "--marker", "--optional", "--dev", "--clone", "--no-pin", "--repodata-fn", "--with-source",
        "--target-release", "--option", "--config-file", "--fix-missing", "--only-upgrade",
        "--install-suggests",
    ),
}  # fmt: skip
# `uv sync` installs the project of a folder, with the extras and groups that it names.
_OF_PROJECT = {"--extra": "extra", "--group": "group", "--no-dev": "", "--dev": "lost", "--all-extras": "lost"}
# conda's packages are for the environment of -n or -p, which becomes that of the image.
_NOT_LOST = {
    "conda": frozenset(["--prefix"]),
    "apt-get": frozenset(["--target-release", "--option", "--config-file", "--fix-missing"]),
}


_KINDS = {"pip": "pip", "uv pip install": "pip", "uv add": "pip", "uv sync": "project", "apt-get": "apt"}


class UndecidedError(Exception):
    """A command that cannot be read; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A word of a command, or an option with its value."""

    role: str  # 'package', 'unknown' (a package whose name is not known), or one of the roles of options
    option: str = ""  # as written
    text: str  # as written, with its option
    value: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """What a command installs."""

    kind: str  # 'pip', 'conda', 'apt', 'project'
    items: tuple[Item, ...]


def installation(command: Command) -> Installation | None:
    """Return what a command installs; None for a command that is none of an installer.

    Raises:
        UndecidedError: the command installs, but which packages cannot be decided.
    """
    words = unwrapped(command.words)
    program, rest = _program(words)
    if program not in _COMMANDS:
        return None
    values = [word.value for word in rest]
    for verb, name in _COMMANDS[program]:
        # Options may stand before the command: `pip --no-cache-dir install einops`.
        if all(part in values for part in verb):
            table = _table(name)
            read = _items(rest, table, verb)
            if read is not None:
                return Installation(kind=_KINDS.get(name, "conda"), items=tuple(read))
    return None


def unwrapped(words: Sequence[Word]) -> tuple[Word, ...]:
    """Return the words of a command without what runs it: assignments, `sudo`, `env`, `conda run`."""
    rest = tuple(words)
    while rest:
        name = posixpath.basename(rest[0].value or "")
        if name in _CONDAS and len(rest) > 1 and rest[1].value == "run":
            options, after = _CONDA_RUN, rest[2:]
        elif name in _WRAPPERS:
            options, after = _WRAPPERS[name], rest[1:]
        else:
            return rest
        while after and after[0].value in (*options[0], *options[1]):
            after = after[1 if after[0].value in options[0] else 2 :]
        after = tuple(dropwhile(lambda word: _ASSIGNMENT.fullmatch(word.value or ""), after))
        if not after or (after[0].value or "-").startswith("-"):
            return rest
        rest = after
    return rest


def _program(words: Sequence[Word]) -> tuple[str, Sequence[Word]]:
    name = posixpath.basename(words[0].value or "") if words else ""
    if _PIP.fullmatch(name):
        return "pip", words[1:]
    if name in ("apt", "apt-get"):
        return "apt", words[1:]
    if _PYTHON.fullmatch(name):
        flags = 1
        while flags < len(words) and re.fullmatch(r"-[bBdEiIOPqsSuvx]+", words[flags].value or ""):
            flags += 1
        if [word.value for word in words[flags : flags + 2]] == ["-m", "pip"]:
            return "pip", words[flags + 2 :]
        if [word.value for word in words[flags : flags + 2]] == ["-m", "uv"]:
            return "uv", words[flags + 2 :]
    return name, words[1:]


def _items(words: Sequence[Word], table: _Table, verb: tuple[str, ...]) -> list[Item] | None:
    """Return the items after the verb; None if the command has another verb."""
    items: list[Item] = []
    position = 0
    for item in _parsed(words, table):
        if item.role == "package" and position < len(verb):
            if item.value != verb[position]:
                return None
            position += 1
        else:
            items.append(item)
    return items if position == len(verb) else None


@dataclass(frozen=True, slots=True)
class _Table:
    """The options of a command: for each name whether a value follows, and its role."""

    name: str
    valued: Mapping[str, bool]
    roles: Mapping[str, str]
    abbreviates: bool  # `--index` means `--index-url` if no other option begins so


@cache
def _tables() -> Mapping[str, Mapping[str, list[str]]]:
    path = Path(__file__).with_name("options.json")
    tables: dict[str, dict[str, list[str]]] = json.loads(path.read_text(encoding="utf-8"))
    return tables


@cache
def _table(name: str) -> _Table:
    if name == "mamba":
        # Until 1.5 mamba had conda's parser, since 2.0 it has micromamba's.
        one, other = _table("conda"), _table("micromamba")
        clash = {x for x in one.valued.keys() & other.valued.keys() if one.valued[x] != other.valued[x]}
        valued = {x: value for x, value in {**one.valued, **other.valued}.items() if x not in clash}
        return _Table(name, valued, {**one.roles, **other.roles}, abbreviates=False)
    rows = _tables()[name]
    valued = {option: kind == "valued" for kind in ("flags", "valued") for row in rows[kind] for option in row.split()}
    silent = _NOT_LOST.get("conda" if name == "micromamba" else name, frozenset())
    role_of = {option: role for role, options in _ROLES.items() for option in options if option not in silent}
    role_of |= _OF_PROJECT if name == "uv sync" else {}
    roles = {
        option: role
        for row in (*rows["flags"], *rows["valued"])
        for role in [next((role_of[x] for x in row.split() if x in role_of), "")]
        for option in row.split()
    }
    return _Table(name, valued, roles, abbreviates=name in ("pip", "conda"))


def _parsed(words: Sequence[Word], table: _Table) -> Iterator[Item]:
    rest = iter(words)
    for word in rest:
        text = word.start if word.value is None else word.value
        if word.value is None and not _is_package(word) and not (text.startswith("--") and "=" in text):
            raise UndecidedError(f"the value of {word.text} is known only during the build")
        if text == "--":
            yield from (_package(word) for word in rest)
        elif text.startswith("--"):
            yield _long(word, text, rest, table)
        elif text.startswith("-") and text != "-":
            yield from _short(word, text, rest, table)
        else:
            yield _package(word)


def _is_package(word: Word) -> bool:
    """Return whether a word that is not known is certainly no option: `torch==$VERSION`, `./dist/$FILE`."""
    return bool(re.match(r"[A-Za-z0-9/.~]", word.start))


def _package(word: Word) -> Item:
    if word.value is None and not _is_package(word):
        raise UndecidedError(f"the value of {word.text} is known only during the build")
    role = "unknown" if word.value is None else "package"
    return Item(role=role, text=word.text if word.value is None else word.value, value=word.value or "")


def _long(word: Word, text: str, rest: Iterator[Word], table: _Table) -> Item:
    written, sign, _ = text.partition("=")
    name = written
    if name not in table.valued and table.abbreviates:
        longer = [option for option in table.valued if option.startswith(written)]
        name = longer[0] if len(longer) == 1 else written
    if name not in table.valued:
        raise UndecidedError(
            f"the option {written} is not in envkit's table of {table.name}, so its value could be a package"
        )
    if not table.valued[name]:
        if sign and table.name != "apt-get":
            raise UndecidedError(f"the option {written} has no value")
        return Item(role=table.roles[name], option=written, text=text)
    if sign:
        value = None if word.value is None else word.value.partition("=")[2]
        return _valued(written, replace(word, value=value), table.roles[name], "=")
    return _valued(written, _next(written, rest), table.roles[name], " ")


def _short(word: Word, text: str, rest: Iterator[Word], table: _Table) -> Iterator[Item]:
    """Yield the options of a word such as `-qU`, `-rfile` or `-y`."""
    for at, letter in enumerate(text[1:], 1):
        name = f"-{letter}"
        if name not in table.valued:
            raise UndecidedError(
                f"the option {name} is not in envkit's table of {table.name}, so its value could be a package"
            )
        if table.valued[name]:
            value = text[at + 1 :].removeprefix("=")
            known = replace(word, value=value) if value else _next(name, rest)
            yield _valued(name, known, table.roles[name], " ")
            return
        if text.startswith("=", at + 1) and table.name == "apt-get":  # -q=2
            return
        yield Item(role=table.roles[name], option=name, text=name)


def _next(option: str, rest: Iterator[Word]) -> Word:
    word = next(rest, None)
    if word is None:
        raise UndecidedError(f"the option {option} has no value")
    if word.value is None and not word.single and not word.start:
        raise UndecidedError(f"the value of {word.text} is known only during the build")
    return word


def _valued(option: str, word: Word, role: str, sign: str) -> Item:
    if word.value is None:
        # An index or a file that is not known may be any.
        shown = word.text if word.text.startswith(option) else f"{option}{sign}{word.text}"
        return Item(role="unknown" if role else "", option=option, text=shown)
    return Item(role=role, option=option, text=f"{option}{sign}{word.value}", value=word.value)
