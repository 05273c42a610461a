import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from envkit.ground.errors import EnvkitError, IntegrityError, UsageError
from envkit.verify.payload import suite_digest
from envkit.verify.question import Question, question_of, questions_json, questions_of, read_questions
from tests.support.judging import plan

IMAGE = "registry.example.com/team/train:cpu"


def question(**fields: Any) -> Question:
    return question_of(plan(), **{"name": "train", "image": IMAGE, **fields})


def test_the_same_question_has_the_same_nonce() -> None:
    assert question().nonce == question().nonce
    assert len(question().nonce) == 32


@pytest.mark.parametrize(
    "other",
    [
        question(name="other"),
        question(image=f"{IMAGE}2"),
        question(tier="deep"),
        question(only=("C01",)),
        question_of(plan(shm_mb=7), name="train", image=IMAGE),
        replace(question(), suite_sha256="0" * 64),
    ],
    ids=["name", "image", "tier", "checks", "plan", "payload"],
)
def test_another_question_has_another_nonce(other: Question) -> None:
    assert other.nonce != question().nonce


def test_the_payload_is_asked_what_the_plan_promises() -> None:
    asked = question(only=("C05", "C01"))
    spec = json.loads(asked.spec_json())
    assert spec["nonce"] == asked.nonce
    assert spec["plan"] == plan().digest
    assert spec["shm_mb"] == 512
    assert asked.suite_sha256 == suite_digest()
    assert asked.arguments("p", "s") == ("p", "--spec", "s", "--tier", "quick", "--only", "C01,C05")
    assert "--only" not in question().arguments("p", "s")


def test_an_unknown_check_is_refused_before_anything_is_written() -> None:
    with pytest.raises(UsageError, match="unknown check C99"):
        question(only=("C99",))


def test_questions_are_read_back_from_json_and_from_a_config_map(tmp_path: Path) -> None:
    asked = (question(), question(name="second"))
    plain, mapped = tmp_path / "questions.json", tmp_path / "questions.yaml"
    plain.write_text(questions_json(asked))
    mapped.write_text(
        "kind: Job\nmetadata: {name: first}\n---\n# one more\nkind: ConfigMap\ndata:\n"
        f"  questions.json: |\n    {questions_json(asked)}\n"
    )
    assert read_questions(plain) == read_questions(mapped) == asked


def changed(**fields: Any) -> str:
    tree = json.loads(questions_json([question()]))
    tree["questions"][0] |= fields
    return json.dumps(tree)


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ("kind: Job\n", UsageError, "no ConfigMap with questions.json"),
        ("{}", UsageError, r"has no questions \(envkit\.questions/1\): KeyError"),
        ('{"schema": "envkit.questions/9"}', UsageError, "schema is 'envkit.questions/9'"),
        ('{"schema": "envkit.questions/1", "questions": 5}', UsageError, "has no questions"),
        ('{"schema": "envkit.questions/1", "questions": [{}]}', UsageError, "has no questions"),
        ("{", UsageError, "is not JSON"),
        (changed(checks="C01"), UsageError, "a field has the wrong type"),
        (changed(spec=[]), UsageError, "a field has the wrong type"),
        (changed(image="registry.example.com/other:1"), IntegrityError, "about 'train' was changed"),
        (changed(spec={}), IntegrityError, "about 'train' was changed"),
    ],
)
def test_what_holds_no_sound_question_is_refused(
    text: str, kind: type[EnvkitError], words: str, tmp_path: Path
) -> None:
    path = tmp_path / "asked"
    path.write_text(text)
    with pytest.raises(kind, match=words):
        read_questions(path)


def test_errors_name_the_place() -> None:
    with pytest.raises(UsageError, match=r"^here has no questions"):
        questions_of("[]", "here")
