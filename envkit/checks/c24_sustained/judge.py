"""C24: does the GPU stand a minute of full load without errors, at a steady clock? It judges the machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from envkit.checks.observed import MalformedError, optional_number, strings
from envkit.knowledge import codes
from envkit.knowledge.clock_events import SLOWING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from envkit.checks.case import Case
    from envkit.checks.model import Finding

_HARDWARE = "Drain this GPU and run `dcgmi diag -r 3` on the host."
_COOLING = "Look at fans, air flow and power cables; watch it: nvidia-smi dmon -s pcut"
_LINK = "Reseat the card or riser; a link with many replays is failing."
_SETTLED = 1 / 3
"""The share of readings to leave out at the start, while the device is still cold."""


def judge(case: Case) -> Finding:
    """Judge C24.load by its results, C24.telemetry by what the device reported."""
    return _load(case) if case.part == "load" else _telemetry(case)


def _none_of(case: Case, unit: str) -> None:
    case.rule("equals", expected=0, gates=False, unit=unit)


def _load(case: Case) -> Finding:
    _none_of(case, "elements")
    different, products = case.value("different"), case.value("products")
    first, last = case.value("tflops_first"), case.value("tflops_last")
    case.metric("gemm_rate", last, "TFLOP/s", "higher")
    case.derive(last_over_first=last / first if first else None)
    if different:
        message = f"{different:.0f} elements changed between equal products under load"
        return case.fail("RESULTS_CHANGE_UNDER_LOAD", message, _HARDWARE)
    compared = case.optional("compared")
    share = "" if compared is None else f" ({compared:.0f} compared)"
    return case.passed(
        f"{products:.0f} equal products{share} in {case.value('seconds'):.0f} s; "
        f"{first:.4g} TFLOP/s at start, {last:.4g} at end"
    )


def _telemetry(case: Case) -> Finding:
    readings = case.objects("rows", "readings")
    xids, ecc = case.observed.get("xids"), case.optional("uncorrected_ecc")
    # Errors come before rates: a GPU with an Xid is faulty, however fast it is.
    if isinstance(xids, list) and xids:
        _none_of(case, "messages")
        known = [codes.xid(xid) for xid in dict.fromkeys(xids) if isinstance(xid, int)]
        numbers = ", ".join(str(code.number) for code in known)
        means = " ".join(code.means for code in known).rstrip(".")
        advice = dict.fromkeys(line for code in known for row in code.rows for line in row.fix)
        return case.fail("XID", f"the driver reported Xid {numbers} under load: {means}", *(advice or (_HARDWARE,)))
    if ecc:
        _none_of(case, "errors")
        return case.fail("ECC_UNCORRECTED", f"{ecc:.0f} uncorrectable memory errors under load", _HARDWARE)
    if not readings:
        raise MalformedError("rows holds no reading")
    minutes, repeated = case.value("seconds") / 60, case.optional("pcie_replays")
    if repeated is not None and repeated > case.number("fail_above", "C24.replays") * minutes:
        case.use("C24.replays")
        message = f"the PCIe link replayed {repeated:.0f} packets in {minutes:.1f} minutes"
        return case.fail("PCIE_REPLAYS", message, _LINK)
    # NVML reports a GeForce's highest clock, which it does not hold under load; other cards report their boost clock.
    names = [str(card.get("name")) for card in case.env.get("gpu") or () if isinstance(card, dict)]
    row = case.use("C24.clock")
    low = row.number("warn_below_geforce" if any("GeForce" in name for name in names) else "warn_below")
    case.amend(warn_below=low)
    return _clock(case, readings[int(len(readings) * _SETTLED) :], low)


def _clock(case: Case, readings: Sequence[Mapping[str, Any]], low: float) -> Finding:
    top = case.optional("max_sm_mhz")
    clocks = sorted(value for row in readings if (value := optional_number(row, "sm_mhz")) is not None)
    hot = max((value for row in readings if (value := optional_number(row, "celsius")) is not None), default=None)
    events = sorted({event for row in readings if row.get("events") is not None for event in strings(row, "events")})
    # None means that the messages cannot be read; a GPU without messages has an empty list.
    unread = "" if case.observed.get("xids") is not None else "; Xid messages cannot be read in this container"
    if not clocks or not top:
        case.amend(type="informs")
        return case.passed(f"no error under load; the clock cannot be read here{unread}")
    clock = clocks[len(clocks) // 2]
    share = clock / top
    case.metric("sm_clock", clock, "MHz", "higher")
    case.derive(share_of_boost=share, events=events, celsius_max=hot)
    capped = ", limited by its power cap" if "sw_power_cap" in events else ""
    warm = "" if hot is None else f", {hot:.0f} degrees Celsius at most"
    message = f"no error; {share:.0%} of the boost clock of {top:.0f} MHz{capped}{warm}{unread}"
    if share < case.number("fail_below"):
        return case.fail("CLOCK_COLLAPSED", message, _COOLING)
    heat = [event for event in events if event in SLOWING]
    if heat:
        return case.warn("CLOCK_SLOWED", f"{message}; slowed down by {', '.join(heat)}", _COOLING)
    # A power cap explains a low clock: a T4 holds half of its clock at 70 W.
    if share < low and not capped:
        return case.warn("CLOCK_LOW", message, _COOLING)
    return case.passed(message)
