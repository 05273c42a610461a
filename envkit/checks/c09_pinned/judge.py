"""C09: can the declared loader allocate its page-locked memory?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from envkit.checks.model import Verdict
from envkit.ground.sizes import shown_pair, shown_size

if TYPE_CHECKING:
    from envkit.checks.case import Case
    from envkit.checks.model import Finding


def judge(case: Case) -> Finding:
    """Judge C09.pinned: whether the loader's memory could be pinned, up to the check's cap."""
    pinned, cap = case.value("pinned_bytes"), case.value("cap_bytes")
    need, cgroup = case.optional("need_bytes"), case.optional("cgroup_bytes")
    case.use("C09.cgroup_share", type="minimum", gates=True, need_bytes=need, cap_bytes=cap)
    case.metric("pinned", pinned, "B", "higher")
    tried = cap if need is None else min(need, cap)
    if pinned < tried:
        error = case.observed.get("error") or "no reason given"
        advice = "Start the container with --ulimit memlock=-1 and enough memory, or set pin_memory: false."
        # Without a declared loader nothing shows that the image needs pinned memory.
        verdict = Verdict.WARN if need is None else Verdict.FAIL
        message = f"{shown_pair(pinned, tried, 'MiB')} could be pinned: {error}"
        return case.finding(verdict, "PINNING_FAILED", message, advice)
    if not case.flag("is_pinned"):
        advice = "The driver did not lock the memory torch asked for: copies will be synchronous and slow."
        return case.fail("NOT_PINNED", "torch reports its pinned memory as not pinned", advice)
    if need is not None and need > cap:
        message = (
            f"the loader may pin {shown_size(need, 'MiB')}; only {shown_size(cap, 'MiB')} were tried, which worked"
        )
        advice = "Lower prefetch_factor or the batch: much pinned memory starves the rest of the machine."
        return case.warn("PINNED_NEED_NOT_TRIED", message, advice)
    if need is not None and cgroup and need > case.number("warn_above") * cgroup:
        message = "the loader may pin " + shown_pair(need, cgroup, "MiB", "of the container's")
        advice = "Raise the memory limit or lower prefetch_factor: pinned memory cannot be reclaimed."
        return case.warn("PINNED_SHARE", message, advice)
    return case.passed(f"{shown_size(pinned, 'MiB')} pinned")
