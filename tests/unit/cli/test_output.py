"""Tables on stdout that is no terminal."""

from __future__ import annotations

import pytest

from envkit.cli.output import show_table


def test_a_column_without_any_value_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    show_table(("name", "note", "count"), [("x", "", "1"), ("yy", "", "22")], title="things")
    assert capsys.readouterr().out == "things\nname  count\nx     1\nyy    22\n"


def test_text_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    show_table(("name",), [("a\x1b[31mb",)])
    assert "\x1b" not in capsys.readouterr().out
