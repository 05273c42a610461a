from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envkit.ground.errors import EnvkitError, PayloadError, UsageError
from envkit.verify.driver import Options
from envkit.verify.observed import answer_of, judge_answer
from envkit.verify.payload import MAX_BYTES
from envkit.verify.question import Question, question_of
from envkit.verify.record import Record, schema
from tests.support.again import assert_same_again
from tests.support.judging import document, observation, plan, printed
from tests.support.schema import faults

CUDA = question_of(plan(), name="train", image="registry.example.com/team/train:cuda", only=("C04",))
CPU = question_of(plan(cuda=None), name="cpu", image="registry.example.com/team/train:cpu", only=("C05",))
ASKED = (CUDA, CPU)


def answer_to(question: Question, *checks: dict[str, Any], **fields: Any) -> bytes:
    return printed({**document(*checks, nonce=question.nonce), **fields}, question.nonce)


def told(question: Question, code: int) -> bytes:
    """What the shell around the payload prints after it."""
    return f"\nenvkit.payload.exit {code} {question.nonce}\n".encode()


def judged(log: bytes, options: Options | None = None) -> Record:
    record = judge_answer(answer_of(log, ASKED), options or Options())
    assert faults(record.tree, schema()) == []
    assert_same_again(record)
    return record


def codes(record: Record) -> list[str]:
    return [reason["code"] for reason in record.tree["summary"]["reasons"]]


NO_GPU = (observation("C04", "gpu:0", "skip"),)


def test_a_gpu_image_that_met_no_gpu_is_not_verified() -> None:
    record = judged(answer_to(CUDA, *NO_GPU) + told(CUDA, 0))
    assert (record.verdict, record.exit_code) == ("NOT_VERIFIED", 5)
    assert "NO_GPU" in codes(record)


def test_the_record_says_what_ran_where_and_when() -> None:
    tree = judged(answer_to(CPU, observation("C05.fp32")) + told(CPU, 0)).tree
    assert (tree["run"]["runner"], tree["run"]["started"]) == ("observed", "2026-01-01T00:00:00Z")
    assert tree["run"]["payload"]["exit_code"] == 0
    assert tree["run"]["selected"] == ["C05"]
    assert (tree["subject"]["name"], tree["subject"]["image"]) == ("cpu", CPU.image)
    assert tree["subject"]["plan"] == plan(cuda=None).digest
    assert CPU.nonce not in str(tree)
    assert not [check for check in tree["checks"] if check["id"].startswith("S")]


@pytest.mark.parametrize(
    "started", ["yesterday", "0001-01-01T00:00:00+14:00", "2026-01-01T02:00:00+02:00", "2026-01-01T00:00:00"]
)
def test_a_clock_in_any_form_gives_a_time(started: str) -> None:
    tree = judged(answer_to(CPU, observation("C05.fp32"), started=started)).tree
    assert tree["run"]["started"].endswith("Z")
    if started.startswith("2026-01-01"):
        assert tree["run"]["started"] == "2026-01-01T00:00:00Z"


def test_a_log_without_the_shells_line_is_judged_too() -> None:
    tree = judged(b"entry point says hello\n" + answer_to(CPU, observation("C05.fp32"))).tree
    assert tree["run"]["payload"]["exit_code"] is None


def test_a_payload_that_crashed_fails_the_image() -> None:
    record = judged(b"Fatal Python error\n" + told(CPU, 139))
    assert (record.verdict, record.exit_code) == ("FAIL", 6)
    assert codes(record)[0] == "CRASHED"


def test_a_document_with_a_bad_exit_is_kept_and_the_exit_decides() -> None:
    record = judged(answer_to(CPU, observation("C05.fp32")) + told(CPU, 134))
    assert record.tree["run"]["suite_version"] == "1"
    assert (record.exit_code, codes(record)[0]) == (6, "ABORTED")


def test_a_broken_document_is_an_error() -> None:
    record = judged(b'{"schema": \n' + f"envkit.payload.end {CPU.nonce}\n".encode() + told(CPU, 0))
    assert (record.verdict, record.exit_code, codes(record)[0]) == ("ERROR", 6, "PAYLOAD_OUTPUT")


def test_the_one_who_judges_may_accept_a_missing_gpu() -> None:
    log = answer_to(CUDA, *NO_GPU)
    assert judged(log, Options(allow_cpu=True)).tree["subject"]["spec"]["allow_cpu"] is True
    assert judged(log).tree["subject"]["spec"]["allow_cpu"] is False


def test_a_gpu_can_be_asked_of_a_cpu_image() -> None:
    log = answer_to(CPU, observation("C05.fp32"))
    assert judged(log, Options(require_gpu=True)).tree["summary"]["gpu"] == "absent"


OTHER = replace(CPU, image="registry.example.com/team/other:1")


@pytest.mark.parametrize(
    ("log", "kind", "words"),
    [
        (b"", PayloadError, "its last line is: nothing"),
        (b"Error from server (NotFound)\n", PayloadError, "its last line is: Error from server"),
        (answer_to(CPU)[:-20], PayloadError, "the log is cut"),
        (answer_to(CPU).splitlines()[0], PayloadError, "the log is cut"),
        (answer_to(OTHER), PayloadError, "belongs to another question"),
        (told(OTHER, 0), PayloadError, "belongs to another question"),
        (b"x" * (MAX_BYTES + 1), PayloadError, "more than the"),
        (b"\x1b[31mred\x00\n", PayloadError, r"\[31mred$"),
    ],
)
def test_what_is_no_answer_is_refused(log: bytes, kind: type[EnvkitError], words: str) -> None:
    with pytest.raises(kind, match=words):
        answer_of(log, ASKED)


def test_another_version_of_the_payload_is_refused() -> None:
    old = replace(CPU, suite_sha256="0" * 64)
    with pytest.raises(UsageError, match=r"the payload in the job \(000000000000…\) is not the version of this envkit"):
        answer_of(answer_to(old), (old,))


@given(st.integers(min_value=0, max_value=4000))
def test_no_beginning_of_a_log_is_taken_for_the_whole(length: int) -> None:
    whole = answer_to(CPU, observation("C05.fp32")) + told(CPU, 0)
    part = whole.rstrip()[: min(length, len(whole.rstrip()) - 1)]
    try:
        found = answer_of(part, ASKED)
    except PayloadError:
        return
    # Only the end mark may be the end: all of the document is there then.
    assert judge_answer(found, Options()).tree["run"]["suite_version"] == "1"
