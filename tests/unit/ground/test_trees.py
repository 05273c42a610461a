from __future__ import annotations

import time

import pytest

from envkit.ground import trees
from envkit.ground.errors import IntegrityError, UsageError


@pytest.mark.requirement("R4")
@pytest.mark.parametrize(
    ("data", "what"),
    [
        ("9" * 5000, "an integer of 5000 digits"),
        ("-" + "9" * 400, "-999999999999999999999999999999999999999 is too large"),
        ('{"a": NaN}', "NaN is not a JSON number"),
        ("[Infinity]", "Infinity is not a JSON number"),
        ("[-Infinity]", "-Infinity is not a JSON number"),
        ("1e999", "1e999 is too large"),
        ("-1" + "0" * 400 + ".5", "-100000000000000000000000000000000000000 is too large"),
        ("[" * 100_000, "nested deeper than 64 levels"),
        ("[" * 65 + "]" * 65, "nested deeper than 64 levels"),
        ('{"a":' * 65 + "1" + "}" * 65, "nested deeper than 64 levels"),
        (r'"\ud800"', "a text has half of a surrogate pair"),
        (r'{"\udfff": 1}', "a text has half of a surrogate pair"),
        (b'"\xff"', "byte 0xff at 1 is not UTF-8"),
        ("", "Expecting value: line 1 column 1 (char 0)"),
        ("{} {}", "Extra data: line 1 column 4 (char 3)"),
    ],
)
def test_json_that_no_reader_expects_is_refused(data: str | bytes, what: str) -> None:
    with pytest.raises(IntegrityError) as caught:
        trees.from_json(data, "d.json", error=IntegrityError, hint="try again")
    assert (caught.value.message, caught.value.hint) == (f"d.json is not JSON: {what}", "try again")


def test_json_that_readers_expect_is_read() -> None:
    text = r'{"a": [1, -2.5, 18446744073709551615, true, null], "b": "\ud83d\ude00", "b": 1e299}'
    assert trees.from_json(b"\xef\xbb\xbf" + text.encode(), "d.json") == {
        "a": [1, -2.5, 18446744073709551615, True, None], "b": 1e299
    }  # fmt: skip
    with pytest.raises(UsageError, match="the key 'b' is given twice"):
        trees.from_json(text, "d.json", unique=True)


@pytest.mark.requirement("R4")
@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("version = " + "9" * 5000, "an integer of more than 4300 digits"),
        ("a = 0x" + "f" * 5000, "an integer of 20000 bits"),
        ("a = 0b1" + "0" * 1000, "an integer of 1001 bits"),
        ("a = inf", "inf is not a finite number"),
        ("a = [-nan]", "-nan is not a finite number"),
        ("a = 1e999", "1e999 is not a finite number"),
        ("a = " + "[" * 100_000, "nested deeper than 64 levels"),
        ("a = " + "{a=" * 65 + "1" + "}" * 65, "nested deeper than 64 levels"),
        ("[" + "a." * 500_000 + "a]", "a key has more than 64 parts (at line 1)"),
        ("\n" + '"a" . ' * 100_000 + "a = 1", "a key has more than 64 parts (at line 2)"),
        ("x = {" + "a." * 100_000 + "a = 1}", "a key has more than 64 parts (at line 1)"),
        ("a = 1\na = 2", "Cannot overwrite a value (at end of document)"),
    ],
)  # fmt: skip
def test_toml_that_no_reader_expects_is_refused(text: str, what: str) -> None:
    before = time.process_time()
    with pytest.raises(UsageError) as caught:
        trees.from_toml(text, "d.toml")
    assert caught.value.message == f"d.toml: {what}"
    assert time.process_time() - before < 2


def test_toml_with_many_dots_in_its_texts_is_read() -> None:
    dots = "a." * 100
    text = f'# {dots}\na = "{dots}"\nb = \'{dots}\'\nc = """\n{dots}"""\nd = [{"1.5, " * 100}]\ne.f = 1.25\n'
    assert trees.from_toml(text, "d.toml")["e"] == {"f": 1.25}
