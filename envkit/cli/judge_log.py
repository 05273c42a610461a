"""`envkit verify --observed`: judge here what a payload printed in a job that another engine ran."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from envkit.ground.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

# What has no meaning for a run that has ended.
_RUNNING = {
    "images": "IMAGE",
    "plan_file": "--plan",
    "gpus": "--gpus",
    "runner": "--runner",
    "tier": "--tier",
    "only": "--only",
    "skip": "--skip",
    "timeout": "--timeout",
    "trace_file": "--trace",
    "self_test": "--self-test",
    "baseline": "--baseline",
    "new_baseline": "--write-baseline",
    "scheduler": "--scheduler",
    "workers": "--workers",
}
# What counts as proved: a log is judged with it for the first time, and a record says itself what it was.
_CLAIMS = {"allow_cpu": "--allow-cpu", "require_gpu": "--require-gpu"}
_EXAMPLE = "envkit verify --observed POD.log --questions verify.yaml"


def observing_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of this module to `envkit verify`."""
    options = (
        click.option(
            "--observed", metavar="LOG", help="Judge what the payload of an exported job printed; - is stdin."
        ),
        click.option(
            "--questions",
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="The exported file that --observed answers to.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def without_running(typed: Mapping[str, Any], thresholds: str) -> int:
    """Judge a kept record or another engine's log, as the options of `envkit verify` in `typed` say.

    Raises:
        UsageError: options contradict each other, or what they name cannot be read.
        PayloadError: the log is cut, or belongs to something else.
    """
    from envkit.cli.choices import exclude
    from envkit.cli.rejudge import judge_file

    exclude(judge=typed["judge"], observed=typed["observed"])
    exclude(judge=typed["judge"], questions=typed["questions"])
    exclude(allow_cpu=typed["allow_cpu"], require_gpu=typed["require_gpu"])
    flag = "--judge" if typed["judge"] is not None else "--observed"
    given = _RUNNING if typed["judge"] is None else _RUNNING | _CLAIMS
    wrong = [text for name, text in given.items() if typed[name]]
    if wrong:
        hint = "envkit verify --judge RECORD" if typed["judge"] is not None else _EXAMPLE
        raise UsageError(f"{wrong[0]} says how to run, and {flag} is a run that has ended", hint=hint)
    if typed["judge"] is not None:
        return judge_file(typed["judge"], thresholds, typed["document"], typed["reports"])
    if typed["questions"] is None or typed["observed"] is None:
        lacking = (
            ("questions", "the file with what was asked") if typed["observed"] else ("observed", "the log to judge")
        )
        raise UsageError(f"--{lacking[0]}, {lacking[1]}, is missing", hint=_EXAMPLE)
    return _judge_log(typed)


def _judge_log(typed: Mapping[str, Any]) -> int:
    from envkit.cli.record_output import publish
    from envkit.ground import paths
    from envkit.verify.driver import Options
    from envkit.verify.observed import answer_of, judge_answer
    from envkit.verify.question import read_questions
    from envkit.verify.selftest import distrusted

    state = paths.state_dir()
    answer = answer_of(_log(typed["observed"]), read_questions(typed["questions"]))
    options = Options(
        allow_cpu=typed["allow_cpu"],
        require_gpu=typed["require_gpu"],
        argv=tuple(sys.argv),
        distrusted=distrusted(state),
    )
    record = judge_answer(answer, options)
    code = publish(record, state, typed["document"], typed["reports"])
    click.echo(
        f"note: {answer.question.image} itself was not looked at, so S00 to S06 are left out; the payload ran "
        f"{record.tree['run']['started']}",
        err=True,
    )
    return code


def _log(name: str) -> bytes:
    """The log, one byte more than a payload may print at most.

    Raises:
        UsageError: the file cannot be read.
    """
    from envkit.verify.payload import MAX_BYTES

    try:
        if name == "-":
            return sys.stdin.buffer.read(MAX_BYTES + 1)
        with Path(name).open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(f"--observed {name}: {error.strerror or error}", hint=_EXAMPLE) from error
