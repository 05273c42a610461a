"""C11: how much of a copy overlaps with kernels when it has a stream of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envkit.checks.observed import number

if TYPE_CHECKING:
    from envkit.checks.case import Case
    from envkit.checks.model import Finding

_SLOW = (
    "Copies and kernels do not overlap here: prefetching on a stream of its own gains little on this machine.",
    "In a virtual machine or a MIG slice, ask for a GPU with a copy engine of its own.",
)
_ONE_QUEUE = "CUDA_DEVICE_MAX_CONNECTIONS=1 gives all streams one queue: unset it, or prefetch without it."


def judge(case: Case) -> Finding:
    """Judge C11.overlap by its three times. If work on one stream seems to overlap, the times are not reliable."""
    if not case.flag("exact"):
        case.rule("equals", exact=True, gates=False)
        message = "a copy that ran while kernels ran arrived changed, although the streams were synchronized"
        return case.fail("COPY_WRONG", message, "The GPU or its link corrupts data: run dcgmi diag -r 3 on the host.")
    case.use("C11.overlap")
    if case.observed.get("cc_mode") is True:
        message = "in confidential-computing mode copies are encrypted and do not overlap with kernels"
        return case.skip("CONFIDENTIAL_COMPUTING", message)
    times, hidden = case.mapping("times_ms"), case.mapping("overlap")
    copy, compute = number(times, "copy"), number(times, "compute")
    share = (copy + compute - number(times, "both")) / min(copy, compute)
    pageable, same_stream = number(hidden, "pageable"), number(hidden, "same_stream")
    case.metric("overlap", share, "1", "higher")
    case.derive(same_stream=same_stream, pageable=pageable)
    # Adding 0.0 turns a rounded -0.0 into 0.0.
    two, one = (round(value, 2) + 0.0 for value in (share, same_stream))
    message = (
        f"{two:.0%} of the shorter of copy ({copy:.1f} ms) and kernels ({compute:.1f} ms) is hidden on two streams, "
        f"{one:.0%} on one stream"
    )
    # A stream runs its work in order, so this is the negative control: it must show no overlap.
    if same_stream >= case.number("same_stream_max"):
        return case.inconclusive("OVERLAP_UNCLEAR", f"{message}, which is impossible: the clock is not reliable")
    if share < case.number("fail_below"):
        one_queue = (_ONE_QUEUE,) if case.observed.get("connections") == "1" else ()
        return case.fail("NO_OVERLAP", message, *one_queue, *_SLOW)
    if share < case.number("pass"):
        return case.warn("LITTLE_OVERLAP", message, *_SLOW)
    return case.passed(message)
