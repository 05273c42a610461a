"""Errors for commands and options that do not exist, with the ones that were probably meant."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

import click

from envkit.ground.errors import UsageError
from envkit.ground.text import similar

_SHOWN = 3  # commands listed for an option that only other commands have
_JOINED = re.compile(r"(--[a-z-]*[a-z])=?([0-9].*)")  # --cuda12.6


def unknown_command(ctx: click.Context, typed: str, names: Collection[str], synonyms: dict[str, str]) -> UsageError:
    """Return the error for a word that is not a command of a group.

    Args:
        ctx: the context of the group.
        typed: the word.
        names: the commands of the group.
        synonyms: commands of other tools, and the command of this group that does the same.
    """
    word = typed.lower()
    close = similar(word, (*names, *synonyms))
    suggestion = synonyms.get(word) or (synonyms.get(close[0], close[0]) if close else None)
    path = ctx.command_path
    if suggestion is None:
        return UsageError(f"unknown command {typed!r:.80}", hint=f"{path} --help lists the commands")
    hint = f"{path} {suggestion.partition(' --')[0]} --help"
    return UsageError(f"unknown command {typed!r:.80}; did you mean `{path} {suggestion}`?", hint=hint)


def unknown_option(ctx: click.Context, typed: str) -> UsageError:
    """Return the error for an option that a command does not have."""
    path, own = ctx.command_path, list(_options(ctx.command, ctx))
    joined = _JOINED.fullmatch(typed)
    if joined and joined[1] in own:
        return UsageError(
            f"unknown option {typed!r:.80}; did you mean {joined[1]} {joined[2]:.40}?", hint=f"{path} --help"
        )
    # An abbreviation such as --plat; click accepts none. The shortest option that begins with it comes first.
    prefixed = sorted((name for name in own if typed.startswith("--") and name.startswith(typed)), key=len)
    near = prefixed or similar(typed, own, cutoff=0.75)
    others = [] if near or not typed.startswith("--") else _others(ctx, typed)
    if near:
        return UsageError(f"unknown option {typed!r:.80}; did you mean {near[0]}?", hint=f"{path} --help")
    if others:
        message = f"{path} has no option {typed}, but {', '.join(others[:_SHOWN])} {'have' if others[1:] else 'has'} it"
        return UsageError(message, hint=f"{others[0]} --help")
    return UsageError(f"unknown option {typed!r:.80}", hint=f"{path} --help")


def _options(command: click.Command, ctx: click.Context) -> Iterator[str]:
    for parameter in command.get_params(ctx):
        if isinstance(parameter, click.Option) and not parameter.hidden:
            yield from (*parameter.opts, *parameter.secondary_opts)


def _others(ctx: click.Context, typed: str) -> list[str]:
    """Return the commands that have an option. This imports every command, which is acceptable for an error."""
    root = ctx.find_root()
    group = root.command
    if not isinstance(group, click.Group):
        return []
    commands = [(name, group.get_command(root, name)) for name in group.list_commands(root)]
    return [
        f"{root.command_path} {name}"
        for name, command in commands
        if command is not None and typed in _options(command, root)
    ]
