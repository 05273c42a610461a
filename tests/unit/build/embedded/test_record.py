import pytest
from hypothesis import given
from hypothesis import strategies as st

from envkit.build.embedded import record

_TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r\n"), min_size=1, max_size=30)


@given(st.lists(st.tuples(_TEXT, _TEXT, _TEXT), max_size=6))
def test_rows_come_back_as_they_were_written(rows: list[record.Row]) -> None:
    assert record.parse(record.render(rows).decode()) == tuple(rows)


def test_a_row_has_the_hash_without_padding_and_the_size() -> None:
    assert record.row("a.py", b"") == ("a.py", "sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU", "0")


def test_carriage_returns_and_empty_lines_do_not_matter() -> None:
    assert record.parse('a,b,1\r\n\r\n"x,y",,\n') == (("a", "b", "1"), ("x,y", "", ""))


def test_a_row_of_another_width_is_refused() -> None:
    with pytest.raises(ValueError, match="row 2 has 2 columns, not 3"):
        record.parse("a,b,1\na,b\n")


def test_rows_that_nothing_touches_are_the_wheels_own() -> None:
    rows = (("a.py", "sha256=x", "1"), ("b.py", "sha256=y", "2"))
    assert record.changed(rows, moved={}, replaced={}, dropped=frozenset()) is None
    assert record.changed(rows, moved={"z": "y"}, replaced={}, dropped=frozenset({"w"})) is None


def test_moved_replaced_and_dropped_rows() -> None:
    rows = (("a", "sha256=x", "1"), ("d/scripts/s", "sha256=y", "2"), ("INSTALLER", "", ""))
    new = record.changed(
        rows, moved={"d/scripts/s": "../bin/s"}, replaced={"d/scripts/s": b"#!x\n"}, dropped=frozenset({"INSTALLER"})
    )
    assert new == (rows[0], record.row("../bin/s", b"#!x\n"))
