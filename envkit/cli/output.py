"""The output of a command: tables on stdout, and the JSON document (`--json`, `-o FILE`)."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import click

from envkit.cli.console import show
from envkit.cli.declare import Section, option
from envkit.cli.options import STDOUT
from envkit.ground.errors import Ending, EnvironmentProblem, EnvkitError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

_NARROWEST = 20  # columns of a wrapped cell


def write_document(document: Mapping[str, Any] | bytes, target: str | None, *, done: str | None = None) -> None:
    """Print the document or write it to a file.

    Args:
        document: a JSON-ready tree, or its bytes.
        target: as `DocumentOptions.target` returned it; nothing happens for None.
        done: what was done although the file cannot be written, for the error.

    Raises:
        EnvironmentProblem: the file cannot be written.
    """
    from envkit.ground.store import write_atomic

    if target is None:
        return
    if not isinstance(document, bytes):
        # allow_nan: JSON has no NaN, but Python would write it.
        document = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False).encode() + b"\n"
    if target == STDOUT:
        click.echo(document, nl=False)
        return
    try:
        write_atomic(Path(target), document)
    except OSError as error:
        raise EnvironmentProblem(
            f"-o {target}: {error.strerror or error}" + (f"; {done}" if done else ""),
            hint="name a file in a writable folder",
        ) from error


def page_option(text: str) -> Any:
    """Declare a field, a path or None, as `--report html=FILE` for a command whose only report is an HTML page."""
    return option(Section.OUTPUT, "--report html=FILE", callback=_page, help=text)


def _page(context: click.Context, _option: click.Parameter, typed: str | None) -> Path | None:
    if typed is None:
        return None
    kind, _, file = typed.partition("=")
    if kind != "html" or not file or file == STDOUT:
        name = context.command.name or "report"
        raise UsageError(
            f"--report {typed!r:.200}: this command only writes html=FILE", hint=f"--report html={name}.html"
        )
    if Path(file).is_dir():
        raise UsageError(
            f"--report {typed!r:.200}: {file} is a folder", hint=f"--report html={file.rstrip('/')}/report.html"
        )
    return Path(file)


class FailureDocument:
    """Writes a document with the error if a command fails before it has a result.

    Args:
        target: as `DocumentOptions.target` returned it.
        schema: the schema of the document.
    """

    def __init__(self, target: str | None, schema: str) -> None:
        self._target = target
        self.known: dict[str, Any] = {"schema": schema}  # the command adds fields as it learns them
        self.settled = False  # set by the command when it writes its own document from there on

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Ending) and not self.settled:
            with contextlib.suppress(EnvkitError):  # a failure to write must not hide the error itself
                write_document({**self.known, "failure": failure_of(error)}, self._target)


def failure_of(error: Ending) -> dict[str, Any]:
    """Return an error as the field `failure` of a document."""
    return {
        "message": error.message,
        "hint": error.hint,
        "details": list(error.details),
        "exit_code": error.exit_code,
    }


def print_json(tree: Mapping[str, Any], *, ascii_only: bool = False) -> None:
    """Print a document to stdout; `ascii_only` escapes all other characters, for text that comes from an image."""
    click.echo(json.dumps(tree, indent=2, ensure_ascii=ascii_only, allow_nan=False))


# Tables.


def show_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, title: str | None = None) -> None:
    """Print rows of text under their column names, without columns that are empty in every row."""
    from envkit.ground.text import aligned, cells, neutral, without_empty

    table = [[neutral(cell) for cell in row] for row in without_empty(columns, rows)]
    lines = aligned(table)
    if table and sys.stdout.isatty():
        import shutil

        width = shutil.get_terminal_size().columns
        last = max(cells(row[-1]) for row in table)
        # Only the last column is wrapped; the others have to leave it enough room.
        if width - (max(map(cells, lines)) - last) >= min(last, _NARROWEST) + 2:
            _ruled(table[0], table[1:], title)
            return
    if title:
        click.echo(title)
    for line in lines:
        show(line)


def _ruled(names: Sequence[str], rows: Sequence[Sequence[str]], title: str | None) -> None:
    """Print a ruled table; its last column is wrapped to the terminal."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*names, title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for row in rows:
        # Text: rich reads `[...]` in a str as markup.
        table.add_row(*(Text(cell, no_wrap=True) for cell in row[:-1]), Text(row[-1]))
    Console(no_color=bool(os.environ.get("NO_COLOR")), highlight=False).print(table)
