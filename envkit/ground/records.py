"""Documents with one description per field: how it is read with all errors at once, its JSON Schema, its meaning.

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Port(Row):
        number: Annotated[int, number(1, 65535), Doc("the port that a program listens on")]
        protocol: Annotated[str, choice("tcp", "udp"), Doc("tcp or udp")] = "tcp"

A field without a form is not read, unless its type is a `Row` or a tuple of one. Annotations are evaluated when a row
is first used, so a module of rows costs no more to import than one of other dataclasses.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cache, partial
from typing import Any, ClassVar, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from envkit.ground import schemas
from envkit.ground.errors import MAX_FAULTS, Faults
from envkit.ground.text import similar

T = TypeVar("T")


class Row:
    """A mapping of a document: one field per key."""

    __slots__ = ()

    def to_json(self) -> dict[str, Any]:
        """Return the mapping, JSON-ready."""
        return {field.name: _plain(getattr(self, field.name)) for field in dataclasses.fields(self)}  # type: ignore[arg-type]


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value.to_json() if isinstance(value, Row) else value


def near(word: str, known: Collection[str], cutoff: float = 0.5) -> str:
    """Return the suggestion for a word that is none of the known ones."""
    close = similar(word, known, cutoff=cutoff)
    return f"did you mean {close[0]}?" if close else f"known: {', '.join(known)}"


def quoted(value: object) -> str:
    """Return a value of a document as a message names it."""
    if value is None:
        return "nothing (null)"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return repr(value[:80]) + ("..." if len(value) > 80 else "")  # noqa: PLR2004 - a message, not a dump
    return f"a {'mapping' if isinstance(value, Mapping) else type(value).__name__}"


def _printable(key: str) -> str:
    return key if key.isprintable() and len(key) <= 80 else repr(key[:80])  # noqa: PLR2004


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Wording:
    """How the errors of one format are worded. The default is that of YAML files, in which keys may be left out."""

    missing: str | None = None  # of a key that is not there; None: keys may be left out
    unknown: str = "unknown key"
    suggest: Callable[[str, Collection[str]], str] = near  # for an unknown key, of the known ones
    suggestions: int = MAX_FAULTS  # in one mapping, because each compares the key with every known one
    mapping: str = "{} is not a mapping"
    rows: str = "{} is not a list"
    key: Callable[[str], str] = _printable  # as a path has it
    label: Callable[[Mapping[str, Any]], str] = lambda row: ""  # noqa: ARG005 - of a row, after its number in a path


YAML = Wording()


class Location:
    """A mapping in a document: its path, and where its errors are collected."""

    __slots__ = ("faults", "joint", "path", "wording")

    def __init__(self, path: str, faults: Faults, wording: Wording = YAML, joint: str = ": ") -> None:
        self.path = path  # `images/train.yaml`, `images/train.yaml: request`
        self.faults = faults
        self.wording = wording
        self.joint = joint  # before a key: `: ` after a file, `.` after another key

    def at(self, key: str) -> str:
        """Return the path of a key."""
        return f"{self.path}{self.joint}{self.wording.key(key)}"

    def add(self, below: str, why: str) -> None:
        """Add an error at a path below the mapping."""
        self.faults.add(f"{self.path}{self.joint}{below}", why)

    def no_mapping(self, path: str, value: Any) -> None:
        """Add the error of a value that is not a mapping."""
        self.faults.add(path, self.wording.mapping.format(quoted(value)))

    def no_list(self, path: str, value: Any) -> None:
        """Add the error of a value that is not a list."""
        self.faults.add(path, self.wording.rows.format(quoted(value)))

    def under(self, path: str) -> Location:
        """Return a mapping below this one, by its path."""
        return Location(path, self.faults, self.wording, ".")


class Form:
    """How the value of a key is read, and its JSON Schema."""

    __slots__ = ("schema",)
    schema: Mapping[str, Any]

    def read(self, value: Any, at: Location, key: str) -> Any:
        """Return the value of a key in the mapping `at`, or None after adding its errors."""
        raise NotImplementedError


class Check(Form):
    """A value that is checked by itself: `why_not` returns why it is refused, None if it is fine."""

    __slots__ = ("convert", "why_not")

    def __init__(
        self,
        why_not: Callable[[Any], str | None],
        schema: Mapping[str, Any],
        convert: Callable[[Any], Any] | None = None,
    ) -> None:
        self.why_not = why_not
        self.schema = schema
        self.convert = convert  # of a value that is fine

    def __call__(self, value: Any) -> str | None:
        """Return why the value is refused, or None."""
        return self.why_not(value)

    def read(self, value: Any, at: Location, key: str) -> Any:
        """Return the value. The path of a key is only put together for an error: locks have thousands of values."""
        why = self.why_not(value)
        if why is None:
            return value if self.convert is None else self.convert(value)
        at.faults.add(at.at(key), why)
        return None


class Each(Form):
    """A value whose parts are checked, each with its own path: `reads(value, at, path of the value)`."""

    __slots__ = ("reads",)

    def __init__(self, reads: Callable[[Any, Location, str], Any], schema: Mapping[str, Any]) -> None:
        self.reads = reads
        self.schema = schema

    def read(self, value: Any, at: Location, key: str) -> Any:
        """Return the value without the parts that are refused, or None."""
        return self.reads(value, at, at.at(key))


class Doc:
    """What a field means, and what its key is if that is not its name."""

    __slots__ = ("after", "key", "missing", "optional", "text")

    def __init__(
        self,
        text: str | None = None,
        *,
        key: str | None = None,
        optional: bool = False,
        missing: str | None = None,
        after: str | None = None,
    ) -> None:
        self.text = text
        self.key = key
        self.optional = optional  # the key may be left out where all others are required
        self.missing = missing  # the error if it is left out where keys may be
        self.after = after  # the key that is read before this one, if the documentation has another order


class Field(NamedTuple):
    """The description of one key of a row."""

    name: str
    form: Form
    doc: Doc


@cache
def fields(kind: Any) -> Mapping[str, Field]:
    """Return the description of every key of a row, in the order of the documentation.

    That of a class variable is left out of the value.
    """
    described: dict[str, Field] = {}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        kept = get_args(hint)[0] if get_origin(hint) is ClassVar else hint
        notes = getattr(kept, "__metadata__", ())
        form = next((note for note in notes if isinstance(note, Form)), None) or _of_type(
            kept.__origin__ if notes else kept
        )
        if form is not None:
            doc = next((note for note in notes if isinstance(note, Doc)), Doc())
            described[doc.key or name] = Field(name, form, doc)
    return described


def _of_type(hint: Any) -> Form | None:
    """Return the form of a row, or of a tuple of rows; None for another type."""
    item = get_args(hint)[0] if get_origin(hint) is tuple else None
    if isinstance(item, type) and issubclass(item, Row):
        return Each(partial(_rows, item), schemas.listed(schema(item)))
    if isinstance(hint, type) and issubclass(hint, Row):
        return Each(lambda value, at, path: read(value, hint, at.under(path)), schema(hint))
    return None


def _rows(kind: type[Any], value: Any, at: Location, path: str) -> tuple[Any, ...]:
    if not isinstance(value, list):
        at.no_list(path, value)
        return ()
    labels = (at.wording.label(item) if isinstance(item, Mapping) else "" for item in value)
    found = (
        read(item, kind, at.under(f"{path}[{number}]{label}"))
        for number, (item, label) in enumerate(zip(value, labels, strict=True))
    )
    return tuple(row for row in found if row is not None)


def opened(tree: Any, known: Collection[str], at: Location) -> Mapping[str, Any]:
    """Return a mapping after adding the errors of its unknown keys; an empty one for any other value."""
    is_file = at.joint == ": "
    if tree is None and is_file:
        at.faults.say(f"{at.path} is empty")
        return {}
    if is_file and isinstance(tree, str):
        # The text of another file is not shown: a link may lead to any file of the user.
        at.faults.add(at.path, "a text is not a mapping")
        return {}
    if not isinstance(tree, Mapping):
        at.no_mapping(at.path, tree)
        return {}
    for number, key in enumerate([key for key in tree if key not in known]):
        suggestion = f"; {at.wording.suggest(key, known)}" if number < at.wording.suggestions else ""
        at.faults.add(at.at(key), f"{at.wording.unknown}{suggestion}")
    return tree


def value(tree: Mapping[str, Any], kind: Any, at: Location, key: str) -> Any:
    """Return the value of one key of an opened mapping, None if it is absent or refused, after adding its errors."""
    return _value(tree, fields(kind)[key], at, key)


def _value(tree: Mapping[str, Any], field: Field, at: Location, key: str) -> Any:
    missing = at.wording.missing
    # Where keys are required, a mapping or list that is null is missing.
    if key in tree and (missing is None or tree[key] is not None or isinstance(field.form, Check)):
        return field.form.read(tree[key], at, key)
    missing = field.doc.missing or missing
    if missing is not None and (key in tree or not field.doc.optional):
        at.faults.add(at.at(key), missing)
    return None


def values(tree: Any, kind: Any, at: Location) -> dict[str, Any]:
    """Return the values of a mapping by the names of its fields, after adding its errors; None is a refused value."""
    whole = opened(tree, fields(kind), at)
    if not isinstance(tree, Mapping):
        return {}
    described = fields(kind)
    return {
        described[key].name: found
        for key in _reading_order(kind)
        if (found := _value(whole, described[key], at, key)) is not None or key in whole
    }


@cache
def _reading_order(kind: Any) -> tuple[str, ...]:
    order = list(described := fields(kind))
    for key, field in described.items():
        if field.doc.after is not None:
            order.remove(key)
            order.insert(order.index(field.doc.after) + 1, key)
    return tuple(order)


def some(tree: Any, kind: Any, at: Location) -> dict[str, Any]:
    """Return the values of a mapping of which no key is null, by the names of its fields, after adding its errors."""
    return {name: found for name, found in values(tree, kind, at).items() if found is not None}


def read(tree: Any, kind: type[T], at: Location) -> T | None:
    """Return the row in a mapping, or None after adding its errors."""
    before = len(at.faults)
    found = values(tree, kind, at)
    return kind(**found) if len(at.faults) == before else None


def schema(kind: Any, required: Iterable[str] | None = None) -> dict[str, Any]:
    """Return the JSON Schema of a row. Without `required`, all keys are that are not optional."""
    described = fields(kind)
    forms = {key: schemas.described(field.form.schema, field.doc.text) for key, field in described.items()}
    every = (key for key, field in described.items() if not field.doc.optional)
    return schemas.closed(forms, tuple(every if required is None else required))


def constant(word: str) -> Check:
    """Return the form of a key that has always the same value, which is checked before."""
    return Check(lambda _: None, {"const": word})


# The forms of YAML files, in which envkit.ground.strictyaml reads each scalar as text, true, false or null.


def text(check: Callable[[str], str | None], form: Mapping[str, Any] = schemas.TEXT) -> Check:
    """Return the form of a text; `check` returns why it is refused, None if it is fine."""

    def why_not(value: Any) -> str | None:
        why = check(value) if isinstance(value, str) else f"is not a string{_quote_it(value)}"
        return f"{quoted(value)} {why}" if why else None

    return Check(why_not, form)


def _quote_it(value: Any) -> str:
    return "; quote it" if isinstance(value, bool) else ""


def choice(*allowed: str) -> Check:
    """Return the form of one of a few words."""

    def check(value: str) -> str | None:
        return None if value in allowed else f"is not one of {', '.join(allowed)}; {near(value, allowed)}"

    return text(check, {"const": allowed[0]} if len(allowed) == 1 else {"enum": list(allowed)})


def flag() -> Check:
    """Return the form of true or false."""
    return Check(
        lambda value: None if isinstance(value, bool) else f"{quoted(value)} is neither true nor false",
        {"type": "boolean"},
    )


def number(low: int, high: int) -> Check:
    """Return the form of a whole number between two bounds, both included; it may be quoted."""

    def check(value: str) -> str | None:
        whole = value.isascii() and value.isdigit() and len(value) < 10  # noqa: PLR2004 - keeps int() small
        return None if whole and low <= int(value) <= high else f"is not a whole number from {low} to {high}"

    form = {"type": ["integer", "string"], "minimum": low, "maximum": high, "pattern": "^[0-9]+$"}
    return Check(text(check).why_not, form, int)


def words(check: Callable[[str], str | None], form: Mapping[str, Any] = schemas.TEXT, *, least: int = 0) -> Each:
    """Return the form of a list of at least so many different texts, each checked."""

    def reads(value: Any, at: Location, path: str) -> tuple[str, ...] | None:
        if not isinstance(value, list):
            at.no_list(path, value)
            return None
        found: dict[str, None] = {}  # in the order of the list
        for index, item in enumerate(value):
            why = "is not a string; quote it" if not isinstance(item, str) else check(item)
            why = why or ("is listed twice" if item in found else None)
            if why:
                at.faults.add(f"{path}[{index}]", f"{quoted(item)} {why}")
            else:
                found[item] = None
        if len(found) < least:
            at.faults.add(path, "the list is empty")
        return tuple(found)

    return Each(reads, schemas.listed(form, unique=True) | ({"minItems": least} if least else {}))


def choices(*allowed: str) -> Each:
    """Return the form of a list of some of a few words."""
    return words(
        lambda value: None if value in allowed else f"is not one of {', '.join(allowed)}", {"enum": list(allowed)}
    )


def command(check: Callable[[tuple[str, ...]], str | None]) -> Check:
    """Return the form of a list of words in order, checked as a whole; words may repeat."""

    def why_not(value: Any) -> str | None:
        whole = isinstance(value, list) and all(isinstance(item, str) for item in value)
        why = check(tuple(value)) if whole else "is not a list of strings"
        return f"{quoted(value)} {why}" if why else None

    return Check(why_not, schemas.listed(schemas.TEXT), tuple)


def pairs(check: Callable[[str, str], str | None]) -> Each:
    """Return the form of a mapping of names to texts, each pair checked."""

    def reads(value: Any, at: Location, path: str) -> dict[str, str] | None:
        if not isinstance(value, Mapping):
            at.faults.add(path, f"{quoted(value)} is not a mapping of names to strings")
            return None
        found: dict[str, str] = {}
        for name, item in value.items():
            why = "is not a string; quote it" if not isinstance(item, str) else check(name, item)
            if why:
                at.faults.add(f"{path}.{_printable(name)}", why)
            else:
                found[name] = item
        return found

    return Each(reads, {"type": "object", "additionalProperties": dict(schemas.TEXT)})


def part(kind: Any) -> Each:
    """Return the form of a mapping of which every key may be left out; its value is that of `some`."""
    return Each(lambda value, at, path: some(value, kind, at.under(path)), schema(kind, ()))
