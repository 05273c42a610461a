"""`envkit doctor`: what is wrong with this machine, an image, a log or a verify record."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from envkit.cli.limit import Limit, limit_option

if TYPE_CHECKING:
    from envkit.doctor.model import Diagnosis
    from envkit.ground.progress import Reporter

_MAX_WIDTH = 120
_LOG_WIDTH = 160
_COLORS = {"error": "red", "warn": "yellow", "info": "cyan"}

_HELP = """Say what is wrong here, and what to change.

\b
envkit doctor                      this machine: driver, GPUs, torch, engines, limits, disks, conda
envkit doctor --python PATH        the same, with the torch of another environment
envkit doctor --log train.log      a build or training log, however large; - is stdin
envkit doctor --image REF          an image, without running it
envkit doctor --record FILE        a verify record (envkit verify -o FILE)

Exit codes: 0 answered; 5 the log has faults and none is known; 6 the image has a fault; 9 envkit cannot work on this
machine (nothing builds, nothing runs an image, or its folders are full). A missing GPU or driver is reported, and is 0.
"""


@click.command("doctor", help=_HELP)
@click.option("--log", "log", metavar="FILE", help="Name the cause of failures in a log; - is stdin, gzip is read.")
@click.option("--image", metavar="REF", help="Look at an image: a name in an engine, oci:DIR or docker-archive:FILE.")
@click.option("--record", metavar="FILE", type=click.Path(path_type=Path), help="Diagnose a verify record.")
@click.option("--runner", type=click.Choice(["auto", "docker", "podman"]), help="Engine of --image.")
@click.option("--python", metavar="PATH", help="Look at the torch of this Python. [the active environment's]")
@limit_option()
@click.option("--json", "as_json", is_flag=True, help="Print JSON (schema envkit.doctor/1).")
@click.option(
    "--progress",
    type=click.Choice(["auto", "plain", "quiet", "json"]),
    help="Talk on stderr. Default: auto for --image, whose layers may be large, else quiet.",
)
@click.option("-v", "--verbose", is_flag=True, help="Show the sources of what is said.")
def command(
    *,
    log: str | None,
    image: str | None,
    record: Path | None,
    runner: str | None,
    python: str | None,
    timeout: float | None,
    as_json: bool,
    progress: str | None,
    verbose: bool,
) -> int:
    """See `_HELP`."""
    import json

    from envkit.cli.console import reporter_for
    from envkit.cli.step_timer import StepTimer
    from envkit.ground.errors import UsageError

    asked = [name for name, value in (("--log", log), ("--image", image), ("--record", record)) if value is not None]
    if len(asked) > 1:
        raise UsageError(f"{' and '.join(asked)} together: one thing at a time", hint=f"envkit doctor {asked[0]} ...")
    if runner is not None and image is None:
        raise UsageError("--runner is for --image", hint="envkit doctor --image REF --runner docker")
    if python is not None and asked:
        raise UsageError(f"--python is about this machine, not about {asked[0]}", hint="envkit doctor --python PATH")
    if python is not None and shutil.which(python) is None:
        raise UsageError(f"--python {python}: no such program, or not executable", hint="--python venv/bin/python")
    reporter = StepTimer(reporter_for(progress or ("quiet" if image is None else "auto")))
    try:
        with Limit(timeout, lambda: reporter.current).holds():
            if log is not None:
                diagnosis = _log(log)
            elif record is not None:
                diagnosis = _record(record)
            elif image is not None:
                diagnosis = _image(image, runner or "auto", reporter)
            else:
                diagnosis = _host(reporter, python)
    finally:
        reporter.close()
    if as_json:
        click.echo(json.dumps(diagnosis.to_json(), indent=2, ensure_ascii=False))
    else:
        _show(diagnosis, verbose=verbose)
    return diagnosis.exit_code


def _log(name: str) -> Diagnosis:
    from envkit.doctor.logs import diagnose_log
    from envkit.ground.errors import UsageError

    try:
        if name == "-":
            return diagnose_log(sys.stdin.buffer, "stdin")  # type: ignore[arg-type]  # a BufferedReader, unless replaced
        with Path(name).open("rb") as file:
            return diagnose_log(file, name)
    except (OSError, EOFError) as error:
        reason = str(getattr(error, "strerror", None) or error).lower()
        raise UsageError(f"{name}: {reason}", hint=f"ls -l {name}") from error


def _record(path: Path) -> Diagnosis:
    from envkit.doctor.records import diagnose_record, read_record

    return diagnose_record(read_record(path), str(path))


def _image(reference: str, runner: str, reporter: Reporter) -> Diagnosis:
    from envkit.doctor.images.diagnose import diagnose_image

    return diagnose_image(reference, runner, reporter)


def _host(reporter: Reporter, python: str | None) -> Diagnosis:
    from envkit.cli import configured
    from envkit.doctor.host.diagnose import diagnose_host
    from envkit.doctor.host.view import this_machine
    from envkit.ground import paths

    resolved = configured.load()
    cli = resolved.get("docker_cli") or "docker"
    return diagnose_host(this_machine(), reporter, state=paths.state_dir(), docker_cli=cli, python=python)


def _show(diagnosis: Diagnosis, *, verbose: bool) -> None:
    from envkit.cli.console import color
    from envkit.doctor.text import lines
    from envkit.ground.text import neutral

    terminal = sys.stdout.isatty()
    width = min(shutil.get_terminal_size((80, 24)).columns, _MAX_WIDTH) if terminal else _LOG_WIDTH
    for text, severity in lines(diagnosis, width=width, verbose=verbose):
        clean = neutral(text)
        if severity is not None and color():
            clean = clean.replace(severity, click.style(severity, fg=_COLORS[severity], bold=True), 1)
        click.echo(clean)
