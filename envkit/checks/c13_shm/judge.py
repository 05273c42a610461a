"""C13: does the declared loader fit /dev/shm?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from envkit.checks import shm
from envkit.ground.sizes import shown_size

if TYPE_CHECKING:
    from envkit.checks.case import Case
    from envkit.checks.model import Finding

# How a full /dev/shm ends a loader: ENOSPC, SIGBUS on a write to a page, or a worker that waits forever.
_SIGNATURES = ("no_space", "bus_error", "timeout")


def judge(case: Case) -> Finding:
    """Judge C13.shm: whether the loader ran with full queues, with room to spare.

    If the run used the /dev/shm of the host, too little room is not a fault of the image.
    """
    case.use("C13.headroom", gates=True)
    need, outcome = int(case.value("need_bytes")), case.text("outcome")
    size, free = case.optional("shm_bytes"), case.optional("free_bytes")
    case.metric("in_flight", need, "B", "lower")
    case.derive(recommended_shm_mib=shm.recommended_mib(need))
    mount, flight = shm.mount(case.env), f"the loader keeps {shown_size(need, 'MB')} in flight and"
    state = f"{flight} there is no {mount}" if size is None else f"{flight} {mount} is {shown_size(size, 'MB')}"
    if outcome in _SIGNATURES:
        cause = case.text("message").strip().rpartition("\n")[2]
        message = f"{state}: {cause}"
        if shm.is_shared(case.env):
            promised = f"; the plan asks for {case.spec['shm_mb']} MiB" if case.spec.get("shm_mb") else ""
            return case.warn(shm.AROUND_TOO_SMALL, f"cannot be decided here: {message}{promised}", shm.advice(need))
        return case.fail("SHM_TOO_SMALL", message, shm.advice(need))
    if outcome == "wrong_data":
        advice = "Run it once more; if it repeats, test the machine's memory."
        return case.fail("LOADER_WRONG_DATA", "the loader delivered incomplete or changed batches", advice)
    if outcome != "ok":
        return case.error("LOADER_BROKE", f"the loader failed for another reason: {case.observed.get('message')}")
    if free is None or free < case.number("warn_below") * need:
        left = "an unknown size" if free is None else f"{shown_size(free, 'MB')} free"
        return case.warn("SHM_TIGHT", f"{flight} {mount} has {left}", shm.advice(need))
    return case.passed(state)
