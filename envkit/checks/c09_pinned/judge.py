"""C09: can the declared loader allocate its page-locked memory?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from envkit.checks import thresholds
from envkit.checks.fields import flag, number, optional_number
from envkit.checks.model import Finding, Verdict

if TYPE_CHECKING:
    from envkit.checks.model import Env, Observation, Spec

MIB = 1 << 20


def judge(observation: Observation, _spec: Spec, _env: Env) -> Finding:
    """Judge C09.pinned: whether the loader's memory could be pinned, up to the check's cap."""
    observed = observation["observed"]
    pinned, cap = number(observed, "pinned_bytes"), number(observed, "cap_bytes")
    need, cgroup = optional_number(observed, "need_bytes"), optional_number(observed, "cgroup_bytes")
    row = thresholds.load().row("C09.cgroup_share")
    rule = {**row.record(), "type": "minimum", "gates": True, "need_bytes": need, "cap_bytes": cap}
    metric = {"name": "pinned", "value": pinned, "unit": "B", "better": "higher"}
    tried = cap if need is None else min(need, cap)
    if pinned < tried:
        message = (
            f"{pinned / MIB:.0f} of {tried / MIB:.0f} MiB could be pinned: {observed.get('error') or 'no reason given'}"
        )
        advice = ("Start the container with --ulimit memlock=-1 and enough memory, or set pin_memory: false.",)
        # Without a declared loader nothing shows that the image needs pinned memory.
        verdict = Verdict.WARN if need is None else Verdict.FAIL
        return Finding(verdict, message, "PINNING_FAILED", advice, rule, metric)
    if not flag(observed, "is_pinned"):
        advice = ("The driver did not lock the memory torch asked for: copies will be synchronous and slow.",)
        return Finding(
            Verdict.FAIL, "torch reports its pinned memory as not pinned", "NOT_PINNED", advice, rule, metric
        )
    if need is not None and need > cap:
        message = f"the loader may pin {need / MIB:.0f} MiB; only {cap / MIB:.0f} MiB were tried, which worked"
        advice = ("Lower prefetch_factor or the batch: much pinned memory starves the rest of the machine.",)
        return Finding(Verdict.WARN, message, "PINNED_NEED_NOT_TRIED", advice, rule, metric)
    if need is not None and cgroup and need > row.number("warn_above") * cgroup:
        message = f"the loader may pin {need / MIB:.0f} of the container's {cgroup / MIB:.0f} MiB"
        advice = ("Raise the memory limit or lower prefetch_factor: pinned memory cannot be reclaimed.",)
        return Finding(Verdict.WARN, message, "PINNED_SHARE", advice, rule, metric)
    return Finding(Verdict.PASS, f"{pinned / MIB:.0f} MiB pinned", rule=rule, metric=metric)
