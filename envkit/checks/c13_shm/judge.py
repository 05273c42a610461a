"""C13: does the declared loader fit /dev/shm?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from envkit.checks import shm, thresholds
from envkit.checks.fields import number, optional_number, text
from envkit.checks.model import Finding, Verdict

if TYPE_CHECKING:
    from envkit.checks.model import Env, Observation, Spec

# How a full /dev/shm ends a loader: ENOSPC, SIGBUS on a write to a page, or a worker that waits forever.
_SIGNATURES = ("no_space", "bus_error", "timeout")


def judge(observation: Observation, spec: Spec, env: Env) -> Finding:
    """Judge C13.shm: whether the loader ran with full queues, with room to spare.

    If the run used the /dev/shm of the host, too little room is not a fault of the image.
    """
    row = thresholds.load().row("C13.headroom")
    rule = row.record(gates=True)
    observed = observation["observed"]
    need, outcome = int(number(observed, "need_bytes")), text(observed, "outcome")
    size, free = optional_number(observed, "shm_bytes"), optional_number(observed, "free_bytes")
    metric = {"name": "in_flight", "value": need, "unit": "B", "better": "lower"}
    derived = {"recommended_shm_mib": shm.recommended_mib(need)}
    mount = shm.mount(env)
    room = f"there is no {mount}" if size is None else f"{mount} is {size / 1e6:.0f} MB"
    state = f"the loader keeps {need / 1e6:.0f} MB in flight and {room}"
    if outcome in _SIGNATURES:
        cause = text(observed, "message").strip().rpartition("\n")[2]
        message = f"{state}: {cause}"
        if shm.is_shared(env):
            promised = f"; the plan asks for {spec['shm_mb']} MiB" if spec.get("shm_mb") else ""
            message = f"cannot be decided here: {message}{promised}"
            return Finding(Verdict.WARN, message, shm.AROUND_TOO_SMALL, (shm.advice(need),), rule, metric, derived)
        return Finding(Verdict.FAIL, message, "SHM_TOO_SMALL", (shm.advice(need),), rule, metric, derived)
    if outcome == "wrong_data":
        message = "the loader delivered incomplete or changed batches"
        advice = ("Run it once more; if it repeats, test the machine's memory.",)
        return Finding(Verdict.FAIL, message, "LOADER_WRONG_DATA", advice, rule, metric, derived)
    if outcome != "ok":
        message = f"the loader failed for another reason: {observed.get('message')}"
        return Finding(Verdict.ERROR, message, "LOADER_BROKE", rule=rule, metric=metric, derived=derived)
    if free is None or free < row.number("warn_below") * need:
        left = "an unknown size" if free is None else f"{free / 1e6:.0f} MB free"
        message = f"the loader keeps {need / 1e6:.0f} MB in flight and {mount} has {left}"
        return Finding(Verdict.WARN, message, "SHM_TIGHT", (shm.advice(need),), rule, metric, derived)
    return Finding(Verdict.PASS, state, rule=rule, metric=metric, derived=derived)
