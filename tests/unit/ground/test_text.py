import re
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from envkit.ground.text import LINE_LIMIT, Lines, aligned, neutral, without_empty


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("plain text\r\n", "plain text"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]52;c;aGVsbG8=\x07clip", "clip"),
        ("\x1b]0;title\x1b\\shown", "shown"),
        ("a\tb", "a\tb"),
        ("nul\x00bell\x07", "nul\\x00bell\\x07"),
        ("over\rwrite", "over\\x0dwrite"),
        ("evil\u202etxt.exe", "evil\\x202etxt.exe"),
        ("::set-output name=a::b", ": :set-output name=a::b"),
        ("  ::add-mask::x", "  : :add-mask::x"),
        ("##[group]x", "# #[group]x"),
        ("##vso[task.setvariable]x", "# #vso[task.setvariable]x"),
        ("a ::b", "a ::b"),
        ("a ##[add-mask]x", "a # #[add-mask]x"),
        ("  | ##vso[task.setvariable variable=a]b", "  | # #vso[task.setvariable variable=a]b"),
        ("x##teamcity[message text='a']", "x# #teamcity[message text='a']"),
        ("##\x1b[0m[group]x", "# #[group]x"),
        ("a ::set-output name=a::b", "a : :set-output name=a::b"),
        ("at::native::add(at::Tensor const&)", "at::native::add(at::Tensor const&)"),
        ("std::vector<::c10::Half>::push_back", "std::vector<::c10::Half>::push_back"),
        ("# a comment ## b [c]", "# a comment ## b [c]"),
        ("tag\U000e0041", "tag\\xe0041"),
        ("naïve 日本", "naïve 日本"),
    ],
)
def test_neutral(line: str, expected: str) -> None:
    assert neutral(line) == expected


def test_a_long_line_is_cut_and_says_so() -> None:
    cut = neutral("x" * (LINE_LIMIT + 5))
    assert cut.endswith("[... 5 characters cut]")
    assert len(cut) < LINE_LIMIT + 100


@given(st.text() | st.text(alphabet="#:[]vsoa \x1b\x00"))
def test_nothing_unsafe_comes_through(line: str) -> None:
    clean = neutral(line)
    assert not [char for char in clean if unicodedata.category(char) == "Cc" and char != "\t"]
    assert not clean.lstrip().startswith("::")
    assert not re.search(r"##\w*\[", clean)
    assert neutral(clean) == clean or len(clean) > LINE_LIMIT


@given(st.text(alphabet="ab\n\r", max_size=60), st.integers(min_value=1, max_value=7))
@example(text="a\r\nb", size=2)
def test_lines_are_the_same_however_they_come(text: str, size: int) -> None:
    lines, found = Lines(), []
    for start in range(0, len(text), size):
        found += lines.feed(text[start : start + size])
    found += lines.rest()
    assert found == text.splitlines()


def test_a_line_without_end_does_not_fill_memory() -> None:
    lines = Lines()
    pieces = [line for _ in range(100) for line in lines.feed("x" * 1000)]
    assert pieces
    assert len("".join(lines.rest())) <= 2 * LINE_LIMIT


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    assert aligned([("a", "b"), ("long", "c")]) == ["a     b", "long  c"]
    assert aligned([("日本", "b"), ("abc", "")], indent=" ") == [" 日本  b", " abc"]
    assert aligned([["a", "b"], ["xx", "1"], ["x", "22"]], left=1) == ["a    b", "xx   1", "x   22"]
    assert aligned([]) == []


def test_a_column_is_left_out_if_it_is_empty_in_every_row() -> None:
    assert without_empty(("a", "b"), [("", "1"), ("", "2")]) == [["b"], ["1"], ["2"]]
    assert without_empty(("a", "b"), []) == []
