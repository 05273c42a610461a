"""`envkit schema` and `envkit validate`: the JSON Schemas of envkit's files, and the errors in such files."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from envkit.cli import shell_values
from envkit.cli.declare import Section, argument, flag, new_command
from envkit.cli.output import print_json, show_table
from envkit.ground import foreign
from envkit.ground.errors import EnvkitError, UsageError
from envkit.ground.settings import FILES
from envkit.ground.text import aligned

if TYPE_CHECKING:
    from envkit.ground.errors import Ending

SCHEMA = "envkit.schemas/1"
VALIDATION = "envkit.validation/1"
_HEAD = 65536  # bytes at the start of a file in which its schema has to be named
# `schema: envkit.image/1` in YAML, `"schema": "envkit.lock/2"` in JSON.
_OWN = re.compile(rb"^[ \t{]*[\"']?schema[\"']?[ \t]*:[ \t]*[\"']?envkit\.([a-z-]+)/", re.MULTILINE)


def _made(module: str, function: str) -> Callable[[], dict[str, Any]]:
    def made() -> dict[str, Any]:
        tree: dict[str, Any] = getattr(importlib.import_module(module), function)()
        return tree

    return made


def _shipped(package: str, file: str) -> Callable[[], dict[str, Any]]:
    return lambda: json.loads((resources.files(package) / file).read_text(encoding="utf-8"))


# name -> (the files that it describes, a function that returns the schema)
SCHEMAS: dict[str, tuple[str, Callable[[], dict[str, Any]]]] = {
    "image": ("image definitions", _made("envkit.plan.definition", "json_schema")),
    "matrix": ("matrix files", _made("envkit.fleet.matrix", "json_schema")),
    "lock": ("locks", _made("envkit.lock.reading", "json_schema")),
    "settings": ("envkit.toml and [tool.envkit]", _made("envkit.ground.settings", "json_schema")),
    "record": ("what envkit verify -o writes", _made("envkit.verify.record", "schema")),
    "doctor": ("what envkit doctor --json prints", _shipped("envkit.doctor", "doctor.schema.json")),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaFlags:
    """The options of `envkit schema`."""

    name: str | None = argument(required=False, shell_complete=shell_values.words(tuple(SCHEMAS)))
    as_json: bool = flag(Section.OUTPUT, "--json", help=f"Print JSON: the schema, or the list (schema {SCHEMA}).")


@new_command("schema", SchemaFlags)
def command(flags: SchemaFlags) -> None:
    """Print the JSON Schema of a file that envkit reads or writes, or list the schemas.

    \b
    envkit schema                                   the list
    envkit schema image > image.schema.json         for an editor, with "# yaml-language-server: $schema=FILE"
    check-jsonschema --schemafile <(envkit schema matrix) matrix.yaml
    """  # noqa: D301 - click reads "\b" as "do not join these lines"
    if flags.name is None:
        rows = [(key, form()["$id"], what) for key, (what, form) in SCHEMAS.items()]
        if flags.as_json:
            listed = [{"name": key, "id": ident, "describes": what} for key, ident, what in rows]
            print_json({"schema": SCHEMA, "schemas": listed})
        else:
            show_table(("schema", "id", "describes"), rows)
        return
    if flags.name not in SCHEMAS:
        raise UsageError(f"unknown schema {flags.name!r:.80}", hint=f"use one of {', '.join(SCHEMAS)}")
    print_json(SCHEMAS[flags.name][1]())


@dataclass(frozen=True, slots=True, kw_only=True)
class Validated:
    """The result for one file: its kind and its error."""

    file: str
    kind: str | None  # None = not a file of envkit, or one that cannot be read
    error: Ending | None = None

    @property
    def state(self) -> str:
        """The result as one word."""
        return "invalid" if self.error else "skipped" if self.kind is None else "valid"


def _image(path: Path) -> None:
    from envkit.ground.strictyaml import text_of
    from envkit.plan.definition import parse

    parse(text_of(path), where=str(path), folder=path.parent)


def _matrix(path: Path) -> None:
    from envkit.fleet.matrix import read_matrix

    read_matrix(path)


def _lock(path: Path) -> None:
    from envkit.lock.store import read_lock

    read_lock(path)


def _settings(path: Path) -> None:
    from envkit.ground.settings import check_file

    check_file(path)


READERS: dict[str, tuple[str, Callable[[Path], None]]] = {
    "image": ("image definition", _image),
    "matrix": ("matrix file", _matrix),
    "lock": ("lock", _lock),
    "settings": ("settings", _settings),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidateFlags:
    """The options of `envkit validate`."""

    files: tuple[str, ...] = argument(nargs=-1, required=True, metavar="FILE...", shell_complete=shell_values.files)
    as_json: bool = flag(Section.OUTPUT, "--json", help=f"Print JSON (schema {VALIDATION}).")


@new_command("validate", ValidateFlags)
def validate(flags: ValidateFlags) -> None:
    """Check image definitions, matrix files, locks and settings, and report every error.

    Nothing is resolved, and no network is used. Files that do not name an envkit schema are skipped.

    \b
    envkit validate image.yaml envkit.lock
    envkit validate *.yaml envkit.toml --json
    """  # noqa: D301 - click reads "\b" as "do not join these lines"
    results = [_validated(file) for file in flags.files]
    if flags.as_json:
        rows = [
            {"file": result.file, "kind": result.kind, "state": result.state, "errors": _errors(result.error)}
            for result in results
        ]
        print_json({"schema": VALIDATION, "files": rows})
    else:
        for line in aligned(
            [(result.state, result.file, READERS[result.kind][0] if result.kind else "") for result in results]
        ):
            click.echo(line)
    errors = [result.error for result in results if result.error]
    if errors:
        # The most severe error determines the exit code: a modified lock (10) matters more than an unknown key (2).
        first = max(errors, key=lambda error: error.exit_code)
        others = [line for error in errors if error is not first for line in _errors(error)]
        raise type(first)(first.message, hint=first.hint, details=(*first.details, *others))


def _validated(file: str) -> Validated:
    path, kind = Path(file), None
    try:
        kind = _kind(path)
        if kind is not None:
            READERS[kind][1](path)
    except EnvkitError as error:
        return Validated(file=file, kind=kind, error=error)
    return Validated(file=file, kind=kind)


def _kind(path: Path) -> str | None:
    """Return the kind of a file (a key of READERS) by its name or its field `schema`; None for files of other programs.

    Raises:
        UsageError: the file cannot be read.
    """
    if path.name in FILES:
        return "settings"
    try:
        with foreign.stream(path) as file:
            own = _OWN.search(file.read(_HEAD))
    except OSError as error:
        raise UsageError(f"{path}: {(error.strerror or 'cannot be read').lower()}", hint=f"ls -l {path}") from error
    kind = own.group(1).decode() if own else None
    return kind if kind in READERS else None


def _errors(error: Ending | None) -> list[str]:
    return [] if error is None else [error.message, *error.details]
