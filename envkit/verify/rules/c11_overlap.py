"""C11: how much of a copy disappears behind kernels when it has a stream of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from envkit.verify import thresholds
from envkit.verify.model import Finding, Verdict
from envkit.verify.rules.common import flag, mapping, number

if TYPE_CHECKING:
    from envkit.verify.model import Env, Observation, Spec

_SLOW = (
    "Copies and kernels take turns here: a prefetching stream gains little on this machine.",
    "In a virtual machine or a MIG slice, ask for a GPU with a copy engine of its own.",
)


def judge(observation: Observation, _spec: Spec, _env: Env) -> Finding:
    """Judge C11.overlap by its three times; a pageable source that overlaps makes the method doubtful."""
    observed = mapping(observation, "observed")
    row = thresholds.load().row("C11.overlap")
    rule = row.record()
    if not flag(observed, "exact"):
        message = "a copy beside kernels arrived changed, though the streams were joined"
        advice = ("The GPU or its link corrupts data: run dcgmi diag -r 3 on the host.",)
        return Finding(Verdict.FAIL, message, "COPY_WRONG", advice, {"type": "equals", "exact": True, "gates": False})
    if observed.get("cc_mode") is True:
        message = "in confidential-computing mode copies are encrypted and take turns with kernels"
        return Finding(Verdict.SKIP, message, "CONFIDENTIAL_COMPUTING", rule=rule)
    times = mapping(observed, "times_ms")
    copy, compute = number(times, "copy"), number(times, "compute")
    share = (copy + compute - number(times, "both")) / min(copy, compute)
    pageable = number(mapping(observed, "overlap"), "pageable")
    metric = {"name": "overlap", "value": share, "unit": "1", "better": "higher"}
    derived = {"same_stream": number(mapping(observed, "overlap"), "same_stream"), "pageable": pageable}
    message = (
        f"{share:.0%} of the shorter of copy ({copy:.1f} ms) and kernels ({compute:.1f} ms) hides on another stream, "
        f"{derived['same_stream']:.0%} on one stream"
    )
    found = Finding(Verdict.PASS, message, None, (), rule, metric, derived)
    if pageable >= row.number("pageable_max") and observed.get("c2c") is not True:
        unclear = f"{message}; a pageable copy overlaps as well ({pageable:.0%}), which it cannot over PCIe"
        return replace(found, verdict=Verdict.INCONCLUSIVE, message=unclear, reason_code="OVERLAP_UNCLEAR")
    if share < row.number("fail_below"):
        return replace(found, verdict=Verdict.FAIL, reason_code="NO_OVERLAP", advice=_SLOW)
    if share < row.number("pass"):
        return replace(found, verdict=Verdict.WARN, reason_code="LITTLE_OVERLAP", advice=_SLOW)
    return found
