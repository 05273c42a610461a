"""Command lines in texts: parsed by envkit's own command line, without running them."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import Any

import click

from envkit.cli.main import envkit


def parsed(arguments: Sequence[str]) -> dict[str, Any]:
    """Return the parameters of what follows `envkit` on a command line.

    Raises:
        click.UsageError: the command line does not take them.
    """
    command: click.Command = envkit
    # With its settings: a command keeps the names of its help option as it is first asked for them.
    context, words = click.Context(envkit, info_name="envkit", **envkit.context_settings), list(arguments)
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        name = words.pop(0)
        found = command.get_command(context, name)
        if found is None:
            raise click.UsageError(f"{context.command_path} has no command {name!r}")
        command, context = found, click.Context(found, info_name=name, parent=context)
    try:
        return command.make_context(context.info_name, words, parent=context.parent).params
    except click.exceptions.Exit:  # --help and --version
        return {}


def every_command() -> Iterator[tuple[str, click.Command, click.Context]]:
    """Yield `envkit`, its groups and every command: what is typed, the command, a context for it."""
    waiting: list[tuple[click.Command, click.Context]] = [
        (envkit, click.Context(envkit, info_name="envkit", **envkit.context_settings))
    ]
    while waiting:
        command, context = waiting.pop(0)
        yield context.command_path, command, context
        if isinstance(command, click.Group):
            found = [(name, command.get_command(context, name)) for name in command.list_commands(context)]
            waiting += [(one, click.Context(one, info_name=name, parent=context)) for name, one in found if one]


def of_line(line: str) -> Iterator[list[str]]:
    """Yield what follows each `envkit` on a line of a shell: pipes, redirections and comments end a command."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    for token in [*lexer, ";"]:
        if set(token) <= set("();<>|&"):
            if words[:1] == ["envkit"]:
                yield words[1:]
            words = []
        else:
            words.append(token)
