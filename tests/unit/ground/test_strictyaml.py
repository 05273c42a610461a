"""Strict YAML: versions stay text, hostile files are refused with their place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from envkit.ground.errors import UsageError
from envkit.ground.strictyaml import MAX_BYTES, MAX_DEPTH, read, read_file, read_with_places


@pytest.mark.requirement("R2")
@pytest.mark.parametrize(
    "written",
    ["3.10", "12.10", "010", "12:30", "2024-01-01", "no", "yes", "on", "off", "True", "FALSE", "1e3", "0x1f", "1_000",
     ".inf", "NaN", "Null", "=", "+1", "1.", "12.8.0"],
)  # fmt: skip
def test_scalars_stay_as_written(written: str) -> None:
    assert read(f"key: {written}\n", "f.yaml") == {"key": written}
    assert read(f"key: '{written}'\n", "f.yaml") == {"key": written}


@pytest.mark.parametrize(
    ("written", "value"), [("true", True), ("false", False), ("null", None), ("~", None), ("", None)]
)
def test_only_these_have_another_type(written: str, value: bool | None) -> None:
    tree = read(f"key: {written}\n", "f.yaml")
    assert isinstance(tree, dict)
    assert tree["key"] is value
    assert read(f'key: "{written}"\n', "f.yaml") == {"key": written}


@pytest.mark.requirement("R1")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: 1\na: 2\n", "f.yaml:2:1: the key 'a' is given twice"),
        ("a: {b: 1, b: 1}\n", "f.yaml:1:11: the key 'b' is given twice"),
        ("a: &x 1\n", "f.yaml:1:4: the anchor &x is not allowed; write the value out where it is used"),
        ("&x a: 1\n", "f.yaml:1:1: the anchor &x is not allowed; write the value out where it is used"),
        ("a: *x\n", "f.yaml:1:4: the alias *x is not allowed; write the value out"),
        ("*x : 1\n", "f.yaml:1:1: the alias *x is not allowed; write the value out"),
        ("a: !!python/object/apply:os.system [id]\n",
         "f.yaml:1:4: the tag tag:yaml.org,2002:python/object/apply:os.system is not allowed; values are plain data"),
        ("a: ! b\n", "f.yaml:1:4: the tag ! is not allowed; values are plain data"),
        ("!!str a: b\n", "f.yaml:1:1: the tag tag:yaml.org,2002:str is not allowed; values are plain data"),
        ("%TAG !e! tag:example.com,2000:\n--- a\n", "f.yaml:1:1: a %TAG directive is not allowed"),
        ("a: 1\n---\nb: 2\n", "f.yaml:2:1: a second document starts here; one file holds one document"),
        ("<<: {a: 1}\n", "f.yaml:1:1: the merge key << is not allowed; write the keys out"),
        ("? [a]\n: b\n", "f.yaml:1:3: a key must be a string"),
        ('"": b\n', "f.yaml:1:1: a key is empty"),
        ("a: b\x00\n", "f.yaml:1:5: NUL is not allowed"),
        ("a: \x1b[31m\n", "f.yaml:1:4: the control character U+001B is not allowed"),
        ("a:\n\tb: 1\n", "f.yaml:2:1: a tab is used as indentation"),
        ("a:\n  \tb: 1\n", "f.yaml:2:3: a tab is used as indentation"),
        ("a: b: c\n", "f.yaml:1:5: mapping values are not allowed"),
        ("a: [1\n", "f.yaml:2:1: did not find expected ',' or ']'"),
        ("[" * 500, f"f.yaml:1:{MAX_DEPTH + 1}: nested deeper than {MAX_DEPTH} levels"),
        ("{a: " * 500, f"f.yaml:1:{4 * MAX_DEPTH + 1}: nested deeper than {MAX_DEPTH} levels"),
        ("- " * 500, f"f.yaml:1:{2 * MAX_DEPTH + 1}: nested deeper than {MAX_DEPTH} levels"),
        ("a" * (MAX_BYTES + 1), f"f.yaml:1:1: larger than {MAX_BYTES} bytes"),
    ],
)  # fmt: skip
def test_hostile_text_is_refused_with_its_place(text: str, expected: str) -> None:
    with pytest.raises(UsageError) as caught:
        read(text, "f.yaml")
    assert caught.value.message.startswith(expected)
    assert caught.value.hint
    assert caught.value.exit_code == 2


@pytest.mark.requirement("R1")
@pytest.mark.parametrize("opening", ["[", "{a: ", "- "])
def test_nesting_beyond_the_parsers_own_limit_is_refused(opening: str) -> None:
    with pytest.raises(UsageError, match=rf"^f\.yaml:1:\d+: nested deeper than {MAX_DEPTH} levels$"):
        read(opening * 2000, "f.yaml")


@pytest.mark.requirement("R1")
def test_an_alias_bomb_is_never_built() -> None:
    bomb = "a: &a [x, x]\n" + "".join(f"{b}: &{b} [*{a}, *{a}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True))
    with pytest.raises(UsageError) as caught:
        read(bomb, "bomb.yaml")
    assert caught.value.message == "bomb.yaml:1:4: the anchor &a is not allowed; write the value out where it is used"
    assert len(caught.value.details) == 19


@pytest.mark.parametrize(
    "text",
    [
        "a: &a {x: '1', y: '2'}\nb: {<<: *a, y: '3'}\n",
        "a: &a {x: '1'}\nb: &b {x: '2', y: '2'}\nc: {<<: [*a, *b], z: '3'}\n",
        "a: &a {x: '1'}\nb: &b {<<: *a, y: '2'}\nc: {z: '3', <<: *b}\n",
        "a: {<<: {x: '1'}, y: '2'}\n",
        "a: &a [one, two]\nb: [*a, *a]\nc: &c three\nd: *c\n",
        "&k a: &v one\nb: *v\n",
        "'<<': &a {x: '1'}\nb: *a\n",
    ],
)
def test_aliases_stand_for_their_values_where_they_are_read(text: str) -> None:
    assert read_with_places(text, "f.yaml", aliases=True)[0] == yaml.safe_load(text)
    with pytest.raises(UsageError):
        read(text + "z: &z 1\n", "f.yaml")


def test_an_alias_stands_for_the_last_anchor_of_its_name() -> None:  # YAML 1.2.2, 3.2.2.2; PyYAML refuses these
    tree = read_with_places("a: &a 1\nb: *a\nc: &a 2\nd: *a\n", "f.yaml", aliases=True)[0]
    assert tree == {"a": "1", "b": "1", "c": "2", "d": "2"}


def test_merged_keys_have_the_place_of_the_merge_key() -> None:
    places = read_with_places("a: &a {x: 1}\nb:\n  <<: *a\n", "f.yaml", aliases=True)[1]
    assert places["b", "x"] == (3, 7)


@pytest.mark.requirement("R1")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: *b\n", "f.yaml:1:4: the alias *b has no anchor before it"),
        ("a: &a [*a]\n", "f.yaml:1:8: the alias *a has no anchor before it"),
        ("a: &a 1\nb: &a [*a]\n", "f.yaml:2:8: the alias *a has no anchor before it"),
        ("a: &a 1\nb: {<<: *a}\n", "f.yaml:2:5: the merge key << needs a mapping, or a list of mappings"),
        ("a: &a {}\nb: {<<: *a, <<: *a}\n", "f.yaml:2:13: the key '<<' is given twice"),
        ("a: &a !!int 1\n", "f.yaml:1:4: the tag tag:yaml.org,2002:int is not allowed; values are plain data"),
        (
            "a: &a [x, x]\n"
            + "".join(f"{chr(98 + at)}: &{chr(98 + at)} [{', '.join([f'*{chr(97 + at)}'] * 9)}]\n" for at in range(9)),
            "f.yaml:7:16: larger than 1048576 bytes with aliases replaced by their values",
        ),
        (
            f"a: &a {'x' * 1000}\nb: [{', '.join(['*a'] * 2000)}]\n",
            "f.yaml:2:4189: larger than 1048576 bytes with aliases replaced by their values",
        ),
        (
            f"a: &a {{{'k' * 1000}: 1}}\nb: [{', '.join(['{<<: *a}'] * 2000)}]\n",
            "f.yaml:2:10420: larger than 1048576 bytes with aliases replaced by their values",
        ),
        (
            "a0: &a0 [x]\n" + "".join(f"a{at}: &a{at} [*a{at - 1}]\n" for at in range(1, 100)),
            "f.yaml:64:12: nested deeper than 64 levels with aliases replaced by their values",
        ),
    ],
)
def test_aliases_have_limits_where_they_are_read(text: str, expected: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_with_places(text, "f.yaml", aliases=True)
    assert caught.value.message.startswith(expected)


def test_a_message_repeats_no_endless_or_steering_text() -> None:
    for text in (
        "!" * 10_000,
        f"a: !<{'x' * 10_000}> b\n",
        f"&{'a' * 10_000} b\n",
        f"{'k' * 500}: 1\n{'k' * 500}: 2\n",
    ):
        with pytest.raises(UsageError) as caught:
            read(text, "f.yaml")
        assert len(caught.value.message) < 250
    with pytest.raises(UsageError) as caught:
        read('"\\e[31m": 1\n"\\e[31m": 2\n', "f.yaml")
    assert caught.value.message == "f.yaml:2:1: the key '?[31m' is given twice"


def test_every_fault_comes_at_once() -> None:
    with pytest.raises(UsageError) as caught:
        read("a: 1\na: 2\nb: &x 1\nc: *x\n", "f.yaml")
    assert [line.split(": ")[0] for line in (caught.value.message, *caught.value.details)] == [
        "f.yaml:2:1", "f.yaml:3:4", "f.yaml:4:4",
    ]  # fmt: skip


def test_places_name_every_value() -> None:
    tree, places = read_with_places("a:\n  - b: 1\n  - c\n", "f.yaml")
    assert tree == {"a": [{"b": "1"}, "c"]}
    assert places[("a", 0, "b")] == (2, 8)
    assert places[("a", 1)] == (3, 5)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("a: 1".encode("utf-16-le"), "{path}:1:1: the file is UTF-16 without a byte order mark"),
        (b"a: 1\nb: \xff\n", "{path}:2:4: byte 0xff is not UTF-8"),
        (b"#" * (MAX_BYTES + 1), "{path}:1:1: larger than 1048576 bytes"),
    ],
)
def test_files_that_are_not_utf8_text(tmp_path: Path, raw: bytes, expected: str) -> None:
    path = tmp_path / "f.yaml"
    path.write_bytes(raw)
    with pytest.raises(UsageError) as caught:
        read_file(path)
    assert caught.value.message == expected.format(path=path)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"missing\.yaml: no such file or directory"):
        read_file(tmp_path / "missing.yaml")
    with pytest.raises(UsageError, match="is a directory"):
        read_file(tmp_path)


def test_a_byte_order_mark_is_no_part_of_the_first_key(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1\n")
    assert read_file(path) == {"a": "1"}


_TEXT = st.text(st.characters(min_codepoint=32, max_codepoint=0x2FFF, exclude_categories=["Cs", "Cc"]), max_size=20)
_TREES = st.recursive(
    st.none() | st.booleans() | _TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXT.filter(bool), inner, max_size=4),
    max_leaves=20,
)


@given(_TREES)
def test_json_is_read_as_itself(tree: object) -> None:
    assert read(json.dumps(tree), "f.yaml") == tree


_VERSIONS = st.lists(st.integers(0, 999), min_size=1, max_size=4).map(lambda parts: ".".join(map(str, parts)))


@pytest.mark.requirement("R2")
@given(_VERSIONS)
def test_quotes_change_no_version(version: str) -> None:
    assert read(f"v: {version}", "f.yaml") == read(f'v: "{version}"', "f.yaml") == {"v": version}


_VALID = b"schema: 1\nrequest: {torch: 2.7.1, cuda: '12.6'}\npackages:\n  - numpy<2\n  - 'a: b'\nenv: {A: |\n  }\n"


@pytest.mark.requirement("R1")
@given(st.lists(st.tuples(st.integers(0, len(_VALID) - 1), st.integers(0, 255)), min_size=1, max_size=8))
def test_mutated_text_is_read_or_refused(changes: list[tuple[int, int]]) -> None:
    raw = bytearray(_VALID)
    for place, value in changes:
        raw[place] = value
    try:
        tree = read(raw.decode("latin-1"), "f.yaml")
    except UsageError as error:
        assert error.message.startswith("f.yaml:")  # noqa: PT017 - either outcome is right
    else:
        json.dumps(tree)
