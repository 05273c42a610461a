"""The JSON Schema of image definitions, recorded while `read_fields` reads an imaginary one with every key."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from envkit.ground.schemas import TEXT, closed, described, document, listed
from envkit.plan import definition
from envkit.plan.fields import Check, Fields, Rows


class Shape(Fields):
    """A mapping that claims to have every key and records how each is read; it returns no values."""

    def __init__(self, known: Collection[str]) -> None:
        super().__init__({}, "", known, [])
        self._meanings: Mapping[str, str] = known if isinstance(known, Mapping) else {}
        self._read: dict[str, Mapping[str, Any]] = {}
        self._children: dict[str, Shape] = {}

    def __contains__(self, key: str) -> bool:
        return True

    def schema(self, required: Collection[str] = ()) -> dict[str, Any]:
        """Return the schema of the mapping, with keys in the order of the documentation."""
        read = self._read | {key: child.schema() for key, child in self._children.items()}
        order = [*(key for key in self._known if key in read), *(key for key in read if key not in self._known)]
        return closed({key: described(read[key], self._meanings.get(key)) for key in order}, tuple(required))

    def text(self, key: str, check: Check) -> None:
        """Record a text."""
        del check
        self._read[key] = TEXT

    def choice(self, key: str, allowed: Collection[str]) -> None:
        """Record one of a few words."""
        self._read[key] = {"const": next(iter(allowed))} if len(allowed) == 1 else {"enum": list(allowed)}

    def flag(self, key: str) -> None:
        """Record true or false."""
        self._read[key] = {"type": "boolean"}

    def number(self, key: str, low: int, high: int) -> None:
        """Record a whole number, which may be quoted."""
        self._read[key] = {"type": ["integer", "string"], "minimum": low, "maximum": high, "pattern": "^[0-9]+$"}

    def words(self, key: str, check: Check) -> None:
        """Record a list of different texts."""
        del check
        self._read[key] = listed(TEXT, unique=True)

    def choices(self, key: str, allowed: Collection[str]) -> None:
        """Record a list of some of a few words."""
        self._read[key] = listed({"enum": list(allowed)}, unique=True)

    def command(self, key: str, check: Callable[[tuple[str, ...]], str | None]) -> None:
        """Record a list of words that may repeat."""
        del check
        self._read[key] = listed(TEXT)

    def rows(self, key: str, known: Collection[str], check: Callable[[Mapping[str, str]], str | None]) -> Rows | None:
        """Record a list of mappings that have all of the known keys."""
        del check
        self._read[key] = listed(closed(dict.fromkeys(known, TEXT), tuple(known)))
        return None

    def pairs(self, key: str, check: Callable[[str, str], str | None]) -> None:
        """Record a mapping of names to texts."""
        del check
        self._read[key] = {"type": "object", "additionalProperties": dict(TEXT)}

    def child(self, key: str, known: Collection[str]) -> Shape:
        """Record a mapping under a key."""
        return self._children.setdefault(key, Shape(known))


def schema() -> dict[str, Any]:
    """Return the JSON Schema of image definitions. A definition that extends another may leave out its title."""
    shape = Shape(definition.KEYS)
    definition.read_fields(shape, [])
    body = shape.schema(required=("schema",))
    title_or_parent = [{"required": ["title"]}, {"required": ["extends"]}]
    return document(definition.SCHEMA, "An image definition of envkit", {**body, "anyOf": title_or_parent})
