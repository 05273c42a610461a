"""C26: does every visible GPU work, compute correctly and keep up with its siblings? Which were not measured?"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from envkit.checks import peaks, thresholds
from envkit.checks.fields import (
    MalformedError,
    by_part,
    flag,
    last_line,
    mapping,
    number,
    optional_number,
    strings,
    text,
)
from envkit.checks.model import Finding, Verdict
from envkit.knowledge import matching
from envkit.knowledge.clock_events import SLOWING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from envkit.checks.model import Env, Observation, Spec

_EXACT = {"type": "equals", "expected": "exact", "gates": True}
_HARDWARE = (
    "Drain this GPU and run `dcgmi diag -r 3` on the host.",
    "Leave it out meanwhile: --gpus with the numbers of the others.",
)
_SLOW = (
    "Compare it with its siblings: nvidia-smi -q -d CLOCK,POWER,PERFORMANCE,PAGE_RETIREMENT, and nvidia-smi topo -m",
    "Leave it out meanwhile: --gpus with the numbers of the others.",
)
_AGAIN = ("Run it again while nothing else uses this machine.",)
_RATED = ("PRODUCTS_BELOW_FLOOR", "SLOWER_THAN_SIBLINGS", "SIBLINGS_DIFFER")
_BUSY_PERCENT = 5  # the same as BUSY_LIMIT of the payload
_CODES = frozenset({"GPU_EXCLUSIVE", "GPU_OUT_OF_MEMORY"})  # of the rows of known failures
_NAMES = {"h2d_gb_per_s": "copies to it", "d2h_gb_per_s": "copies from it", "tflops": "products"}
_UNITS = {"h2d_gb_per_s": "GB/s", "d2h_gb_per_s": "GB/s", "tflops": "TFLOP/s"}


def judge(observation: Observation, spec: Spec, env: Env) -> Finding:
    """Judge C26.gpu and C26.coverage."""
    return by_part({"gpu": _gpu, "coverage": _coverage}, observation, spec, env)


def _gpu(observation: Observation, _spec: Spec, _env: Env) -> Finding:
    observed, subject = mapping(observation, "observed"), str(observation["subject"])
    if text(observed, "outcome") != "answered":
        return _silent(observed, subject)
    # A wrong result outweighs a slow one, and no other process on the GPU excuses it.
    finding = _wrong(observed, subject) or _rates(observed, subject)
    busy = optional_number(observed, "busy_before")
    if finding.reason_code in _RATED and busy is not None and busy > _BUSY_PERCENT:
        message = f"{finding.message}; other processes used it for {busy:.0f} % of the second before"
        return replace(finding, verdict=Verdict.INCONCLUSIVE, reason_code="NOISY", message=message, advice=_AGAIN)
    return finding


def _silent(observed: Mapping[str, Any], subject: str) -> Finding:
    """Return the finding on a GPU whose process gave no answer."""
    outcome, error = text(observed, "outcome"), str(observed.get("text") or "")
    others = number(observed, "others_answered")
    rule = {"type": "equals", "outcome": "answered", "gates": True}
    if outcome == "timeout":
        message = f"{subject} gave {error}"
        # If all GPUs are late, the machine is slow; a single late one hangs.
        if not others:
            return Finding(
                Verdict.INCONCLUSIVE, f"{message}; no other GPU answered", "GPUS_SLOW_TO_START", _AGAIN, rule
            )
        return Finding(Verdict.FAIL, f"{message}; {others:.0f} others answered", "GPU_HANGS", _HARDWARE, rule)
    message = f"{subject} failed: {last_line(error)[:300] or 'no message'}"
    if "no kernel image" in error.lower():
        # C03 judges whether that is the image's fault. An old display card next to the main GPU is not.
        advice = ("Leave this GPU out: --gpus with the numbers of the others.",)
        return Finding(Verdict.WARN, message, "NO_KERNEL_IMAGE", advice, {**rule, "gates": False})
    known = matching.reason(error, _CODES)
    if known is not None:
        return Finding(Verdict.FAIL, message, known[0], known[1].fix, rule)
    return Finding(Verdict.FAIL, message, "GPU_FAILS", _HARDWARE, rule)


def _wrong(observed: Mapping[str, Any], subject: str) -> Finding | None:
    """Return the finding on a GPU that computes or copies wrongly, or None if it does not."""
    kernel, copy = mapping(observed, "kernel"), mapping(observed, "copy")
    total, expected = number(kernel, "total"), number(kernel, "expected")
    if total != expected:
        message = f"{subject} computed {total:.0f} instead of {expected:.0f}"
        return Finding(Verdict.FAIL, message, "GPU_COMPUTES_WRONG", _HARDWARE, _EXACT)
    if not flag(copy, "exact"):
        message = f"{number(copy, 'bytes') / 2**20:.0f} MiB came back from {subject} changed"
        return Finding(Verdict.FAIL, message, "COPY_WRONG", _HARDWARE, _EXACT)
    return None


def _rates(observed: Mapping[str, Any], subject: str) -> Finding:
    """Judge the rates by the chip's own limit and by the siblings, then what the GPU reports under load."""
    row, floor = thresholds.load().row("C26.siblings"), peaks.product_row()
    rates = {name: number(mapping(observed, "rates"), name) for name in _NAMES}
    usual = mapping(observed, "alike_median")
    share = {name: rates[name] / number(usual, name) for name in _NAMES if usual and number(usual, name)}
    limit, rate = peaks.product_limit(observed), rates["tflops"]
    capped = peaks.power_held(observed.get("health"), optional_number(observed, "max_sm_mhz"))
    share_of_limit = f", {rate / limit:.2f} of what its top clock allows" if limit else ""
    held = f"{share_of_limit}: {capped}" if capped else ""
    plain = Finding(
        Verdict.PASS,
        f"{observed.get('name')}: exact; {rates['h2d_gb_per_s']:.1f} GB/s to it, {rates['d2h_gb_per_s']:.1f} from it, "
        f"{rate:.4g} TFLOP/s{held}",
        rule=row.record() if share else row.record(type="informs", gates=False),
        metric={"name": "gemm_rate", "value": rate, "unit": "TFLOP/s", "better": "higher"},
        derived={"limit_tflops": limit, "fraction_of_limit": rate / limit if limit else None, "of_siblings": share},
    )
    if limit is not None and rate < floor.number("fail_below") * limit:
        dtype = text(mapping(observed, "product"), "dtype")
        message = f"{subject}: {rate:.4g} TFLOP/s in {dtype} is {rate / limit:.2f} of what its clock allows"
        message += f"; {capped}" if capped else ""
        code = "PRODUCTS_BELOW_FLOOR"
        return replace(
            plain, verdict=Verdict.FAIL, message=message, reason_code=code, advice=_SLOW, rule=floor.record()
        )
    least = min(share, key=share.__getitem__, default=None)
    if least is not None and share[least] < row.number("warn_below"):
        message = f"{subject}: {_NAMES[least]} at {rates[least]:.4g} {_UNITS[least]}, {share[least]:.2f} of"
        message = f"{message} the {number(usual, least):.4g} of its siblings"
        message += f"; {capped}" if capped and least == "tflops" else ""
        slower = replace(plain, verdict=Verdict.FAIL, message=message, reason_code="SLOWER_THAN_SIBLINGS", advice=_SLOW)
        # A thread on the other socket copies more slowly, which is not the GPU's fault.
        other_socket = least != "tflops" and not flag(mapping(observed, "copy"), "near")
        if share[least] < row.number("fail_below") and not other_socket:
            return slower
        return replace(slower, verdict=Verdict.WARN, reason_code="SIBLINGS_DIFFER", rule=row.record(gates=False))
    health = observed.get("health")
    events = strings(health, "events") if isinstance(health, dict) and health.get("events") is not None else []
    heat = [event for event in events if event in SLOWING]
    if heat:
        message = f"{plain.message}; slowed down by {', '.join(heat)}"
        informs = row.record(gates=False)
        return replace(
            plain, verdict=Verdict.WARN, message=message, reason_code="CLOCK_SLOWED", advice=_SLOW, rule=informs
        )
    return plain


def _coverage(observation: Observation, _spec: Spec, _env: Env) -> Finding:
    observed = mapping(observation, "observed")
    measured, left = strings(observed, "measured"), observed.get("not_measured")
    if not isinstance(left, list) or not all(isinstance(item, dict) for item in left):
        raise MalformedError("not_measured is not a list of GPUs")
    rule = {"type": "equals", "expected": "every visible GPU", "gates": False}
    visible = len(measured) + len(left)
    metric = {"name": "gpus_measured", "value": len(measured), "unit": "GPUs", "better": "higher"}
    message = f"measured {len(measured)} of {visible} GPUs"
    if not left:
        return Finding(Verdict.PASS, message, None, (), rule, metric)
    named = "; ".join(f"{item.get('gpu')} {item.get('name') or ''}: {item.get('why')}" for item in left)
    message = f"{message}; not measured: {named}"
    selection = observed.get("visible_devices")
    if selection is not None and all(item.get("why") == "not visible to torch" for item in left):
        return Finding(Verdict.PASS, f"{message} (CUDA_VISIBLE_DEVICES={selection})", None, (), rule, metric)
    advice = ("Give the container all of them, --gpus all, and look at what the others report above.",)
    return Finding(Verdict.WARN, message, "GPUS_NOT_MEASURED", advice, rule, metric)
