"""One verification from start to end: inspect the image, run the payload in it, judge outside, build the record."""

from __future__ import annotations

import json
import re
import secrets
import time
import uuid
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from envkit.checks import catalog
from envkit.checks.catalog import judges
from envkit.checks.model import Verdict
from envkit.ground.errors import (
    RAISE_TIMEOUT,
    EngineError,
    EnvironmentProblem,
    EnvkitError,
    NotVerifiedError,
    PayloadError,
    TimeLimitError,
)
from envkit.ground.pressure import Pressure
from envkit.ground.progress import Forwarding, counted
from envkit.image.name import InEngine
from envkit.run.model import DATA, RunLimits
from envkit.verify.baseline import held_to
from envkit.verify.exit_status import trouble_of
from envkit.verify.exitcode import Reason, Trouble, summarize
from envkit.verify.judge import NOT_OBSERVED, Judged, judge, not_selected
from envkit.verify.launch import launch_checks
from envkit.verify.normalize import normalized
from envkit.verify.payload import last_line, parse_document, payload_archive, suite_digest
from envkit.verify.record import Record, RunFacts, build_record, fingerprint
from envkit.verify.spec import spec_of_labels, spec_of_plan, start_of
from envkit.verify.static import image_facts, promise_of, static_checks
from envkit.verify.user_data import LIMIT_S, SAYS, without_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from envkit.checks.catalog import CheckEntry
    from envkit.checks.model import Finding
    from envkit.ground.progress import Reporter
    from envkit.image.name import ImageName
    from envkit.plan.model import BuildPlan
    from envkit.run.model import Isolation, Runner, RunResult
    from envkit.verify.baseline import Baseline
    from envkit.verify.static import ImageFacts
    from envkit.verify.user_data import UserData

FOLDER = "/run/envkit"
TAIL_LINES = 30  # of stderr in the record of a failed run
_TAIL_BYTES = 16_000  # enough for TAIL_LINES of 500 characters each, which is where `_tail` cuts a line
_START_S = 60.0
"""Seconds on top of the checks' own limits, for the container's start and the import of torch."""
_TRACE_S = 60.0
"""Seconds for the payload to record a trace."""
_NOTES = 20
"""Lines about the user's data that are shown without --verbose."""
# The same as TIME_FACTOR of envkit.smoke.suite.
_TIME_FACTOR = 4
"""The payload interrupts a check after this multiple of its budget."""
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")  # CSI sequences, such as colors: ESC [ 31 m
# For an image without a plan: the usual paths of an environment's Python.
# `exec` replaces the shell, so that the container's exit code and signals are those of Python.
_FIND_PYTHON = (
    "for p in /opt/env/bin/python /opt/conda/bin/python python3 python; do "
    'if command -v "$p" >/dev/null 2>&1; then exec "$p" "$@"; fi; done; echo "no Python in this image" >&2; exit 127'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How to verify. `gpus` is the engine's GPU request, such as `all`; None for no GPU."""

    gpus: str | None = None
    tier: str = "quick"
    allow_cpu: bool = False
    require_gpu: bool = False
    timeout_s: float | None = None  # None: from the checks' budgets
    memory_mb: int | None = None  # None: the runner's default
    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    argv: tuple[str, ...] = ()  # the command line, for the record
    launch: Mapping[str, Any] | None = None  # how the payload runs for a comparison: {threads, body_factor}
    distrusted: frozenset[str] = frozenset()  # hardware on which the self-test found timing unreliable
    baseline: Baseline | None = None
    data: UserData | None = None  # what C12 and C22 read instead of data of their own
    # Requests a profile of a small training job; called with the payload's document, or None if there is none.
    on_trace: Callable[[Mapping[str, Any] | None], None] | None = None


class CountingChecks(Forwarding):
    """A reporter that advances when a check begins: the payload prints the check's ID and title to stderr."""

    def __init__(self, reporter: Reporter, selected: Sequence[CheckEntry], *, notes: int = 0) -> None:
        super().__init__(reporter)
        self._notes = notes  # how many more lines about the user's data are shown as notes
        self._left = {entry.id for entry in selected}
        self._total = len(self._left)

    def log(self, line: str) -> None:
        """Pass the line on, and advance if it starts the next check. Lines about the user's data become notes."""
        # The image writes these lines. Without a limit, it could fill the terminal with notes.
        if line.startswith(SAYS) and self._notes:
            self._notes -= 1
            self.note(_printable(line))
            return
        super().log(line)
        check = line.partition(" ")[0]
        if check in self._left:
            self._left.discard(check)
            self.advance(self._total - len(self._left) - 1, self._total)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """What is verified and how, as known before the payload runs."""

    image: ImageName
    plan: BuildPlan | None
    runner: Runner
    isolation: Isolation
    on_host: bool  # a Python of this machine instead of an image
    asked: Options
    selected: Sequence[CheckEntry]
    facts: ImageFacts
    tags: tuple[str, ...]  # of the image, as the runner knows them
    spec: dict[str, Any]
    started: datetime
    begin: float  # of a monotonic clock


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ended:
    """The outcome of a run: its document, its trouble, or both."""

    document: dict[str, Any] | None = None
    trouble: Trouble | None = None
    result: RunResult | None = None
    launched: tuple[Judged, ...] = ()  # findings on how the image starts


def verify_image(
    image: ImageName, plan: BuildPlan | None, runner: Runner, reporter: Reporter, options: Options | None = None
) -> Record:
    """Verify an image and return its record. A failed run also gives a record, with its exit code.

    Without `plan` the spec comes from the image's labels; without labels the results are informational.

    Raises:
        EngineError: the image does not exist or cannot be inspected.
        UsageError: the tier or a check ID is unknown.
    """
    asked = options or Options()
    selected = catalog.select(asked.tier, asked.only, asked.skip)
    started, begin = datetime.now(UTC), time.monotonic()
    reporter.step("inspect the image")
    inspected = runner.inspect(image)
    facts, on_host = image_facts(inspected), runner.name == "host"
    case = _Case(
        image=image, plan=plan, runner=runner, isolation=runner.isolation, on_host=on_host, asked=asked,
        selected=selected, facts=facts, tags=tuple(inspected.get("tags") or ()),
        spec=_spec(plan, facts, asked, on_host=on_host), started=started, begin=begin,
    )  # fmt: skip
    ended, suite = _run(case, reporter), suite_digest()
    env = ended.document["env"] if ended.document is not None else {}
    prints = fingerprint(env, tier=asked.tier, suite_sha256=suite, launch=asked.launch, data=case.spec.get("data"))
    trusted = prints["hw"] not in asked.distrusted
    excerpt = None if asked.baseline is None else asked.baseline.excerpt(prints)
    judged = _judge(case, ended, excerpt, trusted=trusted)
    return build_record(
        run=_run_facts(case, ended, suite, trusted=trusted),
        subject=_subject(case),
        spec=case.spec,
        document=ended.document,
        judged=judged,
        summary=summarize(judged, case.spec, trouble=ended.trouble),
        baseline=excerpt,
    )


def _run(case: _Case, reporter: Reporter) -> _Ended:
    """Run the payload in the image, then start the image as its users do."""
    asked, facts, selected, spec = case.asked, case.facts, case.selected, case.spec
    archive = payload_archive()
    reporter.step(f"verify: {counted(len(selected), 'check')}")
    argv = (*_python(case.plan, on_host=case.on_host), *_arguments(asked, selected))
    files = {f"{FOLDER}/payload.pyz": archive, f"{FOLDER}/spec.json": json.dumps(spec).encode()}
    files |= {f"{FOLDER}/code/{name}": source for name, source in (asked.data.code if asked.data else {}).items()}
    pressure = Pressure()
    limits = _limits(asked, selected, spec, pressure)
    counting = CountingChecks(reporter, selected, notes=_NOTES if asked.data else 0)
    # By ID, because the tag may move meanwhile.
    target = InEngine(name=facts.id) if facts.id and not case.on_host else case.image
    run = case.runner.run
    ended = _ended(
        lambda: _public(run(target, argv, files, gpus=asked.gpus, limits=limits, reporter=counting), asked.data),
        spec["nonce"],
        pressure,
    )
    if asked.on_trace is not None:
        asked.on_trace(ended.document)
    # S05 and S06 time nothing, so launches for a comparison leave them out.
    if case.on_host or ended.result is None or asked.launch is not None:
        return ended

    def start(command: Sequence[str], own: RunLimits) -> RunResult:
        limits = replace(own, memory_mb=asked.memory_mb)
        return run(target, command, {}, gpus=None, limits=limits, reporter=reporter, entrypoint=True)

    launched = launch_checks(start, entrypoint=facts.entrypoint, prefix=spec["prefix"], nonce=spec["nonce"])
    return replace(ended, launched=launched)


def _judge(case: _Case, ended: _Ended, baseline: Mapping[str, Any] | None, *, trusted: bool) -> tuple[Judged, ...]:
    """Judge the image as inspected, its starts, the payload's document, and its metrics against the baseline."""
    absent = absent_because(ended.trouble if ended.document is None else None)
    missing = case.isolation.missing
    judged = (
        *(() if case.on_host else static_checks(case.facts, case.plan)),
        *ended.launched,
        *judge(
            ended.document, case.spec, case.selected, judges(), absent=absent, trust_timing=trusted, missing=missing
        ),
        *not_selected(catalog.select(case.asked.tier), case.selected),
    )
    return (*judged, *held_to(judged, baseline))


def _run_facts(case: _Case, ended: _Ended, suite: str, *, trusted: bool) -> RunFacts:
    asked, result = case.asked, ended.result
    return RunFacts(
        id=str(uuid.uuid4()),
        started=case.started.isoformat(timespec="seconds").replace("+00:00", "Z"),
        duration_s=time.monotonic() - case.begin,
        tier=asked.tier,
        suite_sha256=suite,
        argv=without_folder(asked.argv),
        runner=case.runner.name,
        isolation=case.isolation.to_json(),
        gpus=asked.gpus,
        selected=tuple(entry.id for entry in case.selected),
        exit_code=None if result is None else result.exit_code,
        stderr_tail=_tail(result.stderr) if result is not None and ended.trouble is not None else (),
        launch=asked.launch,
        trouble=ended.trouble,
        timing_trusted=trusted,
    )


def _subject(case: _Case) -> dict[str, Any]:
    """Return what the record says of the image."""
    plan, facts = case.plan, case.facts
    return {
        "image": case.image.typed,
        "id": facts.id or None,
        "tags": list(case.tags),
        "plan": plan.digest if plan else None,
        "name": plan.name if plan else None,
        "architecture": facts.architecture or None,
        "size_bytes": facts.size,
        "promise": promise_of(plan).to_json() if plan and not case.on_host else None,
    }


def absent_because(trouble: Trouble | None) -> Finding:
    """Return the finding for checks without an observation; `trouble` is set if the whole document is missing."""
    if trouble is None:
        return NOT_OBSERVED
    busy = trouble.verdict is Verdict.INCONCLUSIVE
    return replace(
        NOT_OBSERVED,
        verdict=Verdict.INCONCLUSIVE if busy else Verdict.ERROR,
        message=f"not reported: {trouble.reason.code}",
    )


_TOO_MUCH = Trouble(
    verdict=Verdict.ERROR,
    exit_code=PayloadError.exit_code,
    reason=Reason(code="PAYLOAD_OUTPUT", message="the image printed more than the output limit and was stopped"),
)


def _ended(run: Callable[[], RunResult], nonce: str, pressure: Pressure) -> _Ended:
    """Run the payload and return the outcome; `pressure` began with the run."""
    try:
        return _read(run(), nonce)
    except TimeLimitError as error:
        busy = pressure.busy()
        return _Ended(trouble=_trouble("TIME_LIMIT", error, RAISE_TIMEOUT) if busy is None else _late(error, busy))
    except EngineError as error:
        return _Ended(trouble=_trouble("ENGINE", error, error.hint))
    except EnvironmentProblem as error:
        return _Ended(trouble=_trouble("SURROUNDINGS", error, error.hint))


def _public(result: RunResult, data: UserData | None) -> RunResult:
    """Return a run's result without the lines of stderr that name the user's files."""
    return result if data is None else replace(result, stderr=data.without_names(result.stderr))


def _read(result: RunResult, nonce: str) -> _Ended:
    """Return the outcome of a finished run. Its document is kept even if the exit code says that it failed."""
    lines = _tail(result.stderr)
    # The document is at the end of the output, so output that was cut off has none.
    if result.output_cut:
        return _Ended(trouble=_TOO_MUCH, result=result)
    died = trouble_of(result.exit_code, oom_killed=result.oom_killed, last_line=lines[-1] if lines else "")
    try:
        document = normalized(parse_document(result.stdout, nonce))
    except PayloadError as error:
        # A process that died explains why there is no document.
        return _Ended(trouble=died or _trouble("PAYLOAD_OUTPUT", error, error.hint), result=result)
    return _Ended(document=document, trouble=died, result=result)


def _spec(plan: BuildPlan | None, facts: ImageFacts, asked: Options, *, on_host: bool) -> dict[str, Any]:
    """Return the spec for the payload and the judges."""
    spec = {**(spec_of_plan(plan) if plan else spec_of_labels(facts.labels)), "allow_cpu": asked.allow_cpu}
    volumes = plan.volumes if plan is not None else ()
    # What the image really starts: a later step of a Dockerfile may have changed what the plan says.
    spec["start"] = None if on_host else start_of(facts.entrypoint, facts.cmd, facts.workdir, volumes)
    if on_host:
        spec["prefix"] = None  # a plan's prefix is a path inside its image
    if asked.require_gpu:
        spec["gpu"] = True
    if asked.launch is not None:
        spec["launch"] = dict(asked.launch)
    if asked.data is not None:
        spec["data"] = asked.data.spec
    spec["nonce"] = secrets.token_hex(16)
    return spec


def _limits(asked: Options, selected: Sequence[CheckEntry], spec: Mapping[str, Any], pressure: Pressure) -> RunLimits:
    effort = float((asked.launch or {}).get("effort", 1))
    budget_s = catalog.budget_s(selected, asked.tier) * effort * _TIME_FACTOR + _START_S
    more_s = (0.0 if asked.on_trace is None else _TRACE_S) + (0.0 if asked.data is None else LIMIT_S)
    limits = RunLimits(
        timeout_s=asked.timeout_s or pressure.stretched(budget_s + more_s),
        memory_mb=asked.memory_mb,
        last_line=last_line(spec["nonce"]),
        data=asked.data.folder if asked.data else None,
    )
    return replace(limits, shm_mb=spec["shm_mb"]) if spec["shm_mb"] else limits


def _python(plan: BuildPlan | None, *, on_host: bool) -> tuple[str, ...]:
    """Return the command of Python: the plan's, on the host the runner's, else the first one that the image has."""
    if on_host:
        return ("python",)
    return (f"{plan.prefix}/bin/python",) if plan is not None else ("/bin/sh", "-c", _FIND_PYTHON, "sh")


def _arguments(asked: Options, selected: Sequence[CheckEntry]) -> tuple[str, ...]:
    arguments = (f"{FOLDER}/payload.pyz", "--spec", f"{FOLDER}/spec.json", "--tier", asked.tier)
    narrowed = ("--only", ",".join(entry.id for entry in selected)) if asked.only or asked.skip else ()
    traced = () if asked.on_trace is None else ("--trace",)
    data = () if asked.data is None or asked.data.folder is None else ("--data", DATA)
    return (*arguments, *narrowed, *traced, *data)


def _late(error: TimeLimitError, busy: str) -> Trouble:
    """Return the trouble of a run that reached its limit on a busy machine, which says nothing about the image."""
    reason = Reason(
        code="TIME_LIMIT",
        message=f"{error.message}; the machine was busy ({busy})",
        advice=f"run it again while nothing else uses this machine, or {RAISE_TIMEOUT}",
    )
    return Trouble(verdict=Verdict.INCONCLUSIVE, exit_code=NotVerifiedError.exit_code, reason=reason)


def _trouble(code: str, error: EnvkitError, advice: str | None) -> Trouble:
    reason = Reason(code=code, message=error.message, advice=advice)
    return Trouble(verdict=Verdict.ERROR, exit_code=error.exit_code, reason=reason)


def _tail(stderr: bytes) -> tuple[str, ...]:
    """Return the last lines of the payload's stderr, without terminal control sequences."""
    text = _ESCAPES.sub("", stderr[-_TAIL_BYTES:].decode("utf-8", "replace"))
    lines = [_printable(line) for line in text.splitlines()]
    return tuple(line[:500] for line in lines if line.strip())[-TAIL_LINES:]


def _printable(line: str) -> str:
    return "".join(char for char in line if char.isprintable() or char == "\t")
