"""C27: does device memory keep what is written, and is it as fast as its bus allows?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from envkit.checks import peaks
from envkit.checks.observed import number
from envkit.ground.sizes import shown_size

if TYPE_CHECKING:
    from envkit.checks.case import Case
    from envkit.checks.model import Finding

_HARDWARE = (
    "Drain this GPU and run `dcgmi diag -r 3` on the host.",
    "Look for row remaps and retired pages: nvidia-smi -q -d ECC,ROW_REMAPPER,PAGE_RETIREMENT",
)
_SLOW = "Look at clocks and at other processes: nvidia-smi -q -d CLOCK,PERFORMANCE,PIDS"


def judge(case: Case) -> Finding:
    """Judge C27.pattern exactly, and C27.copy by the limit of the memory bus."""
    return case.by_part({"pattern": _pattern, "copy": _copy})


def _pattern(case: Case) -> Finding:
    case.rule("equals", expected=0, gates=True, unit="words")
    wrong = case.mapping("wrong")
    total, size = sum(number(wrong, name) for name in wrong), shown_size(case.value("bytes"), "GiB", 1)
    case.metric("wrong_words", total, "words", "lower")
    # An empty table means that no pattern was read back, which verifies nothing.
    if total or not wrong:
        message = f"{total:.0f} words of 8 bytes changed in {size} of device memory"
        return case.fail("DEVICE_MEMORY_WRONG", message, *_HARDWARE)
    return case.passed(f"{size} of device memory kept a pattern and its complement")


def _copy(case: Case) -> Finding:
    case.use("C27.copy")
    rate, limit = case.value("gb_per_s"), peaks.memory_limit(case.mapping("limits"))
    share = rate / limit if limit else None
    case.metric("memory_bandwidth", rate, "GB/s", "higher")
    case.derive(limit=limit, fraction_of_limit=share)
    message = f"{rate:.0f} GB/s read and written"
    if share is None:
        case.amend(type="informs", gates=False)
        return case.passed(f"{message}; the width of the memory bus is unknown here, so there is no floor")
    message = f"{message}, {share:.2f} of what the memory bus carries ({limit:.0f} GB/s)"
    if share > case.number("warn_above"):
        case.amend(gates=False)
        advice = "Report this with the record (envkit verify -o FILE): width or clock of the bus is misread."
        return case.warn("ABOVE_MEMORY_LIMIT", message, advice)
    if share < case.number("fail_below"):
        return case.fail("DEVICE_MEMORY_SLOW", message, _SLOW)
    return case.passed(message)
