"""Questions from public threads and the right answers: asked.yaml, where each has its source."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from envkit.facts.load import load
from envkit.ground.errors import ConflictError, UsageError
from envkit.resolve.conflict import Unresolvable
from envkit.resolve.model import Resolution
from envkit.resolve.request import parse
from envkit.resolve.resolver import resolve
from tests.unit.resolve.conftest import fields_of

CASES: list[dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("asked.yaml").read_text())


def wrong(case: Mapping[str, Any]) -> list[str]:
    """What is wrong with the answer to a question; empty when it is right."""
    facts = load()
    try:
        found = resolve(parse(fields_of(case["ask"]), facts), facts)
    except Unresolvable as error:
        told = " ".join((error.message, *error.details, error.hint or ""))
        missing = [text for text in case.get("refused", ()) if text not in told]
        return missing if "refused" in case else [f"refused: {told}"]
    except (UsageError, ConflictError) as error:
        right = "hint" in case and case["hint"] in f"{error.message} {error.hint}"
        return [] if right else [f"not understood: {error.message}"]
    if "gives" not in case:
        return [f"resolved to torch {found.torch} with CUDA {found.cuda}"]
    return [f"{field} is {_has(found, field)}" for field, want in case["gives"].items() if not _is(found, field, want)]


def _has(found: Resolution, field: str) -> Any:
    if field == "driver":
        return found.driver and found.driver.mode
    return getattr(found, field)


def _is(found: Resolution, field: str, want: Any) -> bool:
    has = _has(found, field)
    if field == "warnings":
        return any(want in line for line in has)
    if field == "reasons":
        return any(want in line for line in has.values())
    if field == "index":
        return bool(has.endswith(want))
    if isinstance(has, tuple):
        return list(has) == ([str(want)] if not isinstance(want, list) else want)
    return bool(has == want)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['source']}: {case['ask']}")
def test_what_people_asked(case: dict[str, Any]) -> None:
    assert wrong(case) == []


def test_every_question_has_a_source() -> None:
    assert len(CASES) >= 25
    for case in CASES:
        repository, _, number = case["source"].partition("#")
        assert repository.count("/") == 1
        assert number.isdigit()
        assert case["question"].endswith((".", "?"))
        assert len({"gives", "refused", "hint"} & set(case)) == 1
