"""A judgment as text: the answer, the parts of a step, each limit with evidence and advice; and a comparison of two."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence

from envkit.watch.advice import Advice
from envkit.watch.judge import Finding, Judgment, milliseconds
from envkit.watch.measures import Measures
from envkit.watch.model import Record

_BAR = 30  # cells of a whole step
_EIGHTHS = " ▏▎▍▌▋▊▉"
_INDENT, _LABEL = 4, 8
_NARROW = 1.3  # a range with a smaller ratio of its ends is shown as one number
_HARDLY = 1.02  # a gain below 2 % is not shown
_ASIDE = 0.02  # share of the time from which on a note mentions evaluation


def lines(record: Record, judgment: Judgment, *, width: int) -> Iterator[str]:
    """Yield the lines of a judgment; the first one is the answer."""
    yield f"watch: {judgment.headline}"
    yield ""
    yield f"  {_ran(record, judgment)}"
    if judgment.measures.steps:
        yield from _parts(judgment)
    for finding in judgment.findings:
        yield ""
        yield f"  {finding.title}{_share_of(finding, judgment)}"
        yield from _finding(finding, width=width)
    if judgment.is_past:
        late = judgment.measures.loading.late or 0.0
        yield f"  note: waiting for data fell to {late:.0%} in the last third of the time, as after a cache is filled"
    yield from _remarks(record)


def gain(advice: Advice) -> str:
    """Return the gain of a change as text, empty if it cannot be computed."""
    if advice.gain is None:
        return ""
    low, high = advice.gain
    # The change may also make the training slower, so both ends are shown.
    if low < 1 / _HARDLY:
        return f"{low:.1f}x to {high:.1f}x as fast"
    if low <= _HARDLY:
        return f"up to {high:.1f}x faster" if high > _HARDLY else ""
    if high / low < _NARROW:
        return f"about {(low + high) / 2:.1f}x faster"
    return f"{low:.1f}x to {high:.1f}x faster"


def compared(first: Judgment, second: Judgment) -> list[list[str]]:
    """Return two judgments side by side, as rows of a table: name, first, second, ratio."""
    left, right = first.measures, second.measures
    rows = [["answer", _short(first), _short(second), ""]]
    rows.append([f"time per {left.unit}", *_pair(_step(left), _step(right))])
    shares, others = dict(left.parts), dict(right.parts)
    for name in dict.fromkeys([*shares, *others]):
        share, other = shares.get(name, 0.0), others.get(name, 0.0)
        rows.append([f"  {name}", *_pair(_step(left, share), _step(right, other))])
    rows.append(["GPU utilization", _percent(left.cards.util), _percent(right.cards.util), ""])
    rows.append(["CPUs busy", _number(left.cpus), _number(right.cpus), ""])
    rows.append(["main threads wait for a CPU", _share(left.queued), _share(right.queued), ""])
    return [row for row in rows if any(row[1:])]


def _ran(record: Record, judgment: Judgment) -> str:
    measures = judgment.measures
    parts = []
    if measures.steps:
        ranks = f", {measures.ranks} ranks" if measures.ranks > 1 else ""
        parts.append(f"{measures.steps} {measures.units} of {milliseconds(measures.step_s)}{ranks}")
    parts.append(f"{record.seconds:.1f} s in all")
    if record.exit_code is not None:
        parts.append(f"exit code {record.exit_code}")
    cards = len(record.machine.gpus)
    parts.append(f"{record.machine.cpus:g} CPUs, {cards or 'no'} GPU{'' if cards == 1 else 's'}")
    return " · ".join(parts)


def _parts(judgment: Judgment) -> Iterator[str]:
    measures = judgment.measures
    column = max(len(name) for name, _ in measures.parts)
    for name, share in measures.parts:
        spent = milliseconds(share * measures.step_s)
        yield f"    {name:<{column}}  {bar(share):<{_BAR}}  {share:>4.0%}  {spent:>9}"


def bar(share: float) -> str:
    """Return a share as a bar of at most 30 cells."""
    eighths = round(max(0.0, min(1.0, share)) * _BAR * 8)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def _share_of(finding: Finding, judgment: Judgment) -> str:
    """Return what follows a title: the share of a step, or, without one, the headline, if that is not the answer."""
    if finding.share is not None:
        return f" ({finding.share:.0%})"
    return "" if finding is judgment.findings[0] else f": {finding.headline}"


def _finding(finding: Finding, *, width: int) -> Iterator[str]:
    room = max(40, width - _INDENT - _LABEL)
    yield from _labeled("seen", [line for text in finding.evidence for line in textwrap.wrap(text, room)])
    yield from _labeled("why", textwrap.wrap(finding.cause, room))
    for change in finding.advice:
        wrapped = [*textwrap.wrap(change.text, room, break_long_words=False, break_on_hyphens=False)]
        reason = ": ".join(filter(None, (gain(change), change.reason)))
        yield from _labeled("change", [*wrapped, *textwrap.wrap(reason, room)])


def _labeled(label: str, texts: Sequence[str]) -> Iterator[str]:
    for index, text in enumerate(texts):
        yield f"{'':{_INDENT}}{label if index == 0 else '':<{_LABEL}}{text}"


def _remarks(record: Record) -> Iterator[str]:
    """Yield notes about the record itself."""
    lost = sum(process.lost for process in record.processes)
    failed = sorted(
        {
            str(name)
            for process in record.processes
            for name, fields in process.facts.items()
            if "failed" in fields or name == "probe-failed"
        }
    )
    aside = max(
        (process.aside_s / (process.seconds + process.aside_s) for process in record.ranks if process.aside_s),
        default=0.0,
    )
    if aside >= _ASIDE:
        yield f"  note: {aside:.0%} of the time went to batches without a backward pass (evaluation); it is left out"
    unseen = Counter(
        str(fields.get("reason"))
        for process in record.processes
        for name, fields in process.facts.items()
        if name == "unseen"
    )
    for reason, count in sorted(unseen.items()):
        yield f"  note: {count} process{'' if count == 1 else 'es'} not observed: {reason}"
    for file, reason in record.unread:
        yield f"  note: {file} of the job was not read: {reason}"
    if lost:
        yield f"  note: {lost} events came faster than they were read; the shares are computed from the others"
    if failed:
        yield f"  note: this torch does not support some probes ({', '.join(failed)}); what they time is missing"
    if record.image is not None and record.samples and not any(sample.processes for sample in record.samples):
        yield "  note: the container's processes are not visible here, so their CPU time and memory were not sampled"
    if not record.injected:
        yield "  note: observed from outside: steps, batches and copies were not timed"


def _short(judgment: Judgment) -> str:
    return judgment.findings[0].title if judgment.findings else str(judgment.answer)


def _step(measures: Measures, share: float = 1.0) -> float | None:
    """Return the seconds of a share of a step, None without steps."""
    return share * measures.step_s if measures.steps else None


def _pair(left: float | None, right: float | None) -> list[str]:
    ratio = f"{right / left:.2f}x" if left and right else ""
    return ["" if seconds is None else milliseconds(seconds) for seconds in (left, right)] + [ratio]


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.0f} %"


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"
