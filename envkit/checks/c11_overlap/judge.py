"""C11: how much of a copy overlaps with kernels when it has a stream of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from envkit.checks import thresholds
from envkit.checks.fields import flag, mapping, number
from envkit.checks.model import Finding, Verdict

if TYPE_CHECKING:
    from envkit.checks.model import Env, Observation, Spec

_SLOW = (
    "Copies and kernels do not overlap here: prefetching on a stream of its own gains little on this machine.",
    "In a virtual machine or a MIG slice, ask for a GPU with a copy engine of its own.",
)
_ONE_QUEUE = ("CUDA_DEVICE_MAX_CONNECTIONS=1 gives all streams one queue: unset it, or prefetch without it.",)


def judge(observation: Observation, _spec: Spec, _env: Env) -> Finding:
    """Judge C11.overlap by its three times. If work on one stream seems to overlap, the times are not reliable."""
    observed = mapping(observation, "observed")
    row = thresholds.load().row("C11.overlap")
    rule = row.record()
    if not flag(observed, "exact"):
        message = "a copy that ran while kernels ran arrived changed, although the streams were synchronized"
        advice = ("The GPU or its link corrupts data: run dcgmi diag -r 3 on the host.",)
        return Finding(Verdict.FAIL, message, "COPY_WRONG", advice, {"type": "equals", "exact": True, "gates": False})
    if observed.get("cc_mode") is True:
        message = "in confidential-computing mode copies are encrypted and do not overlap with kernels"
        return Finding(Verdict.SKIP, message, "CONFIDENTIAL_COMPUTING", rule=rule)
    times = mapping(observed, "times_ms")
    copy, compute = number(times, "copy"), number(times, "compute")
    share = (copy + compute - number(times, "both")) / min(copy, compute)
    pageable = number(mapping(observed, "overlap"), "pageable")
    metric = {"name": "overlap", "value": share, "unit": "1", "better": "higher"}
    derived = {"same_stream": number(mapping(observed, "overlap"), "same_stream"), "pageable": pageable}
    # Adding 0.0 turns a rounded -0.0 into 0.0.
    two, one = (round(value, 2) + 0.0 for value in (share, derived["same_stream"]))
    message = (
        f"{two:.0%} of the shorter of copy ({copy:.1f} ms) and kernels ({compute:.1f} ms) is hidden on two streams, "
        f"{one:.0%} on one stream"
    )
    finding = Finding(Verdict.PASS, message, None, (), rule, metric, derived)
    # A stream runs its work in order, so this is the negative control: it must show no overlap.
    if derived["same_stream"] >= row.number("same_stream_max"):
        unclear = f"{message}, which is impossible: the clock is not reliable"
        return replace(finding, verdict=Verdict.INCONCLUSIVE, message=unclear, reason_code="OVERLAP_UNCLEAR")
    if share < row.number("fail_below"):
        one_queue = _ONE_QUEUE if observed.get("connections") == "1" else ()
        return replace(finding, verdict=Verdict.FAIL, reason_code="NO_OVERLAP", advice=(*one_queue, *_SLOW))
    if share < row.number("pass"):
        return replace(finding, verdict=Verdict.WARN, reason_code="LITTLE_OVERLAP", advice=_SLOW)
    return finding
