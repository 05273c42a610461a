"""`envkit schema`: the JSON Schemas of the files that envkit reads and writes."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from typing import Any

from envkit.cli import shell_values
from envkit.cli.declare import Section, argument, flag, new_command
from envkit.cli.output import print_json, show_table
from envkit.ground.errors import UsageError

SCHEMA = "envkit.schemas/1"


def _made(module: str, function: str) -> Callable[[], dict[str, Any]]:
    def made() -> dict[str, Any]:
        tree: dict[str, Any] = getattr(importlib.import_module(module), function)()
        return tree

    return made


def _shipped(package: str, file: str) -> Callable[[], dict[str, Any]]:
    return lambda: json.loads((resources.files(package) / file).read_text(encoding="utf-8"))


# name -> (the files that it describes, a function that returns the schema)
SCHEMAS: dict[str, tuple[str, Callable[[], dict[str, Any]]]] = {
    "image": ("image definitions", _made("envkit.plan.shape", "schema")),
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
