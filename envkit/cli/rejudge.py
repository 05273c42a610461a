"""`envkit verify --judge` and `--observed`: judge a run that has ended, from its record or from the log of a job."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from envkit.cli.console import tell
from envkit.cli.options import exclude
from envkit.cli.record_output import publish
from envkit.ground.errors import UsageError

if TYPE_CHECKING:
    from envkit.checks.thresholds import Thresholds
    from envkit.cli.verify_flags import VerifyFlags

_EXAMPLE = "envkit verify --observed POD.log --questions verify.yaml"


def judge_ended(flags: VerifyFlags, document: str | None) -> int:
    """Judge a saved record or the log of an exported job, and return the exit code.

    Raises:
        UsageError: options contradict each other, or a file cannot be read.
        PayloadError: the log is truncated, or belongs to another question.
    """
    _check(flags)
    if flags.judge is not None:
        return _judge_record(flags.judge, flags, document)
    if flags.observed is None:
        raise UsageError("--questions needs --observed, the log to judge", hint=_EXAMPLE)
    if flags.questions is None:
        raise UsageError("--observed needs --questions, the exported file", hint=_EXAMPLE)
    return _judge_log(flags.observed, flags.questions, flags, document)


def _check(flags: VerifyFlags) -> None:
    exclude(judge=flags.judge, observed=flags.observed)
    exclude(judge=flags.judge, questions=flags.questions)
    exclude(allow_cpu=flags.allow_cpu, require_gpu=flags.require_gpu)
    running = {
        "IMAGE": flags.images,
        "--plan": flags.plan_file,
        "--gpus": flags.run.gpus,
        "--runner": flags.run.runner,
        "--tier": flags.run.tier,
        "--only": flags.run.only,
        "--skip": flags.run.skip,
        "--timeout": flags.timeout,
        "--trace": flags.trace_file,
        "--self-test": flags.self_test,
        "--baseline": flags.baseline,
        "--write-baseline": flags.new_baseline,
        "--scheduler": flags.scheduler,
        "--workers": flags.workers,
    }
    # A log is judged for the first time, so these apply. A record contains the options that it was judged with.
    claims = {"--allow-cpu": flags.allow_cpu, "--require-gpu": flags.require_gpu}
    wrong = [flag for flag, value in (running if flags.judge is None else running | claims).items() if value]
    if not wrong:
        return
    if flags.judge is not None:
        raise UsageError(f"{wrong[0]} and --judge contradict each other", hint="envkit verify --judge RECORD")
    raise UsageError(f"{wrong[0]} and --observed contradict each other", hint=_EXAMPLE)


def _judge_record(path: Path, flags: VerifyFlags, document: str | None) -> int:
    """Judge a record again from its own observations, and show it like a run."""
    from envkit.verify.again import judge_again, read_record

    which = flags.thresholds
    again = judge_again(read_record(path), _table(which))
    publish(again.record, None, document, flags.reports)
    used = {"record": "the record's own thresholds", "shipped": "the thresholds of this envkit"}.get(which, which)
    tell(f"judged again from the record, with {used}")
    if not again.same_rules:
        tell(f"note: the rules differ from those of envkit {again.judged_by}, which wrote the record")
    for line in again.changed:
        tell(f"changed: {line}")
    return again.record.exit_code


def _table(which: str) -> Thresholds | None:
    from envkit.checks import thresholds
    from envkit.ground import foreign

    if which == "record":
        return None
    if which == "shipped":
        return thresholds.shipped()
    try:
        text = foreign.text(Path(which))
    except UsageError as error:
        message = f"--thresholds {which} cannot be read: {error.message}"
        raise UsageError(message, hint="--thresholds record|shipped|FILE") from error
    table = thresholds.parse(text, which)
    known = set(thresholds.shipped().rows)
    missing, unread = sorted(known - set(table.rows)), sorted(set(table.rows) - known)
    if missing:
        raise UsageError(
            f"{which}: missing row {', '.join(missing)}",
            hint="start from all rows: python -m envkit.checks.thresholds > FILE",
        )
    if unread:
        raise UsageError(f"{which}: unknown row {', '.join(unread)}", hint="remove these rows")
    return table


def _judge_log(log: str, questions: Path, flags: VerifyFlags, document: str | None) -> int:
    from envkit.ground.paths import state_dir
    from envkit.verify.driver import Options
    from envkit.verify.observed import answer_of, judge_answer
    from envkit.verify.question import read_questions
    from envkit.verify.selftest import distrusted

    state = state_dir()
    answer = answer_of(_read(log), read_questions(questions))
    options = Options(
        allow_cpu=flags.allow_cpu,
        require_gpu=flags.require_gpu,
        argv=tuple(sys.argv),
        distrusted=distrusted(state),
    )
    record = judge_answer(answer, options)
    code = publish(record, state, document, flags.reports)
    tell(
        f"note: S00 to S06 are left out, because {answer.question.image} itself was not read; the payload started at "
        f"{record.tree['run']['started']}"
    )
    return code


def _read(name: str) -> bytes:
    """Return the log, up to one byte more than a payload may print, so that a longer log is recognized.

    Raises:
        UsageError: the file cannot be read.
    """
    from envkit.ground import foreign
    from envkit.verify.payload import MAX_BYTES

    try:
        if name == "-":
            return sys.stdin.buffer.read(MAX_BYTES + 1)
        with foreign.stream(Path(name)) as file:
            return file.read(MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(f"--observed {name}: {error.strerror or error}", hint=_EXAMPLE) from error
