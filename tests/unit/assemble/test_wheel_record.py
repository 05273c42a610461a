import pytest
from hypothesis import given
from hypothesis import strategies as st

from envkit.assemble import wheel_files

_TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r\n"), min_size=1, max_size=30)


@given(st.lists(st.tuples(_TEXT, _TEXT, _TEXT), max_size=6))
def test_rows_come_back_as_they_were_written(rows: list[wheel_files.Row]) -> None:
    assert tuple(wheel_files.parse_record(wheel_files.render_record(rows).decode())) == tuple(rows)


def test_a_row_has_the_hash_without_padding_and_the_size() -> None:
    assert wheel_files.record_row("a.py", b"") == ("a.py", "sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU", "0")


def test_carriage_returns_and_empty_lines_do_not_matter() -> None:
    assert list(wheel_files.parse_record('a,b,1\r\n\r\n"x,y",,\n')) == [("a", "b", "1"), ("x,y", "", "")]


def test_a_row_of_another_width_is_refused() -> None:
    with pytest.raises(ValueError, match="row 2 has 2 columns, not 3"):
        list(wheel_files.parse_record("a,b,1\na,b\n"))


def test_rows_that_nothing_touches_are_the_wheels_own() -> None:
    row = ("a.py", "sha256=x", "1")
    assert wheel_files.installed_row(row, moved={}, replaced={}, dropped=frozenset()) == row
    assert wheel_files.installed_row(row, moved={"z": "y"}, replaced={"z": b""}, dropped=frozenset({"w"})) == row


def test_moved_replaced_and_dropped_rows() -> None:
    moved, replaced = {"d/scripts/s": "../bin/s", "d/data/x": "../x"}, {"d/scripts/s": b"#!x\n"}

    def after(path: str) -> wheel_files.Row | None:
        return wheel_files.installed_row(
            (path, "sha256=y", "2"), moved=moved, replaced=replaced, dropped=frozenset({"GONE"})
        )

    assert after("d/scripts/s") == wheel_files.record_row("../bin/s", b"#!x\n")
    assert after("d/data/x") == ("../x", "sha256=y", "2")
    assert after("GONE") is None


@pytest.mark.parametrize(
    ("path", "out"),
    [
        ("../../etc/passwd", True),
        ("/etc/passwd", True),
        ("a/../b", True),
        ("..\\x", True),
        ("a..b/c", False),
        ("a", False),
    ],
)
def test_a_row_that_leads_out(path: str, *, out: bool) -> None:
    assert wheel_files.leads_out(path) is out
