"""C08: do torch's threads fit the CPUs the container may use?"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from envkit.checks.case import Case
    from envkit.checks.model import Finding


def judge(case: Case) -> Finding:
    """Judge C08.threads, C08.openmp and C08.throttling."""
    return case.by_part({"threads": _threads, "openmp": _openmp, "throttling": _throttling})


def _fit(effective: float) -> int:
    """Return the threads that fit, rounded down: half a CPU too many is throttled, half a CPU too few costs little."""
    return max(1, math.floor(effective))


def _threads(case: Case) -> Finding:
    effective, threads = case.value("effective"), case.value("torch_threads")
    fit = _fit(effective)
    case.rule("max_ratio", threads=fit, gates=False)
    case.metric("torch_threads", threads, "1", "equal")
    case.derive(effective_cpus=effective)
    if threads > fit:
        message = f"torch starts {threads:.0f} threads, but the container may use {effective:g} CPUs"
        advice = f"Set OMP_NUM_THREADS={fit} in the image definition's env, or give the container more CPUs."
        return case.warn("TOO_MANY_THREADS", message, advice)
    return case.passed(f"{threads:.0f} torch threads on {effective:g} CPUs")


def _openmp(case: Case) -> Finding:
    runtimes = case.strings("runtimes")
    case.rule("max_ratio", runtimes=1, gates=False)
    if len(runtimes) > 1:
        message = f"{len(runtimes)} OpenMP runtimes are loaded: {', '.join(runtimes)}"
        advice = "Take torch and MKL from one source: conda packages and wheels of them do not mix."
        return case.warn("TWO_OPENMP_RUNTIMES", message, advice)
    return case.passed(f"one OpenMP runtime: {', '.join(runtimes) or 'none loaded'}")


def _throttling(case: Case) -> Finding:
    case.use("C08.throttled_share")
    limit = case.number("fail_above")
    effective, threads = case.value("effective"), case.value("threads")
    periods, throttled = case.optional("periods"), case.optional("throttled")
    counted = bool(periods) and throttled is not None
    share = throttled / periods if periods and throttled is not None else 0.0
    if counted:
        case.metric("throttled_share", share, "1", "lower")
    stopped = f"the CPU quota throttled {throttled or 0:.0f} of {periods or 0:.0f} periods with torch's own threads"
    fit = _fit(effective)
    if share > limit and threads > fit:
        advice = f"Set OMP_NUM_THREADS={fit} in the image definition's env, or raise the quota (--cpus)."
        return case.fail("CPU_THROTTLED", stopped, advice)
    # Below one CPU even a single thread is throttled once the machine has a core for it. A busy machine has none, so
    # its counters do not move, although the quota is just as small.
    if share > limit or effective < 1:
        message = f"{stopped}; the quota is {effective:g} CPUs" if counted else f"the CPU quota is {effective:g} CPUs"
        advice = "Raise the quota (--cpus) to at least one CPU: below that, no setting of the image helps."
        return case.warn("QUOTA_TOO_SMALL", message, advice)
    return case.passed(stopped if counted else "no CPU quota is set")
