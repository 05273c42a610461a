"""What an exception says in one line, whatever banner a package puts around it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

importing: Any = import_module("envkit.smoke.importing")
NUMPY = """

IMPORTANT: PLEASE READ THIS FOR ADVICE ON HOW TO SOLVE THIS ISSUE!

Importing the numpy C-extensions failed. This error can happen for many reasons.

Original error was: libopenblas.so.0: cannot open shared object file: No such file or directory
"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", ""),
        ("\n\n  one line  \nanother", "one line"),
        ("=====BUG REPORT=====\n*****\nThe library was not found", "The library was not found"),
        (NUMPY, "Original error was: libopenblas.so.0: cannot open shared object file: No such file or directory"),
        ("ONLY CAPITALS", "ONLY CAPITALS"),
    ],
)
def test_the_first_line_that_says_something(text: str, line: str) -> None:
    assert importing.meaningful(text) == line


def raised(*errors: BaseException, suppress: bool = False) -> BaseException:
    """The last of these exceptions, each raised while the one before it was handled."""
    before: BaseException | None = None
    for error in errors:
        error.__context__ = before
        error.__suppress_context__ = suppress
        before = error
    assert before is not None
    return before


def test_the_cause_that_names_a_library_comes_before_what_was_made_of_it() -> None:
    loader = OSError("libsndfile.so.1: cannot open shared object file: No such file or directory")
    found = importing.described(raised(loader, ImportError("Could not import the backend")))
    assert (found["type"], found["line"]) == ("OSError", str(loader))
    assert "Could not import the backend" in found["text"]


def test_another_cause_is_in_the_text_and_not_the_line() -> None:
    found = importing.described(raised(KeyError("DISPLAY"), ImportError("no backend")))
    assert (found["type"], found["line"], found["text"]) == ("ImportError", "no backend", "no backend | 'DISPLAY'")
    hidden = importing.described(raised(KeyError("DISPLAY"), ImportError("no backend"), suppress=True))
    assert hidden["text"] == "no backend"


def test_the_reason_of_an_exit_comes_before_its_code() -> None:
    found = importing.described(raised(ModuleNotFoundError("No module named 'onnxruntime'"), SystemExit(1)))
    assert (found["type"], found["line"]) == ("ModuleNotFoundError", "No module named 'onnxruntime'")
    assert importing.described(SystemExit(1))["type"] == "SystemExit"


def test_a_circle_of_causes_ends() -> None:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    assert importing.described(first)["text"] == "first | second"


def test_a_long_message_is_cut() -> None:
    found = importing.described(ValueError("x" * 10_000))
    assert (len(found["line"]), len(found["text"])) == (300, 600)
