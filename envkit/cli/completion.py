"""`envkit completion`: the completion scripts of the shells, and the completions that they request."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from envkit.cli.declare import COMPLETE, argument, new_command
from envkit.ground.errors import Ending

if TYPE_CHECKING:
    from click.shell_completion import ShellComplete

PROGRAM = "envkit"
# How to install each script where its shell finds it; the shells do not create these folders.
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


# Bash splits words at colons and equal signs, and replaces only the part after the last one. `oci:build/image` is one
# word for envkit, so envkit gets the whole line, and the part before the last colon is removed from its completions.
# `set -f`: a completion such as `2.7.*` is not expanded to names of files; `local -` (bash 4.4) restores it at the end.
_BASH = """\
%(complete_func)s() {
    local - IFS=$'\\n' line="${COMP_LINE:0:COMP_POINT}" word before="" completion type value
    word="${line##*[[:space:]]}"
    if [[ $word == *:* && $COMP_WORDBREAKS == *:* ]]; then
        before="${word%%"${word##*:}"}"
    fi
    COMPREPLY=()
    set -f
    for completion in $(env COMP_WORDS="$line" %(complete_var)s=bash_complete "$1"); do
        IFS=',' read -r type value <<< "$completion"
        case $type in
            dir) compopt -o dirnames ;;
            file) compopt -o default ;;
            plain) COMPREPLY+=("${value#"$before"}") ;;
        esac
    done
}

complete -o nosort -F %(complete_func)s %(prog_name)s
"""

# Not click's script: installed as a file in `fpath`, it completes nothing on every second Tab, and it replaces `--os=`
# by the value.
_ZSH = """\
#compdef %(prog_name)s

%(complete_func)s() {
    local -a answer plain described
    local kind value about option="" at=$((CURRENT - 1))
    if [[ $words[CURRENT] == -*=* ]]; then
        option="${words[CURRENT]%%%%=*}="
    fi
    answer=("${(@f)$(env COMP_WORDS="${words[*]}" COMP_CWORD=$at %(complete_var)s=zsh_complete %(prog_name)s)}")
    for kind value about in "${(@)answer}"; do
        case $kind in
            dir)
                compset -P '-*='
                _path_files -/ ;;
            file)
                compset -P '-*='
                _path_files -f ;;
            plain)
                if [[ $about == _ ]]; then
                    plain+=("$option$value")
                else
                    described+=("$option$value:$about")
                fi ;;
        esac
    done
    if (( $#described )); then
        _describe -V unsorted described -U
    fi
    if (( $#plain )); then
        compadd -U -V unsorted -a plain
    fi
}

if [[ $funcstack[1] == _%(prog_name)s ]]; then
    %(complete_func)s "$@"  # a file in fpath is the body of this function
else
    compdef %(complete_func)s %(prog_name)s
fi
"""


# Not click's script, which cuts values at a comma. Fish compares a completion with the whole word, so `--os=` has to be
# part of it.
_FISH = """\
function %(complete_func)s
    set -l word (commandline -ct)
    set -l option ""
    if string match -qr -- '^-[^=]*=' $word
        set option (string match -r -- '^-[^=]*=' $word)
    end
    set -l line (commandline -cp | string collect)
    for completion in (env %(complete_var)s=fish_complete COMP_WORDS=$line COMP_CWORD=$word %(prog_name)s)
        set -l answer (string split -m 1 "," -- $completion)
        switch $answer[1]
            case dir
                string join \\n -- "$option"(__fish_complete_directories $answer[2])
            case file
                string join \\n -- "$option"(__fish_complete_path $answer[2])
            case plain
                string join \\n -- "$option"$answer[2]
        end
    end
end

complete --command %(prog_name)s --no-files --keep-order --arguments "(%(complete_func)s)"
"""


def _fish() -> type[ShellComplete]:
    """Return click's completion for fish with the script above."""
    from click.shell_completion import FishComplete

    class Fish(FishComplete):
        source_template = _FISH

    return Fish


def _zsh() -> type[ShellComplete]:
    """Return click's completion for zsh with the script above."""
    from click.shell_completion import ZshComplete

    class Zsh(ZshComplete):
        source_template = _ZSH

    return Zsh


def _bash() -> type[ShellComplete]:
    """Return click's completion for bash with the script above, which supports words with colons."""
    from click.shell_completion import BashComplete, split_arg_string

    class Bash(BashComplete):
        source_template = _BASH

        def get_completion_args(self) -> tuple[list[str], str]:
            """Return the words before the current one, without the program, and the current one."""
            line = os.environ["COMP_WORDS"]
            words = [*split_arg_string(line), *([""] if line[-1:].isspace() else [])]
            return words[1:-1], words[-1]

    return Bash


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionFlags:
    """The argument of `envkit completion`."""

    shell: str = argument(type=click.Choice(tuple(INSTALL)))


@new_command("completion", CompletionFlags)
def command(flags: CompletionFlags) -> None:
    """Print the completion script for bash, zsh or fish.

    The script completes commands, options and values: image definitions, images, GPUs, operating systems, engines,
    sources, checks and documentation pages. Its first lines explain how to install it.

    \b
    envkit completion bash > ~/.local/share/bash-completion/completions/envkit
    envkit completion zsh > ~/.zfunc/_envkit
    envkit completion fish > ~/.config/fish/completions/envkit.fish
    """  # noqa: D301 - click reads "\b" as "do not join these lines"
    kind = {"bash": _bash, "zsh": _zsh, "fish": _fish}[flags.shell]()
    lines = kind(click.get_current_context().find_root().command, {}, PROGRAM, COMPLETE).source().splitlines()
    notes = [f"# {line}" for line in ("To install:", *INSTALL[flags.shell], "Then start a new shell.")]
    # zsh requires #compdef in the first line.
    start = 1 if lines[0].startswith("#compdef") else 0
    click.echo("\n".join([*lines[:start], *notes, *lines[start:]]))


def answer(group: click.Group, instruction: str) -> int:
    """Print the completions that a shell's script requests by its variables; return the exit code.

    Args:
        group: the commands.
        instruction: the value of COMPLETE, such as `bash_complete`.
    """
    from click.shell_completion import add_completion_class, shell_complete

    try:
        # Only for bash: zsh and fish have scripts of their own, but request completions as click expects.
        add_completion_class(_bash())
        return shell_complete(group, {}, PROGRAM, COMPLETE, instruction)
    except (click.ClickException, Ending, LookupError, OSError, ValueError):
        # The command line is incomplete, so errors are normal; a message would garble the line that is being typed.
        return 1
