"""`--json` and `-o FILE`: the document of a command, printed to stdout or written to a file."""

from __future__ import annotations

import contextlib
import json
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

import click

from envkit.ground.errors import Ending, EnvkitError, SurroundingsError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

STDOUT = "-"
_WRITERS = ("verify", "build", "push", "compare")  # commands with `-o FILE`
_Command = TypeVar("_Command", bound=Callable[..., Any])


def document_options(what: str, *names: str) -> Callable[[_Command], _Command]:
    """Return a decorator that adds `--json` and `-o FILE`; their parameters are `as_json` and `out_file`.

    Args:
        what: the document, for the help: 'the record (schema envkit.verify/1)'.
        names: further names of `-o`.
    """

    def decorate(command: _Command) -> _Command:
        command = click.option("-o", *names, "out_file", metavar="FILE", help=f"Write {what} to FILE.")(command)
        return click.option("--json", "as_json", is_flag=True, help=f"Print {what} to stdout.")(command)

    return decorate


def target_of(*, as_json: bool, out_file: str | None) -> str | None:
    """Return where the document goes: a file, `-` for stdout, None for nowhere.

    Raises:
        UsageError: both were given, or the file is a folder.
    """
    if as_json and out_file is not None:
        raise UsageError(
            f"--json prints to stdout and -o {out_file} writes a file", hint=f"leave --json out, or -o {out_file}"
        )
    if out_file is not None and out_file != STDOUT and Path(out_file).is_dir():
        raise UsageError(f"-o {out_file} is a folder", hint=f"-o {out_file.rstrip('/')}/record.json")
    return STDOUT if as_json else out_file


def write_document(document: Mapping[str, Any] | bytes, target: str | None, *, done: str | None = None) -> None:
    """Print the document or write its file; nothing for None.

    Args:
        document: a JSON-ready tree, or its bytes.
        target: as `target_of` returned it.
        done: what stands although the file cannot be written, for the message.

    Raises:
        SurroundingsError: the file cannot be written.
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
        raise SurroundingsError(
            f"-o {target}: {error.strerror or error}" + (f"; {done}" if done else ""),
            hint="give -o a file in a folder that can be written",
        ) from error


class FailureDocument:
    """Writes the document of a command that ends before it has one, so that whoever asked for it can read why.

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
