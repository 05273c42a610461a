"""Find the bottleneck of a training from its record. Pure, so a verdict can be recomputed.

Each rule checks one kind of limit and returns a finding if a change is worth it, with the share of the step time that
could be gained. The findings are ordered by that share.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from envkit.ground.errors import UsageError
from envkit.ground.sizes import shown_size
from envkit.watch import advice
from envkit.watch.advice import Advice
from envkit.watch.ending import Ending, ending
from envkit.watch.hanging import hanging, straggler
from envkit.watch.measures import Measures, Place, measure
from envkit.watch.model import WARM_UP, Record, Total, read
from envkit.watch.symptoms import Symptoms, load


class Answer(StrEnum):
    """The kinds of answers."""

    FOUND = "found"
    NOTHING = "nothing found"
    TOO_SHORT = "too short to say"
    NO_STEPS = "no training seen"
    FAILED = "the job failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One limit: its kind, the share of the step time that it costs, what was measured, and what to change."""

    kind: str
    title: str
    headline: str
    share: float | None  # None: it is not a part of a step
    part: str  # of the step; two limits of the same part are one
    cause: str
    evidence: tuple[str, ...]
    advice: tuple[Advice, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgment:
    """The answer to a record."""

    answer: Answer
    headline: str
    findings: tuple[Finding, ...]
    measures: Measures

    @property
    def is_past(self) -> bool:
        """Whether waiting for data was a limit and no longer is."""
        return self.measures.is_past(load().limit("worth"))

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready tree."""
        return {
            "answer": str(self.answer),
            "headline": self.headline,
            "parts": dict(self.measures.parts) if self.measures.steps else {},
            "findings": [asdict(finding) for finding in self.findings],
        }


_COMPUTING = "computing"  # a part of a step
_CAUSES = ("rank-bound", "pinned")  # kinds that make ranks wait for each other, or batches late
_SHOWN = 3  # places
# What a training that failed within its warm-up did, by the kind of event.
_SEEN = {
    "next": "waiting for data", "compile": "compiling", "backward": "in backward", "collective": "in collectives",
}  # fmt: skip
Rule = Callable[[Record, Measures, Symptoms], Finding | None]


def judge_file(path: Path) -> Judgment:
    """Read a record and judge it.

    Raises:
        UsageError: the file cannot be read, is not a record, or has invalid values.
    """
    record = read(path)
    try:
        return judge(record)
    # Records are read without checking every field: facts may have another type, and a sample a duration of 0.
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise UsageError(
            f"{path}: the record cannot be judged: {error!r:.200}",
            hint="envkit watch -o FILE -- COMMAND writes a record",
        ) from error


def judge(record: Record) -> Judgment:
    """Return the bottlenecks of a training."""
    symptoms, measures = load(), measure(record)
    least_steps, least_s = symptoms.limit("least_steps"), symptoms.limit("least_seconds")
    if not record.injected:
        return _answer(record, measures, symptoms, _FROM_OUTSIDE)
    failed = ending(record)
    if measures.steps < least_steps or measures.seconds < least_s:
        answer, text = _too_few(record, measures, symptoms)
        # What has already lost much time needs no mean over many steps.
        found = [one for rule in (_hanging, _compiled) if (one := rule(record, measures, symptoms)) is not None]
        if failed is not None:
            found, answer = [*found, _failed(failed, record, measures, symptoms)], Answer.FAILED
        elif found:
            answer = Answer.FOUND
        headline = f"{found[0].title}: {found[0].headline}" if found else f"{answer}: {text}"
        return Judgment(answer=answer, headline=headline, findings=tuple(found), measures=measures)
    judgment = _answer(record, measures, symptoms, _FROM_INSIDE)
    if failed is None:
        return judgment
    return replace(judgment, findings=(*judgment.findings, _failed(failed, record, measures, symptoms)))


def _too_few(record: Record, measures: Measures, symptoms: Symptoms) -> tuple[Answer, str]:
    """Return the answer for too few steps."""
    least_steps, least_s = symptoms.limit("least_steps"), symptoms.limit("least_seconds")
    if measures.steps:
        return Answer.TOO_SHORT, (
            f"{measures.steps} {measures.units} in {measures.seconds:.1f} s after the warm-up; "
            f"at least {least_steps:.0f} and {least_s:.0f} s are needed"
        )
    for units, kind in (("optimizer steps", "optimizer"), ("batches", "next")):
        if seen := max((process.total(kind).count for process in record.processes), default=0):
            return Answer.TOO_SHORT, f"{units}: {seen}; the first {WARM_UP} are the warm-up"
    if record.seconds < least_s and record.processes:
        return Answer.TOO_SHORT, f"the training ended after {record.seconds:.1f} s"
    return Answer.NO_STEPS, (
        "no process imported torch with the probes (python -S, -I and -E leave them out), or there were no optimizer "
        "steps and no DataLoader batches"
    )


def _answer(record: Record, measures: Measures, symptoms: Symptoms, rules: tuple[Rule, ...]) -> Judgment:
    findings = [outcome for rule in rules if (outcome := rule(record, measures, symptoms)) is not None]
    # What is the cause of other limits comes first. Computing comes last, however large it is.
    findings.sort(key=lambda one: (one.kind not in _CAUSES, one.kind == "compute-bound", -(one.share or 0.0)))
    findings = _merged(findings)
    if not record.injected and not record.samples:
        text = f"{Answer.TOO_SHORT}: the process was observed for {record.seconds:.1f} s"
        return Judgment(answer=Answer.TOO_SHORT, headline=text, findings=(), measures=measures)
    if not findings:
        worth = symptoms.limit("worth")
        text = f"{Answer.NOTHING}: no part that a change could shorten takes more than {worth:.0%} of the time"
        return Judgment(answer=Answer.NOTHING, headline=text, findings=(), measures=measures)
    first = findings[0]
    return Judgment(
        answer=Answer.FOUND, headline=f"{first.title}: {first.headline}", findings=tuple(findings), measures=measures
    )


def _merged(findings: list[Finding]) -> list[Finding]:
    """Return findings of which no two say the same: of two for one part, the first gets the advice of both."""
    kept: list[Finding] = []
    for finding in findings:
        at = next((at for at, one in enumerate(kept) if finding.part == one.part or finding.kind == one.kind), None)
        if at is None:
            kept.append(finding)
            continue
        one = kept[at]
        known = {change.id for change in one.advice}
        kept[at] = replace(
            one,
            evidence=tuple(dict.fromkeys((*one.evidence, *finding.evidence))),
            advice=(*one.advice, *(change for change in finding.advice if change.id not in known)),
        )
    return kept


def _compiled(record: Record, measures: Measures, symptoms: Symptoms) -> Finding | None:
    """Return what the compiler took of a run with too few steps to say more, if it was most of it."""
    # Of a process without steps the whole run counts.
    spans = [
        (process.total("compile"), process.seconds if process.steps else record.seconds) for process in record.processes
    ]
    total, seconds = max(spans, key=lambda one: one[0].seconds, default=(Total(), 1.0))
    if total.seconds < seconds / 2:
        return None
    seen = [f"{total.seconds:.0f} of {seconds:.0f} s, {_times(total.count, 'compilation')}"]
    share = min(1.0, total.seconds / seconds)
    changes = advice.for_compiling(measures, symptoms)
    finding = _finding("compiling", share, measures, evidence=seen, changes=changes)
    within = f"the {measures.units} after the warm-up" if measures.steps else "the run"
    return replace(finding, headline=f"torch.compile compiles during {share:.0%} of {within}")


def _before(record: Record) -> str:
    """Return what a training did before it failed, "" if nothing is known."""
    trained = [
        process for process in record.processes if process.total("next").count or process.total("optimizer").count
    ]
    spent = {
        name: max((process.total(kind).seconds for process in trained), default=0.0) / max(record.seconds, 1e-9)
        for kind, name in _SEEN.items()
    }
    parts = [f"{share:.0%} {name}" for name, share in spent.items() if share >= load().limit("worth")]
    return f"before that: {', '.join(parts)}" if parts else ""


def _failed(failed: Ending, record: Record, measures: Measures, symptoms: Symptoms) -> Finding:
    changes = [
        Advice(id="without_probes", text=symptoms.text("without_probes", command=failed.without)),
        Advice(id="from_outside", text=symptoms.text("from_outside")),
    ]
    # With steps, the parts of a step say what it did.
    seen = [*failed.evidence, *filter(None, [] if measures.steps else [_before(record)])]
    finding = _finding("failed", 0.0, measures, evidence=seen, changes=changes)
    return replace(finding, headline=failed.headline, share=None)


def _finding(
    kind: str,
    share: float,
    measures: Measures,
    *,
    evidence: list[str],
    changes: list[Advice],
    part: str | None = None,
) -> Finding:
    row = load().kinds[kind]
    return Finding(
        kind=kind,
        title=row.title,
        headline=row.headline.format(share=f"{share:.0%}", unit=measures.unit),
        share=share,
        part=part or kind,
        cause=row.cause,
        evidence=tuple(evidence),
        advice=tuple(changes),
    )


def _data(record: Record, measures: Measures, symptoms: Symptoms) -> Finding | None:
    loading, worth = measures.loading, symptoms.limit("worth")
    if loading.share < worth or measures.is_past(worth):
        return None
    seen = [f"{loading.share:.0%} of {milliseconds(measures.step_s)} per {measures.unit} is spent in next(loader)"]
    if loading.make_s is not None:
        cpu = "" if not loading.make_cpu_s else f", {milliseconds(loading.make_cpu_s)} of it on a CPU"
        seen.append(f"one batch takes {milliseconds(loading.make_s)} to make{cpu}; num_workers={loading.workers}")
    if loading.epochs >= loading.share / 2:
        seen.append(f"{loading.epochs:.0%} is lost at the start and end of epochs, where workers start and stop")
    if measures.cpus is not None:
        seen.append(f"{measures.cpus:.1f} of {measures.usable:g} CPUs are busy")
    return _finding(
        "data-bound", loading.share, measures, evidence=seen, changes=advice.for_data(record, measures, symptoms)
    )


def _copies(record: Record, measures: Measures, symptoms: Symptoms) -> Finding | None:
    copying = measures.copying
    if copying.share < symptoms.limit("worth"):
        return None
    rate = "" if copying.rate is None else f" at {shown_size(copying.rate, 'GB', 1)}/s"
    seen = [
        f"{shown_size(copying.bytes_per_step, 'MB', 1)} per {measures.unit} are copied to the GPU{rate}",
        f"{copying.pageable:.0%} of the bytes come from pageable memory, {copying.blocking:.0%} of the copies block",
    ]
    if measures.cards.link_bytes_per_s is not None:
        seen.append(f"the PCIe link can carry {shown_size(measures.cards.link_bytes_per_s, 'GB')}/s")
    return _finding(
        "copy-bound", copying.share, measures, evidence=seen, changes=advice.for_copies(record, measures, symptoms)
    )


def _communication(record: Record, measures: Measures, symptoms: Symptoms) -> Finding | None:
    del record  # all rules have the same parameters
    if measures.communication < symptoms.limit("worth") or measures.ranks < 2:  # noqa: PLR2004 - one rank alone waits for nobody
        return None
    spent = milliseconds(measures.communication * measures.step_s)
    seen = [f"{spent} of {milliseconds(measures.step_s)} per {measures.unit}, {measures.ranks} ranks"]
    if measures.bytes_reduced >= 1e6:  # noqa: PLR2004 - a MB
        seen.append(f"{shown_size(measures.bytes_reduced, 'MB')} of gradients are reduced in each {measures.unit}")
    if measures.imbalance >= symptoms.limit("imbalance"):
        seen.append(f"the slowest rank takes {measures.imbalance:.0%} longer for its own work than the fastest")
    changes = advice.for_communication(measures, symptoms)
    return _finding("communication-bound", measures.communication, measures, evidence=seen, changes=changes)


def _starved(record: Record, measures: Measures, symptoms: Symptoms) -> Finding | None:
    """Check whether the main thread waits for a CPU, or a quota stops it, or its loader has no CPU left."""
    queued, stopped = measures.queued or 0.0, measures.throttled or 0.0
    share = max(queued, stopped)
    if share < symptoms.limit("worth") or _pinned(record, measures, symptoms) is not None:
        return None
    seen = [f"main threads wait for a CPU {queued:.0%} of the time"]
    if stopped >= symptoms.limit("worth"):
        seen.append(f"the CPU quota stops the training {stopped:.0%} of the time")
    if measures.cpus is not None:
        is_full = measures.cpus >= symptoms.limit("cpu_full") * measures.usable
        rest = "" if is_full or stopped >= queued else "; other programs use the rest"
        seen.append(f"the training keeps {measures.cpus:.1f} of {measures.usable:g} CPUs busy{rest}")
    if measures.threads:
        seen.append(
            f"ranks: {measures.ranks}, torch threads per rank: {measures.threads}, "
            f"workers per rank: {measures.loading.workers}"
        )
    return _finding("cpu-starved", share, measures, evidence=seen, changes=advice.for_cpus(measures, symptoms))


def _pinned(record: Record, measures: Measures, symptoms: Symptoms) -> Finding | None:
    """Check whether the training may use fewer CPUs than the machine has, and needs more."""
    if measures.allowed is None:
        return None
    queued, used = measures.queued or 0.0, measures.cpus or 0.0
    # On a machine that others use, too, the processes wait for the CPU and cannot fill it.
    is_full = measures.wanted >= symptoms.limit("cpu_full") * measures.allowed
    # A loader whose workers have no CPU left keeps the training waiting for data.
    share = max(queued, measures.loading.share if is_full else 0.0)
    if share < symptoms.limit("worth"):
        return None
    cpus = record.machine.cpus
    allowed = "1 CPU" if measures.allowed == 1 else f"{measures.allowed} CPUs"
    seen = [
        f"all processes of the training may run on {allowed} only; {cpus:g} are allowed to envkit, which started it",
        f"they keep {used:.1f} CPUs busy and could use {measures.wanted:.1f}",
    ]
    changes = advice.for_affinity(record, measures, symptoms)
    finding = _finding("pinned", share, measures, evidence=seen, changes=changes)
    return replace(finding, headline=f"the training may use {measures.allowed} of {cpus:g} CPUs")


def _compiling(record: Record, measures: Measures, symptoms: Symptoms) -> Finding | None:
    del record  # all rules have the same parameters
    compiling = measures.compiling
    if compiling.share < symptoms.limit("worth"):
        return None
    often = f"{_times(compiling.times, 'compilation')} in {measures.steps} {measures.units} after the warm-up"
    seen = [f"{often}, the longest {milliseconds(compiling.longest_s)}"]
    changes = advice.for_compiling(measures, symptoms)
    return _finding("compiling", compiling.share, measures, evidence=seen, changes=changes)


def _waiting(record: Record, measures: Measures, symptoms: Symptoms) -> Finding | None:
    """Check whether the thread that trains does something else than the model."""
    del record  # all rules have the same parameters
    waiting = measures.waiting
    if waiting.share < symptoms.limit("worth"):
        return None
    seen = [f"{place.share:.0%} {_place(place)}" for place in waiting.places[:_SHOWN]]
    if waiting.looks:
        seen.append(f"from {waiting.looks} looks at the thread that trains, outside of data, backward and optimizer")
    else:
        seen.append(
            "outside of data, forward, backward and optimizer; the thread's stack could not be read, so it is not "
            "known where"
        )
    if measures.main_cpus is not None:
        seen.append(f"the main thread keeps {measures.main_cpus:.0%} of one CPU busy")
    finding = _finding(
        "waiting", waiting.share, measures, evidence=seen, changes=advice.for_waiting(measures, symptoms)
    )
    first = f": {_place(waiting.places[0])}" if waiting.places else ""
    return replace(finding, headline=f"{finding.headline}{first}")


def _place(place: Place) -> str:
    doing = load().doings[place.kind]
    return f"{doing} at {place.where}" if place.where else doing


def _hanging(record: Record, measures: Measures, symptoms: Symptoms) -> Finding | None:
    """Check whether a rank waited for ever for another one after its last step."""
    late = hanging(record)
    if late is None:
        return None
    at = f" at {late.where}" if late.where else ""
    doing = load().doings.get(late.other_doing, "")
    last = f", then it was {doing} at {late.other_where}" if doing and late.other_where else ", then none"
    seen = [
        f"{late.rank}: {late.steps} steps, then it waited {late.seconds:.1f} s{at}",
        f"{late.other}: {late.other_steps} steps{last}",
    ]
    changes = [Advice(id="uneven", text=symptoms.text("uneven"))]
    finding = _finding("rank-bound", 0.0, measures, evidence=seen, changes=changes)
    headline = f"{late.rank} waited {late.seconds:.1f} s for {late.other} after its last step"
    return replace(finding, headline=headline, share=None)


def _uneven(record: Record, measures: Measures, symptoms: Symptoms) -> Finding | None:
    """Check whether ranks wait for one: for ever after their last step, or in each step."""
    if (late := _hanging(record, measures, symptoms)) is not None:
        return late
    slow = straggler(record)
    if slow is None or measures.slowest is None:
        return None
    own = f"{slow.rank} takes {milliseconds(slow.seconds)} per {measures.unit} for its own work"
    seen = [f"{own}, {slow.fastest} {milliseconds(slow.fastest_s)}", f"the parts above are those of {slow.rank}"]
    finding = _finding(
        "rank-bound", slow.share, measures, evidence=seen, changes=advice.for_straggler(slow, measures, symptoms)
    )
    headline = f"{slow.fastest} waits {slow.share:.0%} of each {measures.unit} for {slow.rank}"
    return replace(finding, headline=headline)


def _times(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _throttled(record: Record, measures: Measures, symptoms: Symptoms) -> Finding | None:
    del record  # all rules have the same parameters
    cards = measures.cards
    lost = 0.0 if cards.clock is None else max(0.0, 1 - cards.clock)
    is_slowed = cards.slowed >= symptoms.limit("throttled")
    # A power cap at nearly full clock is a card's normal state, so the clock has to be low as well.
    is_capped = cards.capped >= symptoms.limit("throttled") and lost > 1 - symptoms.limit("clock")
    if not (is_slowed or is_capped):
        return None
    seen = [f"{cards.slowed + cards.capped:.0%} of the busy samples: {', '.join(cards.reasons)}"]
    if cards.clock is not None:
        seen.append(f"the clock is at {cards.clock:.0%} of its maximum")
    return _finding("throttled", lost, measures, evidence=seen, changes=advice.for_clock(measures, symptoms))


def _memory(record: Record, measures: Measures, symptoms: Symptoms) -> Finding | None:
    cards, worth = measures.cards, symptoms.limit("worth")
    if measures.retries >= worth:
        used = "" if cards.memory_used is None else f"; {cards.memory_used:.0%} of the GPU's memory is in use"
        seen = [
            f"{measures.retries:.1f} allocations per {measures.unit} failed, freed the cache and were tried again{used}"
        ]
        return _finding(
            "memory-bound",
            measures.computing,
            measures,
            evidence=seen,
            changes=advice.for_full_memory(measures, symptoms),
            part=_COMPUTING,
        )
    stalled = measures.pressure_memory or 0.0
    if stalled >= symptoms.limit("pressure"):
        seen = [
            f"processes wait for memory {stalled:.0%} of the time, {measures.faults:.0f} pages per second from a disk"
        ]
        return _finding(
            "memory-bound", stalled, measures, evidence=seen, changes=advice.for_host_memory(measures, symptoms)
        )
    if (cards.memory_util or 0) >= symptoms.limit("memory_busy") and (cards.util or 0) >= symptoms.limit("busy"):
        seen = [
            f"the GPU's memory is read or written {cards.memory_util:.0f} % of the time, kernels run {cards.util:.0f} %"
        ]
        changes = advice.for_bandwidth(record, measures, symptoms)
        return _finding("memory-bound", measures.computing, measures, evidence=seen, changes=changes, part=_COMPUTING)
    return None


def _launches(record: Record, measures: Measures, symptoms: Symptoms) -> Finding | None:
    idle = None if measures.cards.util is None else max(0.0, 1 - measures.cards.util / 100)
    if measures.drained is None or not _is_ahead(measures, symptoms):
        return None
    # Faster launches can gain at most the time in which no kernel runs.
    share = measures.computing if idle is None else min(measures.computing, idle)
    if share < symptoms.limit("launch_worth"):
        return None
    seen = [
        f"in {measures.drained:.0%} of the {measures.units} the GPU had finished when the host queued the optimizer"
    ]
    if measures.cards.util is not None:
        seen.append(f"kernels run {measures.cards.util:.0f} % of the time")
    if measures.main_cpus is not None:
        seen.append(f"the main thread keeps {measures.main_cpus:.0%} of one CPU busy")
    if measures.syncs >= 1:
        seen.append(f"{measures.syncs:.0f} times per {measures.unit} the host waits for a value from the GPU")
    return _finding(
        "launch-bound", share, measures, evidence=seen, changes=advice.for_launches(record, measures, symptoms)
    )


def _computing(record: Record, measures: Measures, symptoms: Symptoms) -> Finding | None:
    is_device = measures.drained is not None
    if measures.computing < symptoms.limit("compute") or _is_ahead(measures, symptoms):
        return None
    # A model whose threads wait for a CPU most of the time does not compute then: that is a limit of its own.
    if max(measures.queued or 0.0, measures.throttled or 0.0) > 1 / 2:
        return None
    changes = advice.for_computing(record, measures, symptoms)
    if not changes:
        return None
    seen = [
        f"{milliseconds(measures.computing * measures.step_s)} of {milliseconds(measures.step_s)} per {measures.unit}",
        f"{measures.backward:.0%} in backward, {measures.optimizer:.0%} in the optimizer",
    ]
    if is_device and measures.cards.util is not None:
        seen.append(f"kernels run {measures.cards.util:.0f} % of the time")
    elif measures.cpus is not None:
        seen.append(f"{measures.cpus:.1f} of {measures.usable:g} CPUs are busy")
    precision = "autocast is on" if measures.autocast else "autocast is not used"
    seen.append(f"{precision}, torch.compile is {'used' if measures.compiled else 'not used'}")
    return _finding("compute-bound", measures.computing, measures, evidence=seen, changes=changes, part=_COMPUTING)


def _is_ahead(measures: Measures, symptoms: Symptoms) -> bool:
    return measures.is_device_ahead(symptoms.limit("drained"), symptoms.limit("device_waits")) is True


def _outside(record: Record, measures: Measures, symptoms: Symptoms) -> Finding | None:
    """Report an idle GPU. From outside it is not visible what the GPU waits for."""
    util = measures.cards.util
    if util is None or util >= symptoms.limit("busy"):
        return None
    idle = 1 - util / 100
    full = (measures.cpus or 0) >= symptoms.limit("cpu_full") * record.machine.cpus
    kind = "cpu-starved" if full else "data-bound"
    seen = [f"kernels run {util:.0f} % of the time; {measures.cpus or 0:.1f} of {record.machine.cpus:g} CPUs are busy"]
    seen.append("from outside it is not visible whether the GPU waits for data, copies or launches")
    again = Advice(id="watch", text="start the training with `envkit watch -- COMMAND`, which distinguishes these")
    return _finding(kind, idle, measures, evidence=seen, changes=[again])


def milliseconds(seconds: float) -> str:
    """Return a time as text: in milliseconds below a second, else in seconds."""
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.1f} ms"


_FROM_INSIDE: tuple[Rule, ...] = (
    _uneven, _data, _copies, _communication, _compiling, _waiting, _pinned, _starved, _throttled, _memory, _launches,
    _computing,
)  # fmt: skip
_FROM_OUTSIDE: tuple[Rule, ...] = (_throttled, _starved, _memory, _outside)
