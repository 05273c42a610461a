from __future__ import annotations

import json
import math
from importlib import import_module
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

observation: Any = import_module("envkit.smoke.observation")


PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
TREES = st.recursive(PLAIN, lambda item: st.lists(item) | st.dictionaries(st.text(), item), max_leaves=12)


def test_a_number_that_json_lacks_becomes_null_and_its_place_is_kept() -> None:
    found = observation.ran("C05.fp32", "cpu", {"error": math.nan, "deep": [{"x": -math.inf}], "fine": 0.5})
    assert found["observed"] == {"error": None, "deep": [{"x": None}], "fine": 0.5}
    assert found["nonfinite"] == {"observed.error": "nan", "observed.deep[0].x": "-inf"}


@given(TREES)
def test_whatever_a_check_saw_is_strict_json(tree: object) -> None:
    found = observation.ran("C05", "cpu", {"tree": tree}, [observation.control("c", True, tree)])
    json.dumps(found, allow_nan=False)


def divided() -> ZeroDivisionError:
    try:
        1 / 0  # noqa: B018 - it is there to raise
    except ZeroDivisionError as error:
        return error
    raise AssertionError("one can divide by zero")


def test_an_exception_is_kept_with_its_type_message_and_traceback() -> None:
    found = observation.raised("C08", "host", divided())
    assert (found["status"], found["reason"]["code"]) == ("error", "EXCEPTION")
    assert found["reason"]["message"] == "ZeroDivisionError: division by zero"
    assert "test_observation.py" in found["observed"]["traceback"]


def test_long_texts_are_cut() -> None:
    found = observation.failed("C08", "host", "LONG", "x" * 10_000)
    assert len(found["reason"]["message"]) == observation.TEXT_CHARS
    assert len(observation.control("c", False, "y" * 10_000)["detail"]) == observation.TEXT_CHARS
