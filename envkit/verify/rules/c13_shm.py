"""C13: does the declared loader fit /dev/shm?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from envkit.verify import thresholds
from envkit.verify.model import Finding, Verdict
from envkit.verify.rules import shm
from envkit.verify.rules.common import number, optional_number, text

if TYPE_CHECKING:
    from envkit.verify.model import Env, Observation, Spec

_SIGNATURES = ("no_space", "bus_error", "timeout")


def judge(observation: Observation, _spec: Spec, _env: Env) -> Finding:
    """Judge C13.shm: the loader ran with full queues, and there is room to grow."""
    row = thresholds.load().row("C13.headroom")
    rule = row.record(gates=True)
    observed = observation["observed"]
    need, outcome = int(number(observed, "need_bytes")), text(observed, "outcome")
    size, free = optional_number(observed, "shm_bytes"), optional_number(observed, "free_bytes")
    metric = {"name": "in_flight", "value": need, "unit": "B", "better": "lower"}
    derived = {"recommended_shm_mib": shm.recommended_mib(need)}
    room = f"there is no {shm.MOUNT}" if size is None else f"{shm.MOUNT} is {size / 1e6:.0f} MB"
    state = f"the loader keeps {need / 1e6:.0f} MB in flight and {room}"
    if outcome in _SIGNATURES:
        cause = text(observed, "message").strip().rpartition("\n")[2]
        message = f"{state}: {cause}"
        return Finding(Verdict.FAIL, message, "SHM_TOO_SMALL", (shm.advice(need),), rule, metric, derived)
    if outcome == "wrong_data":
        message = "batches came out of the loader incomplete or changed"
        advice = ("Run it once more; if it repeats, test the machine's memory.",)
        return Finding(Verdict.FAIL, message, "LOADER_WRONG_DATA", advice, rule, metric, derived)
    if outcome != "ok":
        message = f"the loader broke for another reason: {observed.get('message')}"
        return Finding(Verdict.ERROR, message, "LOADER_BROKE", rule=rule, metric=metric, derived=derived)
    if free is None or free < row.number("warn_below") * need:
        left = "of an unknown size" if free is None else f"{free / 1e6:.0f} MB free"
        message = f"the loader keeps {need / 1e6:.0f} MB in flight and {shm.MOUNT} is {left}"
        return Finding(Verdict.WARN, message, "SHM_TIGHT", (shm.advice(need),), rule, metric, derived)
    return Finding(Verdict.PASS, state, rule=rule, metric=metric, derived=derived)
