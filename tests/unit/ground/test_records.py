"""Documents with one description per field."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import pytest

from envkit.ground import records
from envkit.ground.errors import Faults, IntegrityError, UsageError
from envkit.ground.records import Check, Doc, Each, Location, Row, Wording

SHORT = Check(lambda value: None if isinstance(value, str) and len(value) < 9 else "is not short", {"type": "string"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Part(Row):
    name: Annotated[str, SHORT, Doc("what it is called")]
    tags: Annotated[tuple[str, ...], Check(lambda _: None, {"type": "array"}, tuple)] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole(Row):
    stated: ClassVar[Annotated[str, SHORT, Doc(key="seal")]]
    title: Annotated[str, SHORT]
    main: Part
    parts: Annotated[tuple[Part, ...], Doc("the rest", optional=True)] = ()
    where: str = "nowhere"  # not a key


STRICT = Wording(missing="missing")


def errors(tree: Any, kind: type[Any] = Whole, wording: Wording = records.YAML) -> list[str]:
    faults = Faults()
    assert records.read(tree, kind, Location("x.yaml", faults, wording)) is None
    with pytest.raises(UsageError) as caught:
        faults.refuse()
    return [caught.value.message, *caught.value.details]


def test_a_row_is_read_and_written() -> None:
    tree = {"title": "t", "main": {"name": "a"}, "parts": [{"name": "b", "tags": ["x"]}]}
    faults = Faults()
    whole = records.read(tree, Whole, Location("x.yaml", faults))
    assert len(faults) == 0
    assert whole == Whole(title="t", main=Part(name="a"), parts=(Part(name="b", tags=("x",)),))
    assert Part(name="b", tags=("x",)).to_json() == {"name": "b", "tags": ["x"]}


def test_every_error_is_reported_with_its_path_in_the_order_of_the_fields() -> None:
    tree = {"titel": "t", "parts": [{"name": 1}, 2], "main": {"nam": "a"}, "title": 3}
    assert errors(tree) == [
        "x.yaml: titel: unknown key; did you mean title?",
        "x.yaml: title: is not short",
        "x.yaml: main.nam: unknown key; did you mean name?",
        "x.yaml: parts[0].name: is not short",
        "x.yaml: parts[1]: a int is not a mapping",
    ]


def test_where_keys_are_required_a_missing_one_and_a_mapping_that_is_null_are_errors() -> None:
    assert errors({"main": None, "parts": None}, wording=STRICT) == [
        "x.yaml: seal: missing",
        "x.yaml: title: missing",
        "x.yaml: main: missing",
        "x.yaml: parts: missing",
    ]


def test_only_the_first_unknown_keys_are_compared_with_the_known_ones() -> None:
    faults = Faults()
    records.values({f"key{number}": 1 for number in range(22)}, Part, Location("x.yaml", faults))
    with pytest.raises(UsageError) as caught:
        faults.refuse("hint")
    assert caught.value.details[18:] == (
        "x.yaml: key19: unknown key; known: name, tags",
        "x.yaml: key20: unknown key",
        "... and 1 more",
    )


def test_the_schema_has_the_fields_with_their_meaning() -> None:
    part = {"name": {"description": "what it is called", "type": "string"}, "tags": {"type": "array"}}
    closed = {"type": "object", "required": ["name", "tags"], "properties": part, "additionalProperties": False}
    whole = records.schema(Whole)
    assert whole["required"] == ["seal", "title", "main"]
    assert whole["properties"]["main"] == closed
    assert whole["properties"]["parts"] == {"description": "the rest", "type": "array", "items": closed}
    assert "required" not in records.schema(Whole, ())


class Yaml:
    size: Annotated[int, records.number(1, 9), Doc("documented first", after="kind")]
    kind: Annotated[str, records.choice("slim", "full"), Doc("read first", missing="missing; write `kind: slim`")]
    on: Annotated[bool, records.flag()]
    tags: Annotated[tuple[str, ...], records.words(lambda word: "is not x" if word != "x" else None, least=1)]
    run: Annotated[tuple[str, ...], records.command(lambda words: None if words else "is empty")]
    env: Annotated[dict[str, str], records.pairs(lambda name, text: "is too long" if len(name + text) > 3 else None)]


def test_the_forms_of_yaml_read_what_strictyaml_returns() -> None:
    tree = {"kind": "full", "size": "3", "on": True, "tags": ["x"], "run": ["a", "a"], "env": {"A": "b"}}
    faults = Faults()
    found = records.some(tree, Yaml, Location("x.yaml", faults))
    assert found == {**tree, "size": 3, "tags": ("x",), "run": ("a", "a")}
    assert len(faults) == 0


@pytest.mark.parametrize(
    ("tree", "error"),
    [
        (None, "x.yaml is empty"),
        ("secret", "x.yaml: a text is not a mapping"),
        (["a"], "x.yaml: a list is not a mapping"),
        ({"size": "0"}, "x.yaml: kind: missing; write `kind: slim`"),
        ({"kind": "slin"}, "x.yaml: kind: 'slin' is not one of slim, full; did you mean slim?"),
        ({"kind": True}, "x.yaml: kind: true is not a string; quote it"),
        ({"kind": "slim", "size": "12"}, "x.yaml: size: '12' is not a whole number from 1 to 9"),
        ({"kind": "slim", "size": "\u0663"}, "x.yaml: size: '\u0663' is not a whole number from 1 to 9"),
        ({"kind": "slim", "on": "yes"}, "x.yaml: on: 'yes' is neither true nor false"),
        ({"kind": "slim", "tags": ["x", "x"]}, "x.yaml: tags[1]: 'x' is listed twice"),
        ({"kind": "slim", "tags": "x"}, "x.yaml: tags: 'x' is not a list"),
        ({"kind": "slim", "tags": []}, "x.yaml: tags: the list is empty"),
        ({"kind": "slim", "run": ["a", None]}, "x.yaml: run: a list is not a list of strings"),
        ({"kind": "slim", "env": {"A\x07": "bcd"}}, "x.yaml: env.'A\\x07': is too long"),
        ({"kind": "slim", "env": None}, "x.yaml: env: nothing (null) is not a mapping of names to strings"),
    ],
)
def test_the_forms_of_yaml_say_why_a_value_is_refused(tree: Any, error: str) -> None:
    faults = Faults()
    records.some(tree, Yaml, Location("x.yaml", faults))
    with pytest.raises(UsageError) as caught:
        faults.refuse()
    assert caught.value.message == error


def test_the_reader_may_have_another_order_than_the_documentation() -> None:
    assert list(records.schema(Yaml, ())["properties"]) == ["size", "kind", "on", "tags", "run", "env"]
    faults = Faults()
    assert list(records.values({"size": "1", "kind": "slim"}, Yaml, Location("x", faults))) == ["kind", "size"]


def test_a_form_may_add_errors_below_its_own_path() -> None:
    def read(value: Any, at: Location, path: str) -> None:
        at.faults.add(f"{path}[{len(value)}]", "is too many")

    faults = Faults()
    Each(read, {}).read(["a", "b"], Location("x.yaml: top", faults, joint="."), "words")
    with pytest.raises(UsageError, match=r"x\.yaml: top\.words\[2\]: is too many"):
        faults.refuse()


def test_an_error_of_a_hash_is_raised_as_such_if_nothing_else_is_wrong() -> None:
    faults = Faults()
    faults.add("x.lock: a.sha256", "is an MD5")
    with pytest.raises(IntegrityError, match="is an MD5"):
        faults.refuse(hashes=".sha256")
    faults.add("x.lock: a.name", "is missing")
    with pytest.raises(UsageError, match="is missing") as caught:
        faults.refuse(hashes=".sha256")
    assert caught.value.details == ("x.lock: a.sha256: is an MD5",)


def test_an_error_keeps_its_own_hint() -> None:
    def refused(text: str) -> str:
        raise UsageError(f"{text} is wrong", hint=f"write {text.upper()}")

    faults = Faults()
    assert faults.take(refused, "a") is None
    assert faults.take(refused, "b") is None
    assert faults.take(str.upper, "c") == "C"
    with pytest.raises(UsageError, match="a is wrong") as caught:
        faults.refuse("the hint of all")
    assert (caught.value.hint, caught.value.details) == ("write A", ("b is wrong (write B)",))
