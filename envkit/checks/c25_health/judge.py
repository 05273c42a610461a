"""C25: does a GPU report that it is unhealthy? That is a fault of the machine, never of the image."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envkit.checks.observed import number

if TYPE_CHECKING:
    from envkit.checks.case import Case
    from envkit.checks.model import Finding

_RESET = "Drain this GPU, then reset it (nvidia-smi --gpu-reset -i N) or restart the machine."
_REPLACE = "Take this GPU out of service and run `dcgmi diag -r 3` on the host; its vendor replaces such boards."
_DIAGNOSE = "Drain this GPU and run `dcgmi diag -r 3` on the host."
_STATES = {"lost": "GPU_LOST", "reset required": "GPU_RESET_REQUIRED"}


def judge(case: Case) -> Finding:
    """Judge one part of what a GPU reports about itself."""
    case.rule("equals", expected=0, unit="faults")
    return case.by_part(
        {
            "device": _device,
            "remaps": _remaps,
            "pages": _pages,
            "ecc": _ecc,
            "power": _power,
            "replays": _replays,
        }
    )


def _device(case: Case) -> Finding:
    state = case.text("state")
    if state == "answers":
        return case.passed("the GPU answers its driver")
    message = "the GPU fell off the bus" if state == "lost" else f"the driver reports the GPU's state as: {state}"
    kernel_log = "Read the kernel log for Xid messages (dmesg)."
    return case.fail(_STATES.get(state, "GPU_RESET_REQUIRED"), message, kernel_log, _RESET)


def _remaps(case: Case) -> Finding:
    done = f"{case.value('corrected') + case.value('uncorrected'):.0f} rows of memory remapped"
    if case.flag("failed"):
        return case.fail("ROW_REMAP_FAILED", f"a row of memory could not be remapped; {done}", _REPLACE)
    if case.flag("pending"):
        message = f"a broken row of memory waits for a reset to be remapped; {done}"
        return case.fail("ROW_REMAP_PENDING", message, _RESET)
    # NVML's histogram of spare rows: the number of banks with max, high, partial, low and none left.
    banks = case.observed.get("banks")
    empty = number(banks, "none") if isinstance(banks, dict) else 0
    if empty:
        return case.warn(
            "ROW_REMAP_EXHAUSTED", f"{empty:.0f} banks of memory have no spare row left; {done}", _DIAGNOSE
        )
    return case.passed(f"{done}, none pending or failed")


def _pages(case: Case) -> Finding:
    case.use("C25.retired_pages")
    pages = case.value("single_bit") + case.value("double_bit")
    case.metric("retired_pages", pages, "pages", "lower")
    if pages >= case.number("fail_at"):
        return case.fail("PAGES_RETIRED", f"{pages:.0f} pages of memory are retired", _REPLACE)
    if case.observed.get("pending") is True:
        message = f"a broken page of memory waits for a restart to be retired; {pages:.0f} are retired"
        return case.fail("PAGE_RETIREMENT_PENDING", message, _RESET)
    return case.passed(f"{pages:.0f} pages of memory retired, none pending")


def _ecc(case: Case) -> Finding:
    now, ever = case.optional("volatile_uncorrected"), case.optional("aggregate_uncorrected")
    if now:
        message = f"{now:.0f} uncorrectable memory errors since the driver was loaded"
        return case.fail("ECC_UNCORRECTED", message, _DIAGNOSE)
    if case.observed.get("sram_exceeded") is True:
        count = case.optional("sram_uncorrected") or 0
        message = f"{count:.0f} uncorrectable errors of on-chip memory, more than a board may have"
        return case.fail("SRAM_ERRORS", message, _REPLACE)
    if ever:
        # The broken rows have been remapped or retired since. C25.remaps and C25.pages say whether all of them were.
        case.amend(gates=False)
        message = f"{ever:.0f} uncorrectable memory errors in the past, none since the driver was loaded"
        return case.warn("ECC_UNCORRECTED_BEFORE", message, _DIAGNOSE)
    return case.passed("no uncorrectable memory error")


def _power(case: Case) -> Finding:
    case.use("C25.power_limit")
    limit, default = case.value("limit_w"), case.value("default_w")
    share = limit / default if default else 1.0
    case.metric("power_limit", limit, "W", "higher")
    message = f"the power limit is {limit:.0f} W, {share:.0%} of the default"
    if share < case.number("warn_below"):
        advice = f"Set it back on the host if nobody lowered it on purpose: nvidia-smi -pl {default:.0f}"
        return case.warn("POWER_LIMIT_LOWERED", message, advice)
    return case.passed(message)


def _replays(case: Case) -> Finding:
    case.use("C25.replays")
    count, seconds = case.value("count"), case.optional("uptime_s")
    case.metric("pcie_replays", count, "packets", "lower")
    message = f"{count:.0f} PCIe packets were sent again since the driver was loaded"
    # A few replays within the first minute are no rate yet.
    if seconds and count > case.number("warn_above") * max(1.0, seconds / 60):
        advice = "Reseat the card or riser; a link with many replays is failing."
        return case.warn("PCIE_REPLAYS_BEFORE", message, advice)
    return case.passed(message)
