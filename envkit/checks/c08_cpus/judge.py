"""C08: do torch's threads fit the CPUs the container may use?"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from envkit.checks import thresholds
from envkit.checks.fields import by_part, number, optional_number, strings
from envkit.checks.model import Finding, Verdict

if TYPE_CHECKING:
    from envkit.checks.model import Env, Observation, Spec


def judge(observation: Observation, spec: Spec, env: Env) -> Finding:
    """Judge C08.threads, C08.openmp and C08.throttling."""
    return by_part({"threads": _threads, "openmp": _openmp, "throttling": _throttling}, observation, spec, env)


def _fit(effective: float) -> int:
    """Return the threads that fit, rounded down: half a CPU too many is throttled, half a CPU too few costs little."""
    return max(1, math.floor(effective))


def _threads(observation: Observation, _spec: Spec, _env: Env) -> Finding:
    observed = observation["observed"]
    effective, threads = number(observed, "effective"), number(observed, "torch_threads")
    fit = _fit(effective)
    rule = {"type": "max_ratio", "threads": fit, "gates": False}
    metric = {"name": "torch_threads", "value": threads, "unit": "1", "better": "equal"}
    derived = {"effective_cpus": effective}
    if threads > fit:
        message = f"torch starts {threads:.0f} threads, but the container may use {effective:g} CPUs"
        advice = (f"Set OMP_NUM_THREADS={fit} in the image definition's env, or give the container more CPUs.",)
        return Finding(Verdict.WARN, message, "TOO_MANY_THREADS", advice, rule, metric, derived)
    message = f"{threads:.0f} torch threads on {effective:g} CPUs"
    return Finding(Verdict.PASS, message, rule=rule, metric=metric, derived=derived)


def _openmp(observation: Observation, _spec: Spec, _env: Env) -> Finding:
    runtimes = strings(observation["observed"], "runtimes")
    rule = {"type": "max_ratio", "runtimes": 1, "gates": False}
    if len(runtimes) > 1:
        message = f"{len(runtimes)} OpenMP runtimes are loaded: {', '.join(runtimes)}"
        advice = ("Take torch and MKL from one source: conda packages and wheels of them do not mix.",)
        return Finding(Verdict.WARN, message, "TWO_OPENMP_RUNTIMES", advice, rule)
    return Finding(Verdict.PASS, f"one OpenMP runtime: {', '.join(runtimes) or 'none loaded'}", rule=rule)


def _throttling(observation: Observation, _spec: Spec, _env: Env) -> Finding:
    row = thresholds.load().row("C08.throttled_share")
    rule, limit = row.record(), row.number("fail_above")
    observed = observation["observed"]
    effective, threads = number(observed, "effective"), number(observed, "threads")
    periods, throttled = optional_number(observed, "periods"), optional_number(observed, "throttled")
    counted = bool(periods) and throttled is not None
    share = throttled / periods if periods and throttled is not None else 0.0
    metric = {"name": "throttled_share", "value": share, "unit": "1", "better": "lower"} if counted else None
    stopped = f"the CPU quota throttled {throttled or 0:.0f} of {periods or 0:.0f} periods with torch's own threads"
    fit = _fit(effective)
    if share > limit and threads > fit:
        advice = (f"Set OMP_NUM_THREADS={fit} in the image definition's env, or raise the quota (--cpus).",)
        return Finding(Verdict.FAIL, stopped, "CPU_THROTTLED", advice, rule, metric)
    # Below one CPU even a single thread is throttled once the machine has a core for it. A busy machine has none, so
    # its counters do not move, although the quota is just as small.
    if share > limit or effective < 1:
        message = f"{stopped}; the quota is {effective:g} CPUs" if counted else f"the CPU quota is {effective:g} CPUs"
        advice = ("Raise the quota (--cpus) to at least one CPU: below that, no setting of the image helps.",)
        return Finding(Verdict.WARN, message, "QUOTA_TOO_SMALL", advice, rule, metric)
    return Finding(Verdict.PASS, stopped if counted else "no CPU quota is set", rule=rule, metric=metric)
