"""Judge the log of a payload that another system ran, such as a pod."""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from envkit.checks import catalog
from envkit.checks.catalog import judges
from envkit.checks.model import Verdict
from envkit.ground.errors import PayloadError, UsageError
from envkit.verify.driver import Options, absent_because
from envkit.verify.exit_status import trouble_of
from envkit.verify.exitcode import Reason, Trouble, summarize
from envkit.verify.judge import judge, not_selected
from envkit.verify.normalize import normalized
from envkit.verify.payload import END_MARK, MAX_BYTES, parse_document, suite_digest
from envkit.verify.question import EXIT_MARK, Question
from envkit.verify.record import Record, RunFacts, build_record, fingerprint

RUNNER = "observed"
_HINT = "kubectl logs POD > FILE, without --timestamps and --prefix, when the pod has ended"
_EXIT_LINE = re.compile(rf"{re.escape(EXIT_MARK)} (\d{{1,3}}) ([0-9a-f]{{32}})".encode())  # envkit.payload.exit 0 NONCE
_END_LINE = re.compile(rf"{re.escape(END_MARK)} ([0-9a-f]{{32}})".encode())  # envkit.payload.end NONCE


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer in a log: what the payload `printed`, and its `exit_code` if a shell printed that."""

    question: Question
    printed: bytes
    exit_code: int | None


def answer_of(log: bytes, questions: Sequence[Question]) -> Answer:
    """Match a log with the question that it answers.

    Raises:
        PayloadError: the log is cut off, or answers none of the questions.
        UsageError: the question is for another version of the payload.
    """
    if len(log) > MAX_BYTES:
        raise PayloadError(f"the log has more than the {MAX_BYTES} bytes that a payload may print", hint=_HINT)
    printed, _, last = log.rstrip().rpartition(b"\n")
    ended = _EXIT_LINE.fullmatch(last.strip())
    closed = None if ended else _END_LINE.fullmatch(last.strip())
    if ended is None and closed is None:
        tail = "".join(char for char in last[-160:].decode("utf-8", "replace") if char.isprintable())
        message = f"the log is cut off or not from a payload; its last line is: {tail or 'nothing'}"
        raise PayloadError(message, hint=_HINT)
    nonce = (ended[2] if ended else closed[1] if closed else b"").decode()
    question = next((candidate for candidate in questions if candidate.nonce == nonce), None)
    if question is None:
        names = ", ".join(candidate.name for candidate in questions[:5])
        raise PayloadError(
            f"the log belongs to another question ({nonce[:12]}…), not to one about {names}",
            hint="give --questions the export that the job was made from; each export has its own questions",
        )
    if question.suite_sha256 != suite_digest():
        raise UsageError(
            f"the payload in the job ({question.suite_sha256[:12]}…) is not the version of this envkit "
            f"({suite_digest()[:12]}…), so the rules do not match",
            hint="judge with the envkit that exported the job, or export the job again",
        )
    return Answer(
        question=question,
        # Without an exit code from a shell, the log itself ends with the payload's mark.
        printed=printed if ended else log,
        exit_code=int(ended[1]) if ended else None,
    )


def judge_answer(answer: Answer, options: Options) -> Record:
    """Return the record of a run that envkit did not start. The image is not inspected, so S00 to S06 are missing.

    Of the options only those for judging are used, not those for running.
    """
    question = answer.question
    spec = {**question.spec, "nonce": question.nonce, "allow_cpu": options.allow_cpu}
    if options.require_gpu:
        spec["gpu"] = True
    document, trouble = _read(answer)
    env = document["env"] if document is not None else {}
    prints = fingerprint(env, tier=question.tier, suite_sha256=question.suite_sha256)
    trusted = prints["hw"] not in options.distrusted
    selected = catalog.select(question.tier, question.checks if question.narrowed else ())
    judged = (
        *judge(
            document,
            spec,
            selected,
            judges(),
            absent=absent_because(trouble if document is None else None),
            trust_timing=trusted,
        ),
        *not_selected(catalog.select(question.tier), selected),
    )
    run = RunFacts(
        id=str(uuid.uuid4()),
        started=_started(document),
        duration_s=float(document["duration_s"]) if document is not None else 0.0,
        tier=question.tier,
        suite_sha256=question.suite_sha256,
        argv=options.argv,
        runner=RUNNER,
        gpus=None,
        selected=tuple(entry.id for entry in selected),
        exit_code=answer.exit_code,
        stderr_tail=(),
        trouble=trouble,
        timing_trusted=trusted,
    )
    subject: dict[str, Any] = {
        "image": question.image,
        "id": None,
        "tags": [],
        "plan": question.spec.get("plan"),
        "name": question.name,
        "architecture": None,
        "size_bytes": None,
        "promise": None,
    }
    return build_record(
        run=run,
        subject=subject,
        spec=spec,
        document=document,
        judged=judged,
        summary=summarize(judged, spec, trouble=trouble),
    )


def _read(answer: Answer) -> tuple[dict[str, Any] | None, Trouble | None]:
    """Return the document, the trouble of the run, or both."""
    # A log does not say whether the kernel's OOM killer ended the container.
    died = None if answer.exit_code is None else trouble_of(answer.exit_code, oom_killed=False, last_line="")
    try:
        document = normalized(parse_document(answer.printed, answer.question.nonce))
    except PayloadError as error:
        reason = Reason(code="PAYLOAD_OUTPUT", message=error.message, advice=error.hint)
        return None, died or Trouble(verdict=Verdict.ERROR, exit_code=error.exit_code, reason=reason)
    return document, died


def _started(document: dict[str, Any] | None) -> str:
    """Return when the payload began, by its own clock; without a valid time, now."""
    if document is not None:
        try:
            began = _utc(datetime.fromisoformat(document["started"]))
        except (ValueError, OverflowError):  # not a time, or in UTC outside of the years 1 to 9999
            began = datetime.now(UTC)
    else:
        began = datetime.now(UTC)
    return began.isoformat(timespec="seconds").replace("+00:00", "Z")


def _utc(time: datetime) -> datetime:
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
