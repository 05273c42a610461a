"""`envkit verify --trace FILE`: keep the profile that the payload took."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

trace_option = click.option(
    "--trace",
    "trace_file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write a profile of a small training job here, for chrome://tracing or Perfetto; .gz stays packed.",
)


def keep_trace(path: Path, documents: Sequence[Mapping[str, Any] | None], exit_code: int) -> int:
    """Write the trace of the run's document and return the run's `exit_code`.

    Raises:
        PayloadError: all else went well and there is no trace.
        EnvironmentProblem: all else went well and the file cannot be written.
    """
    from envkit.ground.errors import EnvironmentProblem, EnvkitError
    from envkit.verify.trace import packed_trace, write_trace

    try:
        packed = packed_trace(documents[-1] if documents else None)
        try:
            write_trace(packed, path)
        except OSError as error:
            message = f"the trace cannot be written to {path}: {error.strerror or error}"
            raise EnvironmentProblem(message, hint="give --trace a file in a folder that can be written") from error
    except EnvkitError as error:
        if exit_code == 0:
            raise
        click.echo(f"error: {error.message}", err=True)
        return exit_code
    click.echo(f"trace: {path}", err=True)
    return exit_code
