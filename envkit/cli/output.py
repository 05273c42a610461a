"""What a command answers: one table on stdout, and its JSON document (`--json`, `-o FILE`)."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

import click

from envkit.cli.console import show
from envkit.cli.declare import Section, option
from envkit.cli.options import STDOUT
from envkit.ground.errors import Ending, EnvironmentProblem, EnvkitError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

_Command = TypeVar("_Command", bound="Callable[..., object]")
_NARROWEST = 20  # columns of a wrapped cell
_WRITERS = ("verify", "build", "push", "compare")  # commands with `-o FILE`


def write_document(document: Mapping[str, Any] | bytes, target: str | None, *, done: str | None = None) -> None:
    """Print the document or write its file; nothing for None.

    Args:
        document: a JSON-ready tree, or its bytes.
        target: as `target_of` returned it.
        done: what stands although the file cannot be written, for the message.

    Raises:
        EnvironmentProblem: the file cannot be written.
    """
    from envkit.ground.store import write_atomic

    if target is None:
        return
    if not isinstance(document, bytes):
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


def page_option(text: str) -> Callable[[_Command], _Command]:
    """Return `--report html=FILE` for a command whose only report is a page; its argument is `page`, a path or None."""
    return option(Section.OUTPUT, "--report", "page", metavar="html=FILE", callback=_page, help=text)


def _page(context: click.Context, _option: click.Parameter, typed: str | None) -> Path | None:
    if typed is None:
        return None
    kind, _, file = typed.partition("=")
    if kind != "html" or not file or file == STDOUT:
        name = context.command.name or "report"
        raise UsageError(
            f"--report {typed!r:.200}: the only kind is html, to a file", hint=f"--report html={name}.html"
        )
    if Path(file).is_dir():
        raise UsageError(
            f"--report {typed!r:.200}: {file} is a folder", hint=f"--report html={file.rstrip('/')}/report.html"
        )
    return Path(file)


class FailureDocument:
    """Writes the document of a command that fails before it has a result, so that its reader learns why.

    Args:
        target: as `target_of` returned it.
        schema: of the document.
    """

    def __init__(self, target: str | None, schema: str) -> None:
        self._target = target
        self.known: dict[str, Any] = {"schema": schema}  # the command adds what it knows
        self.settled = False  # the command writes its own document from here on

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Ending) and not self.settled:
            with contextlib.suppress(EnvkitError):  # the error itself is what has to be told
                write_document({**self.known, "failure": failure_of(error)}, self._target)


def failure_of(error: Ending) -> dict[str, Any]:
    """Return an error as documents have it."""
    return {
        "message": error.message,
        "hint": error.hint,
        "details": list(error.details),
        "exit_code": error.exit_code,
    }


def check_json(arguments: Sequence[str]) -> None:
    """Refuse `--json FILE` and `--json=FILE`, which earlier versions took.

    Records and reports end in `.json`, and no image, definition or lock does. `compare` takes records by name and
    checks its own arguments.

    Raises:
        UsageError: a file or `-` follows `--json`.
    """
    command = arguments[0] if arguments else ""
    for at, word in enumerate(arguments):
        if word == "--":
            return
        if word.startswith("--json="):
            raise takes_no_file(word.removeprefix("--json="), [*arguments[:at], *arguments[at + 1 :]])
        if word == "--json" and at + 1 < len(arguments):
            follows = arguments[at + 1]
            if follows == STDOUT or (follows.endswith(".json") and command != "compare"):
                raise takes_no_file(follows, [*arguments[:at], *arguments[at + 2 :]])


def takes_no_file(file: str, words: Sequence[str]) -> UsageError:
    """Return the error for `--json FILE`, with the command to type instead; `words` are the others that were typed."""
    typed = f"envkit {shlex.join(words)}"
    if file in ("", STDOUT):
        return UsageError(f"--json takes no value, and {file!r} follows it", hint=f"{typed} --json")
    instead = f"{typed} -o {shlex.quote(file)}" if words[0] in _WRITERS else f"{typed} --json > {shlex.quote(file)}"
    return UsageError(f"--json takes no file, and {file!r:.200} follows it", hint=instead)


def print_json(tree: Mapping[str, Any], *, ascii_only: bool = False) -> None:
    """Print a document to stdout; `ascii_only` escapes everything else, for text that an image chose."""
    click.echo(json.dumps(tree, indent=2, ensure_ascii=ascii_only, allow_nan=False))


# Tables.


def show_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, title: str | None = None) -> None:
    """Print rows of text under their column names; a column that is empty everywhere is left out."""
    from envkit.ground.text import neutral

    kept = [index for index in range(len(columns)) if any(row[index] for row in rows)]
    names = [columns[index] for index in kept]
    cells = [[neutral(row[index]) for index in kept] for row in rows]
    lines = aligned([names, *cells])
    if sys.stdout.isatty():
        width = shutil.get_terminal_size().columns
        last = max(len(row[-1]) for row in [names, *cells])
        if width - (max(map(len, lines)) - last) >= min(last, _NARROWEST) + 2:
            _ruled(names, cells, title)
            return
    if title:
        click.echo(title)
    for line in lines:
        show(line)


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines, every column as wide as its widest cell, two spaces apart; the last column is not padded."""
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))] if rows else []
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _ruled(names: Sequence[str], rows: Sequence[Sequence[str]], title: str | None) -> None:
    """Print a ruled table; its last column is wrapped to the terminal."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*names, title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for row in rows:
        table.add_row(*(Text(cell, no_wrap=True) for cell in row[:-1]), Text(row[-1]))
    Console(no_color=bool(os.environ.get("NO_COLOR")), highlight=False).print(table)
