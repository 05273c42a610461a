"""What made a log: the system, the container engine, the scheduler, the installer and the frameworks.

The contexts are rows of `tables/contexts.yaml`, each with signatures of lines that only it writes: prompts, commands,
paths, prefixes of its messages. A row of the failures may need a context, be refuted by one, or have another fix in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from envkit.ground import strictyaml
from envkit.ground.errors import UsageError
from envkit.knowledge.signatures import Signature, signature

TABLE = Path(__file__).parent / "tables" / "contexts.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What may have made a log."""

    name: str
    what: str
    signs: tuple[Signature, ...]


@cache
def table() -> tuple[Context, ...]:
    """Return all contexts.

    Raises:
        UsageError: the file is invalid.
    """
    tree = strictyaml.read_file(TABLE)
    if not isinstance(tree, dict) or tree.get("schema") != "1":
        raise UsageError(f"{TABLE}: schema: 1 is missing", hint="begin the file with 'schema: \"1\"'")
    return tuple(
        Context(
            name=entry["name"],
            what=entry["what"],
            signs=tuple(signature(sign, f"{TABLE}: {entry['name']}") for sign in entry["signs"]),
        )
        for entry in tree["contexts"]
    )


@cache
def names() -> tuple[str, ...]:
    """Return the names of all contexts."""
    return tuple(context.name for context in table())


@cache
def literals() -> tuple[str, ...]:
    """Return the texts of which a line has to have one, in lower case, to show a context."""
    return tuple(_by_literal())


def shown(line: str, among: Iterable[str] | None = None) -> Iterator[str]:
    """Yield the contexts that a line shows, some of them several times; `among` are the literals to look for."""
    low = line.lower()
    by_literal = _by_literal()
    for literal in by_literal if among is None else among:
        if literal in low:
            yield from (name for name, sign in by_literal.get(literal, ()) if sign.fits(line))


@cache
def _by_literal() -> dict[str, list[tuple[str, Signature]]]:
    found: dict[str, list[tuple[str, Signature]]] = {}
    for context in table():
        for sign in context.signs:
            found.setdefault(sign.has, []).append((context.name, sign))
    return found
