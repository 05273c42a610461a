"""C25: does a GPU report that it is unhealthy? That is a fault of the machine, never of the image."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envkit.checks import thresholds
from envkit.checks.fields import by_part, flag, number, optional_number, text
from envkit.checks.model import Finding, Verdict

if TYPE_CHECKING:
    from envkit.checks.model import Env, Observation, Spec

_NONE = {"type": "equals", "expected": 0, "unit": "faults"}
_RESET = ("Drain this GPU, then reset it (nvidia-smi --gpu-reset -i N) or restart the machine.",)
_REPLACE = ("Take this GPU out of service and run `dcgmi diag -r 3` on the host; its vendor replaces such boards.",)
_DIAGNOSE = ("Drain this GPU and run `dcgmi diag -r 3` on the host.",)
_STATES = {"lost": "GPU_LOST", "reset required": "GPU_RESET_REQUIRED"}


def judge(observation: Observation, spec: Spec, env: Env) -> Finding:
    """Judge one part of what a GPU reports about itself."""
    parts = {
        "device": _device,
        "remaps": _remaps,
        "pages": _pages,
        "ecc": _ecc,
        "power": _power,
        "replays": _replays,
    }
    return by_part(parts, observation, spec, env)


def _device(observation: Observation, _spec: Spec, _env: Env) -> Finding:
    state = text(observation["observed"], "state")
    if state == "answers":
        return Finding(Verdict.PASS, "the GPU answers its driver", rule=_NONE)
    message = "the GPU fell off the bus" if state == "lost" else f"the driver reports the GPU's state as: {state}"
    advice = ("Read the kernel log for Xid messages (dmesg).", *_RESET)
    return Finding(Verdict.FAIL, message, _STATES.get(state, "GPU_RESET_REQUIRED"), advice, _NONE)


def _remaps(observation: Observation, _spec: Spec, _env: Env) -> Finding:
    observed = observation["observed"]
    rows = number(observed, "corrected") + number(observed, "uncorrected")
    done = f"{rows:.0f} rows of memory remapped"
    if flag(observed, "failed"):
        return Finding(
            Verdict.FAIL, f"a row of memory could not be remapped; {done}", "ROW_REMAP_FAILED", _REPLACE, _NONE
        )
    if flag(observed, "pending"):
        message = f"a broken row of memory waits for a reset to be remapped; {done}"
        return Finding(Verdict.FAIL, message, "ROW_REMAP_PENDING", _RESET, _NONE)
    # NVML's histogram of spare rows: the number of banks with max, high, partial, low and none left.
    banks = observed.get("banks")
    empty = number(banks, "none") if isinstance(banks, dict) else 0
    if empty:
        message = f"{empty:.0f} banks of memory have no spare row left; {done}"
        return Finding(Verdict.WARN, message, "ROW_REMAP_EXHAUSTED", _DIAGNOSE, _NONE)
    return Finding(Verdict.PASS, f"{done}, none pending or failed", rule=_NONE)


def _pages(observation: Observation, _spec: Spec, _env: Env) -> Finding:
    row, observed = thresholds.load().row("C25.retired_pages"), observation["observed"]
    pages = number(observed, "single_bit") + number(observed, "double_bit")
    metric = {"name": "retired_pages", "value": pages, "unit": "pages", "better": "lower"}
    if pages >= row.number("fail_at"):
        message = f"{pages:.0f} pages of memory are retired"
        return Finding(Verdict.FAIL, message, "PAGES_RETIRED", _REPLACE, row.record(), metric)
    if observed.get("pending") is True:
        message = f"a broken page of memory waits for a restart to be retired; {pages:.0f} are retired"
        return Finding(Verdict.FAIL, message, "PAGE_RETIREMENT_PENDING", _RESET, row.record(), metric)
    return Finding(Verdict.PASS, f"{pages:.0f} pages of memory retired, none pending", rule=row.record(), metric=metric)


def _ecc(observation: Observation, _spec: Spec, _env: Env) -> Finding:
    observed = observation["observed"]
    now, ever = optional_number(observed, "volatile_uncorrected"), optional_number(observed, "aggregate_uncorrected")
    if now:
        message = f"{now:.0f} uncorrectable memory errors since the driver was loaded"
        return Finding(Verdict.FAIL, message, "ECC_UNCORRECTED", _DIAGNOSE, _NONE)
    if observed.get("sram_exceeded") is True:
        count = optional_number(observed, "sram_uncorrected") or 0
        message = f"{count:.0f} uncorrectable errors of on-chip memory, more than a board may have"
        return Finding(Verdict.FAIL, message, "SRAM_ERRORS", _REPLACE, _NONE)
    if ever:
        message = f"{ever:.0f} uncorrectable memory errors in the past, none since the driver was loaded"
        # The broken rows have been remapped or retired since. C25.remaps and C25.pages say whether all of them were.
        return Finding(Verdict.WARN, message, "ECC_UNCORRECTED_BEFORE", _DIAGNOSE, {**_NONE, "gates": False})
    return Finding(Verdict.PASS, "no uncorrectable memory error", rule=_NONE)


def _power(observation: Observation, _spec: Spec, _env: Env) -> Finding:
    row, observed = thresholds.load().row("C25.power_limit"), observation["observed"]
    limit, default = number(observed, "limit_w"), number(observed, "default_w")
    share = limit / default if default else 1.0
    metric = {"name": "power_limit", "value": limit, "unit": "W", "better": "higher"}
    message = f"the power limit is {limit:.0f} W, {share:.0%} of the default"
    if share < row.number("warn_below"):
        advice = (f"Set it back on the host if nobody lowered it on purpose: nvidia-smi -pl {default:.0f}",)
        return Finding(Verdict.WARN, message, "POWER_LIMIT_LOWERED", advice, row.record(), metric)
    return Finding(Verdict.PASS, message, rule=row.record(), metric=metric)


def _replays(observation: Observation, _spec: Spec, _env: Env) -> Finding:
    row, observed = thresholds.load().row("C25.replays"), observation["observed"]
    count, seconds = number(observed, "count"), optional_number(observed, "uptime_s")
    metric = {"name": "pcie_replays", "value": count, "unit": "packets", "better": "lower"}
    message = f"{count:.0f} PCIe packets were sent again since the driver was loaded"
    # A few replays within the first minute are no rate yet.
    if seconds and count > row.number("warn_above") * max(1.0, seconds / 60):
        advice = ("Reseat the card or riser; a link with many replays is failing.",)
        return Finding(Verdict.WARN, message, "PCIE_REPLAYS_BEFORE", advice, row.record(), metric)
    return Finding(Verdict.PASS, message, rule=row.record(), metric=metric)
