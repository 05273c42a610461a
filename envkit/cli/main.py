"""The `envkit` group, its commands by name, and the one place where errors become exit codes."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from envkit import __version__
from envkit.cli import stdio
from envkit.cli.declare import COMPLETE, Section, SectionGroup, SectionOption, Verbosity
from envkit.ground import signals
from envkit.ground.errors import Ending, InterruptedRun, masked

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

# command -> (module, help line). The line stands here so that `--help` imports no command.
COMMANDS = {
    "init": ("envkit.cli.init", "Write an image definition from the files of a project."),
    "resolve": ("envkit.cli.resolve", "Find compatible versions of torch, CUDA, driver, GPU, Python and OS."),
    "install": ("envkit.cli.install", "Install torch for this machine into a virtual environment."),
    "matrix": ("envkit.cli.matrix", "Show and check the compatibility data with its sources."),
    "render": ("envkit.cli.render", "Write the Dockerfile and environment.yml of an image definition."),
    "lock": ("envkit.cli.lock", "Lock the exact packages of an image, with hashes, in one file."),
    "build": ("envkit.cli.build", "Build an image and verify it."),
    "push": ("envkit.cli.push", "Push a verified image by digest, then move its tags."),
    "verify": ("envkit.cli.verify", "Run the smoke benchmark in an image and judge the result."),
    "run": ("envkit.cli.run", "Run a command in an image with GPUs, folders, ports and your user."),
    "shell": ("envkit.cli.run", "Open a shell in an image."),
    "watch": ("envkit.cli.watch", "Run a training job unchanged and report its bottleneck."),
    "compare": ("envkit.cli.compare", "Check whether one image is slower than another (repeated runs)."),
    "attest": ("envkit.cli.attest", "Attach SBOM, provenance and verification records to an image."),
    "inspect": ("envkit.cli.inspect", "Show what is in an image and where it was verified."),
    "diff": ("envkit.cli.diff", "Show the differences between two images."),
    "cover": ("envkit.cli.cover", "Find the fewest images that serve all machines of an inventory."),
    "export": ("envkit.cli.export", "Generate CI, bake, Kubernetes, Slurm and dev container files."),
    "doctor": ("envkit.cli.doctor", "Find what is wrong with this machine, an image, a log or a record."),
    "cache": ("envkit.cli.cache", "Show and prune the caches of builds and runs on this machine."),
    "config": ("envkit.cli.config", "Show every setting and where its value comes from."),
    "schema": ("envkit.cli.schema", "Print the JSON Schema of a file that envkit reads or writes."),
    "validate": ("envkit.cli.schema", "Check definitions, matrix files, locks and settings."),
    "completion": ("envkit.cli.completion", "Print the completion script for bash, zsh or fish."),
    "version": ("envkit.cli.version", "Show the version of envkit and of its compatibility data."),
    "help": ("envkit.cli.help", "Show a page of the documentation, or list the pages."),
}
EXIT_CODES = {
    0: "done",
    2: "usage",
    3: "no compatible versions",
    4: "lock missing or stale",
    5: "not verified",
    6: "verification failed",
    7: "performance regression",
    8: "engine, push or pull failed",
    9: "environment problem",
    10: "checksum or signature mismatch",
    124: "time limit",
}
# Commands of other tools -> the envkit command that does the same. A test parses each of them.
SYNONYMS = {
    "add": "init",
    "analyze": "watch",
    "bench": "verify",
    "benchmark": "verify",
    "check": "verify",
    "clean": "cache prune",
    "compile": "lock",
    "create": "init",
    "dockerfile": "render",
    "exec": "run",
    "freeze": "lock",
    "generate": "render",
    "images": "render --list-images",
    "info": "doctor",
    "list": "render --list-images",
    "ls": "render --list-images",
    "new": "init",
    "profile": "watch",
    "prune": "cache prune",
    "publish": "push",
    "setup": "init",
    "show": "inspect",
    "solve": "resolve",
    "start": "run",
    "status": "doctor",
    "sync": "install",
    "template": "render",
    "test": "verify",
    "up": "run",
    "update": "lock",
    "upgrade": "lock",
    "upload": "push",
    "versions": "matrix list",
    "why": "resolve",
}


class LazyGroup(SectionGroup):
    """A group whose commands are imported when they are used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands in the order in which people use them, not alphabetically."""
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command, or fail with the nearest name."""
        if cmd_name not in COMMANDS:
            if ctx.resilient_parsing:  # a shell completes what follows an unknown command
                return None
            from envkit.cli.typos import unknown_command

            raise unknown_command(ctx, cmd_name, COMMANDS, SYNONYMS)
        module = importlib.import_module(COMMANDS[cmd_name][0])
        # A module may define a variant of its command, too: envkit.cli.run has `run` and `shell`.
        command: click.Command = next(
            value for value in vars(module).values() if isinstance(value, click.Command) and value.name == cmd_name
        )
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete a command from the table above, or an option."""
        from click.shell_completion import CompletionItem

        completions = [
            CompletionItem(name, help=text) for name, (_, text) in COMMANDS.items() if name.startswith(incomplete)
        ]
        return [*completions, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands from the table above."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


# "\b" keeps click from joining the example lines.
_HELP = """Choose compatible versions, build GPU images and verify them.

\b
envkit resolve --cuda 11.8     compatible torch, Python, driver and GPUs
envkit build --cuda 12.6       build the image and verify it
envkit verify                  verify the image that was built last
envkit run -- python train.py  run a command in it
envkit help                    guides and reference pages
"""


@click.group(
    cls=LazyGroup,
    help=_HELP,
    epilog=f"Exit codes: {', '.join(f'{code} {meaning}' for code, meaning in EXIT_CODES.items())}.",
)
@click.version_option(
    __version__, "-V", "--version", message="envkit %(version)s", cls=SectionOption, section=Section.GENERAL
)
def envkit() -> None:
    """The group of all commands; its help is `_HELP`."""


def run(arguments: Sequence[str]) -> int:
    """Run the command line and return its exit code; errors go to stderr, without a traceback unless it is a bug."""
    # As in `__main__`, for other callers; it also forgets the signal of an earlier run in this process.
    signals.raise_on(*signals.ENDING)
    verbosity = Verbosity()
    try:
        if instruction := os.environ.get(COMPLETE):
            from envkit.cli.completion import answer

            return answer(envkit, instruction)
        result = envkit.main(args=list(arguments), prog_name="envkit", standalone_mode=False, obj=verbosity)
        sys.stdout.flush()
        if not result:  # another exit code already reports a failure
            stdio.check_written()
    except (Exception, InterruptedRun) as error:  # noqa: BLE001 - the boundary: all become a message and an exit code
        # Code that was interrupted may have replaced the exception of the signal by one of its own.
        code = _explain(signals.received() or error, arguments)
        if verbosity.verbose:
            _show_causes(error)
        return code
    except KeyboardInterrupt:
        return _explain(InterruptedRun(signal.SIGINT))
    if (
        ended := signals.received()
    ) is not None:  # the code that was interrupted caught the exception as its own failure
        return _explain(ended)
    return result if isinstance(result, int) else 0


def _command(arguments: Sequence[str]) -> str:
    """Return the command to show help for, if the parser does not name it: `envkit resolve`."""
    return f"envkit {arguments[0]}" if arguments and arguments[0] in COMMANDS else "envkit"


def _explain(error: Exception | InterruptedRun, arguments: Sequence[str] = ()) -> int:
    code = 2
    match error:
        case click.exceptions.Exit():
            code = error.exit_code
        case click.Abort():
            code = _explain(InterruptedRun(signal.SIGINT))
        # The most specific classes first: this is a UsageError, which is a ClickException.
        case click.exceptions.NoArgsIsHelpError():
            _print_error(error.format_message())
        case click.UsageError():
            _show_usage(error, arguments)
        case click.ClickException():
            _show(error.format_message(), None, ())
        case Ending():
            _show(error.message, error.hint, error.details)
            code = error.exit_code
        case BrokenPipeError():
            # The reader closed the pipe (`| head`). With the old stdout, Python would report the error again at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            code = 0
        case FileNotFoundError() if not _has_folder():
            _show("the current folder was deleted", "cd to a folder that exists", ())
            code = 9
        case OSError():
            suffix = f": {error.filename}" if error.filename else ""
            _show(f"{error.strerror or error}{suffix}", "check the path, its permissions and the free disk space", ())
            code = 9
        case MemoryError():
            _show("not enough memory for this input", "free -m, ulimit -v", ())
            code = 9
        case RecursionError():
            _show("the input is nested too deeply", None, ())
        case _:
            _show_bug(error)
            code = 1
    return code


def _show_usage(error: click.UsageError, arguments: Sequence[str]) -> None:
    """Show what the parser refused, and the help of the command that it belongs to."""
    if isinstance(error, click.NoSuchOption) and error.ctx is not None:
        from envkit.cli.typos import unknown_option

        usage = unknown_option(error.ctx, error.option_name)
        _show(usage.message, usage.hint, ())
        return
    where = error.ctx.command_path if error.ctx else _command(arguments)
    text = error.format_message()
    # click's messages are sentences; envkit's begin in lower case and have no period.
    _show(f"{text[:1].lower()}{text[1:]}".removesuffix("."), f"{where} --help", ())


def _has_folder() -> bool:
    """Whether the current folder still exists."""
    try:
        os.getcwd()  # noqa: PTH109
    except FileNotFoundError:
        return False
    return True


def _show(message: str, hint: str | None, details: tuple[str, ...]) -> None:
    from envkit.cli.console import color
    from envkit.ground.text import neutral

    lines = [f"error: {message}", *(f"  {line}" for line in details)]
    if hint:
        lines += ["", f"hint: {hint}"]
    # Parts of the text may come from a registry, an image or a file (neutral), and the parser repeats what was typed,
    # which may contain a login (masked).
    lines = [neutral(masked(line)) for line in "\n".join(lines).split("\n")]
    if color(sys.stderr):
        colors = {"error:": "red", "hint:": "cyan"}
        words = ((line, line.partition(" ")[0]) for line in lines)
        lines = [
            click.style(word, fg=colors[word], bold=True) + line[len(word) :] if word in colors else line
            for line, word in words
        ]
    _print_error("\n".join(lines))


def _show_causes(error: BaseException) -> None:
    """Show the exceptions that led to an error, for `-v`."""
    from envkit.ground.text import neutral

    while (cause := error.__cause__ or (None if error.__suppress_context__ else error.__context__)) is not None:
        _print_error(f"caused by {type(cause).__name__}: {neutral(masked(str(cause)))}")
        error = cause


def _show_bug(error: Exception) -> None:
    import traceback

    _print_error("".join(traceback.format_exception(error)))
    _print_error(
        f"error: this is a bug in envkit {__version__}: {type(error).__name__}: {error}\n\n"
        "hint: report the lines above together with the command you typed"
    )


def _print_error(text: str) -> None:
    try:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()
    except (OSError, ValueError):  # stderr is closed: only the exit code reports the error
        return
