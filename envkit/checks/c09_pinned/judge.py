"""C09: can the declared loader allocate its page-locked memory?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from envkit.checks.model import Verdict

if TYPE_CHECKING:
    from envkit.checks.case import Case
    from envkit.checks.model import Finding

MIB = 1 << 20


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
        message = f"{pinned / MIB:.0f} of {tried / MIB:.0f} MiB could be pinned: {error}"
        return case.finding(verdict, "PINNING_FAILED", message, advice)
    if not case.flag("is_pinned"):
        advice = "The driver did not lock the memory torch asked for: copies will be synchronous and slow."
        return case.fail("NOT_PINNED", "torch reports its pinned memory as not pinned", advice)
    if need is not None and need > cap:
        message = f"the loader may pin {need / MIB:.0f} MiB; only {cap / MIB:.0f} MiB were tried, which worked"
        advice = "Lower prefetch_factor or the batch: much pinned memory starves the rest of the machine."
        return case.warn("PINNED_NEED_NOT_TRIED", message, advice)
    if need is not None and cgroup and need > case.number("warn_above") * cgroup:
        message = f"the loader may pin {need / MIB:.0f} of the container's {cgroup / MIB:.0f} MiB"
        advice = "Raise the memory limit or lower prefetch_factor: pinned memory cannot be reclaimed."
        return case.warn("PINNED_SHARE", message, advice)
    return case.passed(f"{pinned / MIB:.0f} MiB pinned")
