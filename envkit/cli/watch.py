"""`envkit watch`: run a training job unchanged and report its bottleneck."""

from __future__ import annotations

import shlex
import sys
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from envkit.cli import shell_values
from envkit.cli.declare import Section, argument, group, new_command, option, quiet_option
from envkit.cli.image_names import IMAGE
from envkit.cli.options import PATH, STDOUT, DocumentOptions, ProgressOptions, Seconds, document_options, noted
from envkit.cli.output import page_option, show_table, write_document
from envkit.cli.run import SessionOptions, WithCommand, own_image
from envkit.ground.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from envkit.image.name import ImageName
    from envkit.run.session import Session
    from envkit.watch.judge import Judgment
    from envkit.watch.model import Record

_SECONDS = 30.0  # enough steps of most trainings for a judgment
_LOG_WIDTH = 100  # columns, where stderr is not a terminal

_HELP = """Run a training job unchanged and report its bottleneck, with measurements and what to change.

\b
envkit watch -- python train.py --epochs 2     run it and print the result
envkit watch -o A.json -- torchrun ... t.py    also save the record
envkit watch train:1 -- python train.py        the same in an image
envkit watch . -- python train.py              in an image for the project in this folder (see envkit run)
envkit watch --advise-only 4711                observe a running process
envkit watch --compare A.json B.json           compare two records

COMMAND can be any program; every Python process below it is observed, including all ranks and workers. A few batches of
a second or two are not enough: let it run for half a minute or more, then stop it with Ctrl-C. The result is printed to
stderr; with --json, so is the output of COMMAND.

The result is data-bound, copy-bound, launch-bound, compute-bound, communication-bound, memory-bound, CPU-starved,
throttled, or that no bottleneck was found. The exit code is that of COMMAND (128+n for signal n), and 0 with
--advise-only and --compare.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchFlags:
    """The options of `envkit watch`."""

    words: tuple[ImageName, ...] = argument(
        nargs=-1, metavar="[IMAGE] -- COMMAND [ARGUMENT...]", type=IMAGE, shell_complete=shell_values.images
    )
    argv: tuple[str, ...]  # the words after --, from `WithCommand`
    pid: int | None = option(
        Section.INPUT,
        "--advise-only PID",
        type=click.IntRange(min=1),
        help="Observe this running process from outside.",
    )
    seconds: float | None = option(
        Section.INPUT, "--seconds SECONDS", type=Seconds(), help=f"How long --advise-only observes. [{_SECONDS:g}]"
    )
    compare: tuple[Path, Path] | None = option(
        Section.INPUT, "--compare A B", nargs=2, type=PATH, help="Compare two records."
    )
    page: Path | None = page_option("Write a page with the timeline.")
    session: SessionOptions = group(SessionOptions)
    quiet: bool = quiet_option("Print only errors and the first line of the result.")
    document: DocumentOptions = document_options("the record with the result (schema envkit.watch/1)")

    @property
    def image(self) -> ImageName | None:
        """The image in which COMMAND runs; None = on this machine."""
        return self.words[0] if self.words else None

    def check(self) -> None:
        """Refuse options that contradict each other, and a missing COMMAND.

        Raises:
            UsageError: the options are not one of the forms in the help.
        """
        choices = {"COMMAND": self.argv or None, "--advise-only": self.pid, "--compare": self.compare}
        modes = [name for name, value in choices.items() if value is not None]
        if not modes:
            words = [word.typed for word in self.words] or ("python", "train.py")
            raise UsageError("missing COMMAND", hint=f"envkit watch -- {shlex.join(words)}")
        if len(modes) > 1:
            raise UsageError(f"{' and '.join(modes)} contradict each other", hint="give one of them")
        command = shlex.join(self.argv or ("COMMAND",))
        if len(self.words) > 1 or (self.words and not self.argv):
            word = self.words[-1].typed
            raise UsageError(f"unexpected argument {word!r:.200}", hint=f"envkit watch IMAGE -- {command}")
        if self.session.typed and self.image is None:
            raise UsageError(f"{self.session.typed[0]} needs an IMAGE", hint=f"envkit watch IMAGE -- {command}")
        if self.seconds is not None and self.pid is None:
            raise UsageError(
                "--seconds needs --advise-only", hint=f"envkit watch --advise-only PID --seconds {self.seconds:g}"
            )
        if self.page is not None and self.compare is not None:
            raise UsageError("--report is for one record, not for --compare", hint="leave --report out")


@new_command("watch", WatchFlags, cls=WithCommand, help=_HELP)
def command(flags: WatchFlags) -> int:
    """See `_HELP`."""
    flags.check()
    target = flags.document.target()
    if flags.compare is not None:
        return _compare(*flags.compare, target)

    from envkit.watch import running
    from envkit.watch.judge import judge

    if flags.pid is not None:
        record = running.attach(flags.pid, flags.seconds or _SECONDS)
    else:
        # A program that reads the document from stdout must not find the training's output in it.
        stdout = sys.stderr.fileno() if target == STDOUT else None
        record = running.run(flags.argv, stdout=stdout) if flags.image is None else _run_inside(flags, stdout)
    judgment = judge(record)
    _show(record, judgment, quiet=flags.quiet)
    if flags.page is not None:
        from envkit.watch.page import render_html

        write_document(render_html(record, judgment), str(flags.page), done="the training ended")
    write_document({**record.to_json(), "judgment": judgment.to_json()}, target, done="the training ended")
    return record.exit_code or 0


def _run_inside(flags: WatchFlags, stdout: int | None) -> Record:
    """Run COMMAND in the image as `envkit run` does."""
    from envkit.ground.text import neutral
    from envkit.pipeline.machine import settings_here
    from envkit.pipeline.running import ready
    from envkit.run.attach import attach
    from envkit.watch import running

    settings = noted(settings_here(flags.session.runner))
    terminal = stdout is None and sys.stdin.isatty() and sys.stdout.isatty()
    progress = ProgressOptions(progress="auto", quiet=flags.quiet, verbose=False)
    with ExitStack() as until:
        with closing(progress.reporter()) as reporter:
            request = flags.session.request(flags.image, flags.argv, terminal=terminal)
            request, last = own_image(request, settings, reporter)
            prepared = ready(request, settings, reporter, until, last=last)
        if not flags.quiet:
            for line in prepared.lines:
                click.echo(neutral(line), err=True)
        docker = settings.get("docker_cli") or "docker"

        def start(session: Session) -> int:
            return attach(prepared.runner, session, reporter, secrets=prepared.secrets, docker=docker)

        return running.run_inside(prepared, start, flags.argv, stdout=stdout)


def _compare(first: Path, second: Path, target: str | None) -> int:
    from envkit.watch.judge import judge_file
    from envkit.watch.text import compared

    judged = [judge_file(path) for path in (first, second)]
    rows = compared(judged[0], judged[1])
    if target is None:
        show_table(["", str(first), str(second), "ratio"], rows)
        return 0
    document = {
        "schema": "envkit.watch-comparison/1",
        "records": [
            {"file": str(path), **judgment.to_json(), "step_s": judgment.measures.step_s}
            for path, judgment in zip((first, second), judged, strict=True)
        ],
    }
    write_document(document, target)
    return 0


def _show(record: Record, judgment: Judgment, *, quiet: bool) -> None:
    """Print the result to stderr, because stdout belongs to the training."""
    from envkit.cli.console import color, columns
    from envkit.ground.text import neutral
    from envkit.watch.text import lines

    terminal = sys.stderr.isatty()
    width = columns(sys.stderr) or _LOG_WIDTH
    text_lines: Sequence[str] = [neutral(line) for line in lines(record, judgment, width=width)]
    text_lines = text_lines[:1] if quiet else text_lines
    first = click.style(text_lines[0], bold=True) if color() and terminal else text_lines[0]
    click.echo("\n".join(["", first, *text_lines[1:]]), err=True, color=color() and terminal)
