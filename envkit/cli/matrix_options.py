"""Parts that the commands of `envkit matrix` share: the identity of the facts, and the JSON document."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from envkit.cli.declare import Section, flag

if TYPE_CHECKING:
    from envkit.facts.model import Facts

SCHEMA = "envkit.facts-rows/1"


def json_option() -> Any:
    """Declare a field as the option `--json`."""
    return flag(Section.OUTPUT, "--json", help=f"Print JSON (schema {SCHEMA}).")


def identity(facts: Facts) -> dict[str, Any]:
    """Return version, date and digest of the facts; the digest includes an overlay."""
    return {"version": facts.version, "collected": facts.collected, "digest": facts.digest}


def identity_line(facts: Facts) -> str:
    """Return the identity of the facts as a line of text."""
    return f"facts version {facts.version} of {facts.collected}, digest {facts.digest:.12}"


def print_facts_json(facts: Facts, **content: Any) -> None:
    """Print a JSON document that begins with the identity of the facts."""
    document = {"schema": SCHEMA, **identity(facts), **content}
    click.echo(json.dumps(document, indent=2, ensure_ascii=False))


def counts_of(facts: Facts) -> dict[str, int]:
    """Return the number of rows of each table, and the number of sources."""
    from envkit.facts.tables import TABLES

    return {**{table.name: len(getattr(facts, table.name)) for table in TABLES}, "sources": len(facts.sources)}
