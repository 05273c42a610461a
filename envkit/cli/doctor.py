"""`envkit doctor`: find what is wrong with this machine, an image, a log or a verification record."""

from __future__ import annotations

import shutil
import sys
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from envkit.cli import shell_values
from envkit.cli.console import MODES, StepTimer, reporter_for
from envkit.cli.declare import Section, flag, new_command, option, quiet_option, verbose_option
from envkit.cli.image_names import IMAGE
from envkit.cli.options import PATH, deadline_of, timeout_option
from envkit.cli.output import print_json
from envkit.ground.engine_names import AUTO, STORES
from envkit.ground.errors import UsageError

if TYPE_CHECKING:
    from envkit.doctor.model import Diagnosis
    from envkit.ground.progress import Reporter
    from envkit.image.name import ImageName

_LOG_WIDTH = 160  # columns, where the output is not a terminal
_COLORS = {"error": "red", "warn": "yellow", "info": "cyan"}

_HELP = """Find problems and how to fix them.

\b
envkit doctor                      this machine: driver, GPUs, torch, engines, limits, disks, conda
envkit doctor --python PATH        the same, with the torch of another environment
envkit doctor --log train.log      a build or training log of any size; - is stdin
envkit doctor --image REF          an image, without running it
envkit doctor --record FILE        a verification record (envkit verify -o FILE)
envkit doctor --file Dockerfile    a Dockerfile or Compose file, without building it

Exit codes: 0 success (of a log: a cause is named, or the job ended well or runs); 5 the log shows a failure without a
known cause, or does not say how the job ended; 6 the image or the file has a problem; 9 some commands cannot
work on this machine (nothing builds or runs images, or envkit's folders are full). A missing GPU or driver is
reported, but not counted as an error.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorFlags:
    """The options of `envkit doctor`."""

    log: str | None = option(
        Section.INPUT,
        "--log FILE",
        shell_complete=shell_values.files,
        help="Find the cause of a failure in a log, which may be compressed with gzip; - is stdin.",
    )
    image: ImageName | None = option(
        Section.INPUT,
        "--image REF",
        type=IMAGE,
        shell_complete=shell_values.images,
        help="Check an image: a name in an engine, oci:DIR or docker-archive:FILE.",
    )
    record: Path | None = option(Section.INPUT, "--record FILE", type=PATH, help="Diagnose a verification record.")
    file: Path | None = option(
        Section.INPUT,
        "--file FILE",
        type=PATH,
        shell_complete=shell_values.files,
        help="Check a Dockerfile or Compose file without building it.",
    )
    runner: str | None = option(
        Section.INPUT,
        "--runner",
        type=click.Choice((AUTO, *STORES)),
        help="Engine that --image refers to.",
    )
    python: str | None = option(
        Section.INPUT, "--python PATH", help="Check the torch of this Python. [the active environment's]"
    )
    timeout: float | None = timeout_option()
    as_json: bool = flag(Section.OUTPUT, "--json", help="Print JSON (schema envkit.doctor/1).")
    progress: str | None = option(
        Section.GENERAL,
        "--progress",
        type=click.Choice(MODES),
        help="Progress output on stderr. [auto with --image, else quiet]",
    )
    quiet: bool = quiet_option()
    verbose: bool = verbose_option("Show the sources of each finding.")

    def check(self) -> None:
        """Refuse options that contradict each other.

        Raises:
            UsageError: two options contradict each other, one needs --image, or --python is not a program.
        """
        typed = {"--log": self.log, "--image": self.image, "--record": self.record, "--file": self.file}
        targets = [name for name, value in typed.items() if value is not None]
        if len(targets) > 1:
            raise UsageError(f"{' and '.join(targets)} contradict each other", hint=f"envkit doctor {targets[0]} ...")
        if self.runner is not None and self.image is None:
            raise UsageError("--runner needs --image", hint="envkit doctor --image REF --runner docker")
        if self.python is not None and targets:
            raise UsageError(f"--python is for this machine, not for {targets[0]}", hint="envkit doctor --python PATH")
        if self.python is not None and shutil.which(self.python) is None:
            message = f"--python {self.python}: no such program, or not executable"
            raise UsageError(message, hint="--python venv/bin/python")

    @property
    def mode(self) -> str:
        """The mode of the reporter; only images show progress by default, because their layers may be large."""
        return "quiet" if self.quiet else self.progress or ("quiet" if self.image is None else "auto")


@new_command("doctor", DoctorFlags, help=_HELP)
def command(flags: DoctorFlags) -> int:
    """See `_HELP`."""
    flags.check()
    with closing(StepTimer(reporter_for(flags.mode))) as reporter, deadline_of(flags.timeout, reporter).holds():
        if flags.log is not None:
            diagnosis = _log(flags.log)
        elif flags.record is not None:
            diagnosis = _record(flags.record)
        elif flags.file is not None:
            diagnosis = _file(flags.file)
        elif flags.image is not None:
            diagnosis = _image(flags.image, flags.runner or "auto", reporter)
        else:
            diagnosis = _host(reporter, flags.python)
    if flags.as_json:
        print_json(diagnosis.to_json())
    else:
        _show(diagnosis, verbose=flags.verbose)
    return diagnosis.exit_code


def _log(name: str) -> Diagnosis:
    from envkit.doctor.logs import diagnose_log
    from envkit.ground import foreign

    try:
        if name == "-":
            return diagnose_log(sys.stdin.buffer, "stdin")  # type: ignore[arg-type]  # a BufferedReader, unless replaced
        with foreign.stream(Path(name)) as file:
            return diagnose_log(file, name)
    except (OSError, EOFError) as error:  # EOFError: a log in gzip format that is cut short
        reason = str(getattr(error, "strerror", None) or error).lower()
        raise UsageError(f"{name}: {reason}", hint=f"ls -l {name}") from error


def _record(path: Path) -> Diagnosis:
    from envkit.doctor.records import diagnose_record, read_record

    return diagnose_record(read_record(path), str(path))


def _file(path: Path) -> Diagnosis:
    from envkit.cli.options import load_facts
    from envkit.doctor.files import diagnose_file

    return diagnose_file(path, load_facts(None))


def _image(name: ImageName, runner: str, reporter: Reporter) -> Diagnosis:
    from envkit.doctor.images.diagnose import diagnose_image

    return diagnose_image(name, runner, reporter)


def _host(reporter: Reporter, python: str | None) -> Diagnosis:
    from envkit.cli.options import load_settings
    from envkit.doctor.host.diagnose import diagnose_host
    from envkit.doctor.host.view import this_machine
    from envkit.ground import paths

    resolved = load_settings()
    cli = resolved.get("docker_cli") or "docker"
    return diagnose_host(this_machine(), reporter, state=paths.state_dir(), docker_cli=cli, python=python)


def _show(diagnosis: Diagnosis, *, verbose: bool) -> None:
    from envkit.cli.console import color, columns
    from envkit.doctor.text import lines
    from envkit.ground.text import neutral

    width = columns(sys.stdout) or _LOG_WIDTH
    for text, severity in lines(diagnosis, width=width, verbose=verbose):
        clean = neutral(text)
        if severity is not None and color():
            clean = clean.replace(severity, click.style(severity, fg=_COLORS[severity], bold=True), 1)
        click.echo(clean)
