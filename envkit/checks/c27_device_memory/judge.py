"""C27: does device memory keep what is written, and is it as fast as its bus allows?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from envkit.checks import peaks, thresholds
from envkit.checks.fields import by_part, mapping, number
from envkit.checks.model import Finding, Verdict

if TYPE_CHECKING:
    from envkit.checks.model import Env, Observation, Spec

_HARDWARE = (
    "Drain this GPU and run `dcgmi diag -r 3` on the host.",
    "Look for row remaps and retired pages: nvidia-smi -q -d ECC,ROW_REMAPPER,PAGE_RETIREMENT",
)
_SLOW = ("Look at clocks and at other processes: nvidia-smi -q -d CLOCK,PERFORMANCE,PIDS",)


def judge(observation: Observation, spec: Spec, env: Env) -> Finding:
    """Judge C27.pattern exactly, and C27.copy by the limit of the memory bus."""
    return by_part({"pattern": _pattern, "copy": _copy}, observation, spec, env)


def _pattern(observation: Observation, _spec: Spec, _env: Env) -> Finding:
    observed = mapping(observation, "observed")
    wrong = mapping(observed, "wrong")
    total, size = sum(number(wrong, name) for name in wrong), number(observed, "bytes") / 2**30
    rule = {"type": "equals", "expected": 0, "gates": True, "unit": "words"}
    metric = {"name": "wrong_words", "value": total, "unit": "words", "better": "lower"}
    # An empty table means that no pattern was read back, which verifies nothing.
    if total or not wrong:
        message = f"{total:.0f} words of 8 bytes changed in {size:.1f} GiB of device memory"
        return Finding(Verdict.FAIL, message, "DEVICE_MEMORY_WRONG", _HARDWARE, rule, metric)
    message = f"{size:.1f} GiB of device memory kept a pattern and its complement"
    return Finding(Verdict.PASS, message, None, (), rule, metric)


def _copy(observation: Observation, _spec: Spec, _env: Env) -> Finding:
    observed = mapping(observation, "observed")
    row = thresholds.load().row("C27.copy")
    rate, limit = number(observed, "gb_per_s"), peaks.memory_limit(mapping(observed, "limits"))
    metric = {"name": "memory_bandwidth", "value": rate, "unit": "GB/s", "better": "higher"}
    derived = {"limit": limit, "fraction_of_limit": rate / limit if limit else None}
    if limit is None:
        message = f"{rate:.0f} GB/s read and written; the width of the memory bus is unknown here, so there is no floor"
        return Finding(Verdict.PASS, message, None, (), row.record(type="informs", gates=False), metric, derived)
    share = rate / limit
    message = f"{rate:.0f} GB/s read and written, {share:.2f} of what the memory bus carries ({limit:.0f} GB/s)"
    if share > row.number("warn_above"):
        advice = ("Report this with the record (envkit verify -o FILE): width or clock of the bus is misread.",)
        return Finding(Verdict.WARN, message, "ABOVE_MEMORY_LIMIT", advice, row.record(gates=False), metric, derived)
    if share < row.number("fail_below"):
        return Finding(Verdict.FAIL, message, "DEVICE_MEMORY_SLOW", _SLOW, row.record(), metric, derived)
    return Finding(Verdict.PASS, message, None, (), row.record(), metric, derived)
