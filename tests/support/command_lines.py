"""Parse command lines in texts with envkit's own parser, without running them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from typing import Any

import click

from envkit.cli.main import envkit


def parsed(arguments: Sequence[str]) -> dict[str, Any]:
    """Return the parameters of the arguments after `envkit`; names in registries may have parts still to be filled in.

    Raises:
        click.UsageError: the arguments are invalid.
    """
    arguments = [_filled(word, before) for before, word in zip(("", *arguments), arguments, strict=False)]
    command: click.Command = envkit
    # With its settings, because a command caches the names of its help option at the first request.
    context, words = click.Context(envkit, info_name="envkit", **envkit.context_settings), list(arguments)
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        name = words.pop(0)
        subcommand = command.get_command(context, name)
        if subcommand is None:
            raise click.UsageError(f"{context.command_path} has no command {name!r}")
        command, context = subcommand, click.Context(subcommand, info_name=name, parent=context)
    try:
        return command.make_context(context.info_name, words, parent=context.parent).params
    except click.exceptions.Exit:  # --help and --version
        return {}


def _filled(name: str, before: str) -> str:
    """Return the name of an image in which a shell put values for variables, and a reader for HOST and NAME.

    The value of `--output` stays: the parser takes it as it is.
    """
    if not name.startswith("registry:") or before == "--output":
        return name
    image = re.sub(r"\$\{?\w+\}?", "registry.example.com/team/train", name)
    return image.replace("HOST/", "registry.example.com/").replace("NAME", "train")


def every_command() -> Iterator[tuple[str, click.Command, click.Context]]:
    """Yield the path, the command and a context of `envkit`, its groups and every command."""
    waiting: list[tuple[click.Command, click.Context]] = [
        (envkit, click.Context(envkit, info_name="envkit", **envkit.context_settings))
    ]
    while waiting:
        command, context = waiting.pop(0)
        yield context.command_path, command, context
        if isinstance(command, click.Group):
            named = [(name, command.get_command(context, name)) for name in command.list_commands(context)]
            waiting += [(child, click.Context(child, info_name=name, parent=context)) for name, child in named if child]


def of_line(line: str) -> Iterator[list[str]]:
    """Yield the arguments of each `envkit` on a shell's line. Pipes, redirections and comments end a command."""
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
