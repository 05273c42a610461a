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
from envkit.cli.completion import COMPLETE, answer
from envkit.cli.declare import Section, SectionGroup, SectionOption, Verbosity
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
    "lock": ("envkit.cli.lock", "Solve an image's exact packages, with hashes, into one file."),
    "build": ("envkit.cli.build", "Build an image and verify it."),
    "push": ("envkit.cli.push", "Push a verified image to a registry, by digest; tags move last."),
    "verify": ("envkit.cli.verify", "Run the smoke benchmark inside an image and judge it."),
    "run": ("envkit.cli.run", "Run a command in an image with GPUs, folders, ports and your user."),
    "shell": ("envkit.cli.run", "Open a shell in an image."),
    "watch": ("envkit.cli.watch", "Run a training unchanged and say what holds it back."),
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
    "validate": ("envkit.cli.validate", "Check definitions, matrix files, locks and settings."),
    "completion": ("envkit.cli.completion", "Print the script that completes envkit's words in a shell."),
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
# What people type, by habit of other tools, and the command that does it. A test runs the parser on each.
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
        """Return the commands in the order of the work, not of the alphabet."""
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command, or fail with the nearest name."""
        if cmd_name not in COMMANDS:
            if ctx.resilient_parsing:  # a shell completes words behind it
                return None
            from envkit.cli.typos import unknown_command

            raise unknown_command(ctx, cmd_name, COMMANDS, SYNONYMS)
        module = importlib.import_module(COMMANDS[cmd_name][0])
        # A module has one command, or a second one that is a form of it and has its own name.
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
envkit verify                  verify the last built image
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
    """Hold the commands; each is a module of this package."""


def run(arguments: Sequence[str]) -> int:
    """Run the command line and return its exit code; errors go to stderr, without a traceback unless it is a bug."""
    signals.raise_on(*signals.ENDING)
    verbosity = Verbosity()
    try:
        if asked := os.environ.get(COMPLETE):
            return answer(envkit, asked)
        if any(word.startswith("--json") for word in arguments):
            from envkit.cli.output import check_json

            check_json(arguments)
        result = envkit.main(args=list(arguments), prog_name="envkit", standalone_mode=False, obj=verbosity)
        sys.stdout.flush()
        if not result:
            stdio.check_written()
    except (Exception, InterruptedRun) as error:  # noqa: BLE001 - the boundary: all become a message and an exit code
        code = _explain(signals.received() or error, arguments)
        if verbosity.verbose:
            _show_causes(error)
        return code
    except KeyboardInterrupt:
        return _explain(InterruptedRun(signal.SIGINT))
    if (ended := signals.received()) is not None:  # some code on the way took it for its own failure
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
        case click.exceptions.NoArgsIsHelpError():
            _say(error.format_message())
        case click.UsageError():
            _show_usage(error, arguments)
        case click.ClickException():
            _show(error.format_message(), None, ())
        case Ending():
            _show(error.message, error.hint, error.details)
            code = error.exit_code
        case BrokenPipeError():
            # The reader went away (`| head`); nothing is left to say, and Python would complain while closing.
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

        meant = unknown_option(error.ctx, error.option_name)
        _show(meant.message, meant.hint, ())
        return
    where = error.ctx.command_path if error.ctx else _command(arguments)
    text = error.format_message()
    # click writes sentences; errors of envkit are none.
    _show(f"{text[:1].lower()}{text[1:]}".removesuffix("."), f"{where} --help", ())


def _has_folder() -> bool:
    """Whether the current folder still exists."""
    try:
        os.getcwd()  # noqa: PTH109
    except FileNotFoundError:
        return False
    return True


def _show(message: str, hint: str | None, details: tuple[str, ...]) -> None:
    from envkit.ground.text import neutral

    lines = [f"error: {message}", *(f"  {line}" for line in details)]
    if hint:
        lines += ["", f"hint: {hint}"]
    # A registry, an image or a file may have chosen some of these words.
    # What the parser refuses is repeated by it, with the login that may be in it.
    _say("\n".join(neutral(masked(line)) for line in "\n".join(lines).split("\n")))


def _show_causes(error: BaseException) -> None:
    """Show what led to an error: `-v` asks for it."""
    from envkit.ground.text import neutral

    while (cause := error.__cause__ or error.__context__) is not None:
        _say(f"caused by {type(cause).__name__}: {neutral(masked(str(cause)))}")
        error = cause


def _show_bug(error: Exception) -> None:
    import traceback

    _say("".join(traceback.format_exception(error)))
    _say(
        f"error: this is a bug in envkit {__version__}: {type(error).__name__}: {error}\n\n"
        "hint: report the lines above together with the command you typed"
    )


def _say(text: str) -> None:
    try:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()
    except (OSError, ValueError):  # stderr is closed: the exit code has to speak
        return
