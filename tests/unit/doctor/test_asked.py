"""Questions that users asked in public threads in 2025 and 2026: `doctor --log` answers each of them first."""

import io
import re
from pathlib import Path
from typing import Any

import pytest

from envkit.doctor.logs import diagnose_log
from envkit.ground import strictyaml


def _questions() -> list[dict[str, Any]]:
    tree = strictyaml.read_file(Path(__file__).parent / "asked.yaml")
    assert isinstance(tree, dict)
    assert tree["schema"] == "1"
    return list(tree["questions"])


QUESTIONS = _questions()


def test_there_are_twenty_of_different_threads() -> None:
    sources = [one["source"] for one in QUESTIONS]
    assert len(sources) >= 20
    assert len(set(sources)) == len(sources)
    assert all(re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", source) for source in sources)


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda one: one["source"])
def test_the_answer_comes_first(question: dict[str, Any]) -> None:
    found = diagnose_log(io.BufferedReader(io.BytesIO(question["log"].encode())), "log").findings
    assert found, question["asked"]
    first = found[0]
    assert (first.id, str(first.severity)) == (question["answer"], question["severity"])
    told = " ".join((first.title, first.cause, first.distinguish, *first.fix, *first.check))
    assert question["says"] in told
