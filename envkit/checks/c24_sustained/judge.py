"""C24: does the GPU stand a minute of full load without errors, at a steady clock? It judges the machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from envkit.checks import thresholds
from envkit.checks.fields import MalformedError, mapping, number, optional_number, part_of, strings
from envkit.checks.model import Finding, Verdict
from envkit.knowledge import codes
from envkit.knowledge.clock_events import SLOWING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from envkit.checks.model import Env, Observation, Spec

_EXACT = {"type": "equals", "expected": 0, "gates": False, "unit": "elements"}
_HARDWARE = ("Drain this GPU and run `dcgmi diag -r 3` on the host.",)
_COOLING = ("Look at fans, air flow and power cables; watch it: nvidia-smi dmon -s pcut",)
_LINK = ("Reseat the card or riser; a link with many replays is failing.",)
_SETTLED = 1 / 3
"""The share of readings to leave out at the start, while the device is still cold."""


def judge(observation: Observation, _spec: Spec, env: Env) -> Finding:
    """Judge C24.load by its results, C24.telemetry by what the device reported."""
    observed = mapping(observation, "observed")
    return _load(observed) if part_of(observation) == "load" else _telemetry(observed, env)


def _load(observed: Mapping[str, Any]) -> Finding:
    different, products = number(observed, "different"), number(observed, "products")
    first, last = number(observed, "tflops_first"), number(observed, "tflops_last")
    metric = {"name": "gemm_rate", "value": last, "unit": "TFLOP/s", "better": "higher"}
    derived = {"last_over_first": last / first if first else None}
    if different:
        message = f"{different:.0f} elements changed between equal products under load"
        return Finding(Verdict.FAIL, message, "RESULTS_CHANGE_UNDER_LOAD", _HARDWARE, _EXACT, metric, derived)
    compared = optional_number(observed, "compared")
    share = "" if compared is None else f" ({compared:.0f} compared)"
    message = (
        f"{products:.0f} equal products{share} in {number(observed, 'seconds'):.0f} s; "
        f"{first:.4g} TFLOP/s at start, {last:.4g} at end"
    )
    return Finding(Verdict.PASS, message, None, (), _EXACT, metric, derived)


def _telemetry(observed: Mapping[str, Any], env: Env) -> Finding:
    table = thresholds.load()
    clock, replays = table.row("C24.clock"), table.row("C24.replays")
    rows = observed.get("rows")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise MalformedError("rows is not a list of readings")
    xids, ecc = observed.get("xids"), optional_number(observed, "uncorrected_ecc")
    # Errors come before rates: a GPU with an Xid is faulty, however fast it is.
    if isinstance(xids, list) and xids:
        known = [codes.xid(xid) for xid in dict.fromkeys(xids) if isinstance(xid, int)]
        numbers = ", ".join(str(code.number) for code in known)
        means = " ".join(code.means for code in known).rstrip(".")
        message = f"the driver reported Xid {numbers} under load: {means}"
        advice = tuple(dict.fromkeys(line for code in known for row in code.rows for line in row.fix))
        return Finding(Verdict.FAIL, message, "XID", advice or _HARDWARE, {**_EXACT, "unit": "messages"})
    if ecc:
        message = f"{ecc:.0f} uncorrectable memory errors under load"
        return Finding(Verdict.FAIL, message, "ECC_UNCORRECTED", _HARDWARE, {**_EXACT, "unit": "errors"})
    if not rows:
        raise MalformedError("rows holds no reading")
    minutes = number(observed, "seconds") / 60
    repeated = optional_number(observed, "pcie_replays")
    if repeated is not None and repeated > replays.number("fail_above") * minutes:
        message = f"the PCIe link replayed {repeated:.0f} packets in {minutes:.1f} minutes"
        return Finding(Verdict.FAIL, message, "PCIE_REPLAYS", _LINK, replays.record())
    # NVML reports a GeForce's highest clock, which it does not hold under load; other cards report their boost clock.
    names = [str(card.get("name")) for card in env.get("gpu") or () if isinstance(card, dict)]
    line = "warn_below_geforce" if any("GeForce" in name for name in names) else "warn_below"
    rule = clock.record(warn_below=clock.number(line))
    return _clock(rows[int(len(rows) * _SETTLED) :], optional_number(observed, "max_sm_mhz"), rule, xids)


def _clock(rows: Sequence[Mapping[str, Any]], top: float | None, rule: Mapping[str, Any], xids: Any) -> Finding:
    clocks = sorted(value for row in rows if (value := optional_number(row, "sm_mhz")) is not None)
    hot = max((value for row in rows if (value := optional_number(row, "celsius")) is not None), default=None)
    events = sorted({event for row in rows if row.get("events") is not None for event in strings(row, "events")})
    # None means that the messages cannot be read; a GPU without messages has an empty list.
    unread = "" if xids is not None else "; Xid messages cannot be read in this container"
    if not clocks or not top:
        message = f"no error under load; the clock cannot be read here{unread}"
        return Finding(Verdict.PASS, message, None, (), {**rule, "type": "informs"})
    share = clocks[len(clocks) // 2] / top
    metric = {"name": "sm_clock", "value": clocks[len(clocks) // 2], "unit": "MHz", "better": "higher"}
    derived = {"share_of_boost": share, "events": events, "celsius_max": hot}
    capped = ", limited by its power cap" if "sw_power_cap" in events else ""
    warm = "" if hot is None else f", {hot:.0f} degrees Celsius at most"
    message = f"no error; {share:.0%} of the boost clock of {top:.0f} MHz{capped}{warm}{unread}"
    low, lowest = float(rule["warn_below"]), float(rule["fail_below"])
    if share < lowest:
        return Finding(Verdict.FAIL, message, "CLOCK_COLLAPSED", _COOLING, rule, metric, derived)
    heat = [event for event in events if event in SLOWING]
    if heat:
        slowed = f"{message}; slowed down by {', '.join(heat)}"
        return Finding(Verdict.WARN, slowed, "CLOCK_SLOWED", _COOLING, rule, metric, derived)
    # A power cap explains a low clock: a T4 holds half of its clock at 70 W.
    if share < low and not capped:
        return Finding(Verdict.WARN, message, "CLOCK_LOW", _COOLING, rule, metric, derived)
    return Finding(Verdict.PASS, message, None, (), rule, metric, derived)
