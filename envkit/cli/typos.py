"""What was probably meant by a command or an option that does not exist."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator

import click

from envkit.ground.errors import UsageError

_SHOWN = 3  # commands that are named for an option of others
_JOINED = re.compile(r"(--[a-z-]*[a-z])=?([0-9].*)")  # --cuda12.6


def unknown_command(ctx: click.Context, typed: str, names: Collection[str], habits: dict[str, str]) -> UsageError:
    """Return the error for a word that is not a command of a group.

    Args:
        ctx: of the group.
        typed: the word.
        names: the commands of the group.
        habits: words of other tools, and the command that does it.
    """
    word = typed.lower()
    close = difflib.get_close_matches(word, (*names, *habits), n=1)
    meant = habits.get(word) or (habits.get(close[0], close[0]) if close else None)
    path = ctx.command_path
    if meant is None:
        return UsageError(f"unknown command {typed!r:.80}", hint=f"{path} --help lists the commands")
    hint = f"{path} {meant.partition(' --')[0]} --help"
    return UsageError(f"unknown command {typed!r:.80}; did you mean `{path} {meant}`?", hint=hint)


def unknown_option(ctx: click.Context, typed: str) -> UsageError:
    """Return the error for an option that a command does not have."""
    path, own = ctx.command_path, list(_options(ctx.command, ctx))
    joined = _JOINED.fullmatch(typed)
    if joined and joined[1] in own:
        return UsageError(
            f"unknown option {typed!r:.80}; did you mean {joined[1]} {joined[2]:.40}?", hint=f"{path} --help"
        )
    begun = sorted((name for name in own if typed.startswith("--") and name.startswith(typed)), key=len)
    near = begun or difflib.get_close_matches(typed, own, n=1, cutoff=0.75)
    others = [] if near or not typed.startswith("--") else _others(ctx, typed)
    if near:
        return UsageError(f"unknown option {typed!r:.80}; did you mean {near[0]}?", hint=f"{path} --help")
    if others:
        message = f"{path} has no option {typed}; {', '.join(others[:_SHOWN])} {'have' if others[1:] else 'has'} it"
        return UsageError(message, hint=f"{others[0]} --help")
    return UsageError(f"unknown option {typed!r:.80}", hint=f"{path} --help")


def _options(command: click.Command, ctx: click.Context) -> Iterator[str]:
    for parameter in command.get_params(ctx):
        if isinstance(parameter, click.Option) and not parameter.hidden:
            yield from (*parameter.opts, *parameter.secondary_opts)


def _others(ctx: click.Context, typed: str) -> list[str]:
    """Return the commands that have an option; this imports them all, which only an error waits for."""
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
