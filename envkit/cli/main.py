"""The `envkit` group, its verbs by name, and the one place where failures become exit codes."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Sequence

import click

from envkit import __version__
from envkit.cli import stdio
from envkit.ground import signals
from envkit.ground.errors import Ending, InterruptedRun, masked

# verb -> (module, help line). The line stands here so that `--help` imports no verb.
VERBS = {
    "resolve": ("envkit.cli.resolve", "Find the torch, CUDA, driver, GPU, Python and OS combination that fits."),
    "matrix": ("envkit.cli.matrix", "Show the facts with their sources, and check them."),
    "render": ("envkit.cli.render", "Write the Dockerfile and environment.yml of an image definition."),
    "lock": ("envkit.cli.lock", "Solve the exact packages of an image, with hashes, into one file."),
    "build": ("envkit.cli.build", "Build an image and prove it."),
    "push": ("envkit.cli.push", "Push a proved image to a registry, by digest; its tags move last."),
    "verify": ("envkit.cli.verify", "Run the smoke benchmark inside an image and judge it."),
    "compare": ("envkit.cli.compare", "Say whether one image is slower than another, launch by launch."),
    "attest": ("envkit.cli.attest", "Attach to an image what it holds, how it was made and where it was proved."),
    "inspect": ("envkit.cli.inspect", "Say what an image holds, which machines proved it, and what was never tried."),
    "diff": ("envkit.cli.diff", "Say what tells two images apart: packages, CUDA stack, settings, layers."),
    "cover": ("envkit.cli.cover", "Find the fewest images that serve all machines of an inventory."),
    "export": ("envkit.cli.export", "Write the job for bake, GitHub, GitLab or another engine to run."),
    "doctor": ("envkit.cli.doctor", "Say what is wrong with this machine, an image, a log or a record."),
    "cache": ("envkit.cli.cache", "Show and prune what builds and runs keep on this machine."),
    "config": ("envkit.cli.config", "Show every setting and where its value comes from."),
}


class LazyGroup(click.Group):
    """A group whose verbs are imported when they are used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Verbs in the order of the work, not of the alphabet."""
        del ctx
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a verb, or fail with the nearest one."""
        if cmd_name not in VERBS:
            import difflib

            close = difflib.get_close_matches(cmd_name, VERBS, n=1)
            hint = f"did you mean `envkit {close[0]}`?" if close else "`envkit --help` lists the verbs"
            raise click.UsageError(f"no verb {cmd_name!r}; {hint}", ctx=ctx)
        command: click.Command = importlib.import_module(VERBS[cmd_name][0]).command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs from the table above."""
        del ctx
        with formatter.section("Verbs"):
            formatter.write_dl([(verb, text) for verb, (_, text) in VERBS.items()])


# "\b" keeps click from joining the example lines.
_HELP = """Resolve, build and prove GPU environments.

\b
envkit resolve --cuda 11.8     which torch, Python, driver and GPUs go with it
envkit build --cuda 12.6       make the image and prove it
envkit verify                  prove what was built last
"""


@click.group(
    cls=LazyGroup,
    help=_HELP,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 done, 2 usage, 3 no combination, 4 lock missing or stale, 5 not verified, "
    "6 verification failed, 7 performance regression, 8 engine, 9 surroundings, 10 integrity, 124 time limit.",
)
@click.version_option(__version__, message="envkit %(version)s")
def envkit() -> None:
    """Hold the verbs; each is a module of this package."""


def run(arguments: Sequence[str]) -> int:
    """Run the command line and give its exit code; prints failures on stderr, never a traceback for a user's fault."""
    signals.raise_on(*signals.ENDING)
    try:
        if any(word.startswith("--json") for word in arguments):
            from envkit.cli.output import check_json

            check_json(arguments)
        result = envkit.main(args=list(arguments), prog_name="envkit", standalone_mode=False)
        sys.stdout.flush()
        if not result:
            stdio.check_written()
    except (Exception, InterruptedRun) as error:  # noqa: BLE001 - the boundary: all become a message and an exit code
        return _explain(signals.came() or error, arguments)
    except KeyboardInterrupt:
        return _explain(InterruptedRun(signal.SIGINT))
    if (ended := signals.came()) is not None:  # some code on the way took it for its own failure
        return _explain(ended)
    return result if isinstance(result, int) else 0


def _verb(arguments: Sequence[str]) -> str:
    """The command whose help is worth reading, where the parser does not say it: `envkit resolve`."""
    return f"envkit {arguments[0]}" if arguments and arguments[0] in VERBS else "envkit"


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
            where = error.ctx.command_path if error.ctx else _verb(arguments)
            _show(error.format_message(), f"{where} --help", ())
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
            place = f": {error.filename}" if error.filename else ""
            _show(f"{error.strerror or error}{place}", "check the path, its permissions and the free disk space", ())
            code = 9
        case MemoryError():
            _show("there is not enough memory for this input", "free -m, ulimit -v", ())
            code = 9
        case RecursionError():
            _show("the input is nested too deeply", None, ())
        case _:
            _show_bug(error)
            code = 1
    return code


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
