"""`envkit completion`: the script that completes envkit's words in a shell, and the answers to that script."""

from __future__ import annotations

import click

from envkit.cli.declare import new_command
from envkit.ground.errors import Ending

PROGRAM = "envkit"
COMPLETE = "_ENVKIT_COMPLETE"  # the variable by which the script of a shell asks for completions
# Where each shell looks for the script by itself; the folder has to exist.
INSTALL = {
    "bash": (
        "mkdir -p ~/.local/share/bash-completion/completions",
        "envkit completion bash > ~/.local/share/bash-completion/completions/envkit",
        'Without the package bash-completion, put this into ~/.bashrc: eval "$(envkit completion bash)"',
    ),
    "zsh": (
        "mkdir -p ~/.zfunc",
        "envkit completion zsh > ~/.zfunc/_envkit",
        "Put this into ~/.zshrc, before compinit: fpath+=~/.zfunc; autoload -Uz compinit; compinit",
    ),
    "fish": (
        "mkdir -p ~/.config/fish/completions",
        "envkit completion fish > ~/.config/fish/completions/envkit.fish",
    ),
}


@new_command("completion")
@click.argument("shell", type=click.Choice(tuple(INSTALL)))
def command(shell: str) -> None:
    """Print the script that completes envkit's words in a shell.

    It completes commands, options and values: image definitions, GPUs, operating systems, engines, sources, checks.
    The script begins with how to install it.

    \b
    envkit completion bash > ~/.local/share/bash-completion/completions/envkit
    envkit completion zsh > ~/.zfunc/_envkit
    envkit completion fish > ~/.config/fish/completions/envkit.fish
    """  # noqa: D301 - click reads "\b" as "do not join these lines"
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"this version of click completes nothing in {shell}")
    lines = kind(click.get_current_context().find_root().command, {}, PROGRAM, COMPLETE).source().splitlines()
    notes = [f"# {line}" for line in ("To install:", *INSTALL[shell], "Then start a new shell.")]
    # zsh finds the function of a file by its first line.
    at = 1 if lines[0].startswith("#compdef") else 0
    click.echo("\n".join([*lines[:at], *notes, *lines[at:]]))


def answer(group: click.Group, asked: str) -> int:
    """Print the completions that a shell asks for, by the variables that its script sets; return the exit code.

    Args:
        group: whose words are completed.
        asked: what the script wants, such as `bash_complete`.
    """
    from click.shell_completion import shell_complete

    try:
        return shell_complete(group, {}, PROGRAM, COMPLETE, asked)
    except (click.ClickException, Ending, KeyError, OSError, ValueError):
        # The command line is not finished, and a message would stand in the middle of it.
        return 1
