"""C26: does every visible GPU work, compute correctly and keep up with its siblings? Which were not measured?"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from envkit.checks import peaks
from envkit.checks.model import Verdict
from envkit.checks.observed import flag, last_line, number, strings, text
from envkit.ground.sizes import shown_size
from envkit.knowledge import matching
from envkit.knowledge.clock_events import SLOWING

if TYPE_CHECKING:
    from envkit.checks.case import Case
    from envkit.checks.model import Finding

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


def judge(case: Case) -> Finding:
    """Judge C26.gpu and C26.coverage."""
    return case.by_part({"gpu": _gpu, "coverage": _coverage})


def _gpu(case: Case) -> Finding:
    if case.text("outcome") != "answered":
        return _silent(case)
    # A wrong result outweighs a slow one, and no other process on the GPU excuses it.
    finding = _wrong(case) or _rates(case)
    busy = case.optional("busy_before")
    if finding.reason_code in _RATED and busy is not None and busy > _BUSY_PERCENT:
        message = f"{finding.message}; other processes used it for {busy:.0f} % of the second before"
        return replace(finding, verdict=Verdict.INCONCLUSIVE, reason_code="NOISY", message=message, advice=_AGAIN)
    return finding


def _silent(case: Case) -> Finding:
    """Judge a GPU whose process gave no answer."""
    error, others = str(case.observed.get("text") or ""), case.value("others_answered")
    case.rule("equals", outcome="answered", gates=True)
    if case.observed["outcome"] == "timeout":
        message = f"{case.subject} gave {error}"
        # If all GPUs are late, the machine is slow; a single late one hangs.
        if not others:
            return case.inconclusive("GPUS_SLOW_TO_START", f"{message}; no other GPU answered", *_AGAIN)
        return case.fail("GPU_HANGS", f"{message}; {others:.0f} others answered", *_HARDWARE)
    message = f"{case.subject} failed: {last_line(error)[:300] or 'no message'}"
    if "no kernel image" in error.lower():
        # C03 judges whether that is the image's fault. An old display card next to the main GPU is not.
        case.amend(gates=False)
        return case.warn("NO_KERNEL_IMAGE", message, "Leave this GPU out: --gpus with the numbers of the others.")
    known = matching.reason(error, _CODES)
    if known is not None:
        return case.fail(known[0], message, *known[1].fix)
    return case.fail("GPU_FAILS", message, *_HARDWARE)


def _wrong(case: Case) -> Finding | None:
    """Return the finding on a GPU that computes or copies wrongly, or None if it does not."""
    case.rule("equals", expected="exact", gates=True)
    kernel, copy = case.mapping("kernel"), case.mapping("copy")
    total, expected = number(kernel, "total"), number(kernel, "expected")
    if total != expected:
        message = f"{case.subject} computed {total:.0f} instead of {expected:.0f}"
        return case.fail("GPU_COMPUTES_WRONG", message, *_HARDWARE)
    if not flag(copy, "exact"):
        message = f"{shown_size(number(copy, 'bytes'), 'MiB')} came back from {case.subject} changed"
        return case.fail("COPY_WRONG", message, *_HARDWARE)
    return None


def _rates(case: Case) -> Finding:
    """Judge the rates by the chip's own limit and by the siblings, then what the GPU reports under load."""
    case.use("C26.siblings")
    measured, usual, health = case.mapping("rates"), case.mapping("alike_median"), case.observed.get("health")
    rates = {name: number(measured, name) for name in _NAMES}
    share = {name: rates[name] / number(usual, name) for name in _NAMES if usual and number(usual, name)}
    limit, rate = peaks.product_limit(case.observed), rates["tflops"]
    fraction = rate / limit if limit else None
    capped = peaks.power_held(health, case.optional("max_sm_mhz"))
    why = f"; {capped}" if capped else ""
    case.metric("gemm_rate", rate, "TFLOP/s", "higher")
    case.derive(limit_tflops=limit, fraction_of_limit=fraction, of_siblings=share)
    if limit is not None and rate < case.number("fail_below", peaks.PRODUCT) * limit:
        case.use(peaks.PRODUCT)
        dtype = text(case.mapping("product"), "dtype")
        message = f"{case.subject}: {rate:.4g} TFLOP/s in {dtype} is {rate / limit:.2f} of what its clock allows{why}"
        return case.fail("PRODUCTS_BELOW_FLOOR", message, *_SLOW)
    least = min(share, key=share.__getitem__, default=None)
    if least is not None and share[least] < case.number("warn_below"):
        message = f"{case.subject}: {_NAMES[least]} at {rates[least]:.4g} {_UNITS[least]}, {share[least]:.2f} of"
        message = f"{message} the {number(usual, least):.4g} of its siblings{why if least == 'tflops' else ''}"
        # A thread on the other socket copies more slowly, which is not the GPU's fault.
        other_socket = least != "tflops" and not flag(case.mapping("copy"), "near")
        if share[least] < case.number("fail_below") and not other_socket:
            return case.fail("SLOWER_THAN_SIBLINGS", message, *_SLOW)
        case.amend(gates=False)
        return case.warn("SIBLINGS_DIFFER", message, *_SLOW)
    share_of_limit = f", {fraction:.2f} of what its top clock allows" if fraction is not None else ""
    message = (
        f"{case.observed.get('name')}: exact; {rates['h2d_gb_per_s']:.1f} GB/s to it, {rates['d2h_gb_per_s']:.1f} "
        f"from it, {rate:.4g} TFLOP/s{f'{share_of_limit}: {capped}' if capped else ''}"
    )
    events = strings(health, "events") if isinstance(health, dict) and health.get("events") is not None else []
    heat = [event for event in events if event in SLOWING]
    if heat:
        case.amend(gates=False)
        return case.warn("CLOCK_SLOWED", f"{message}; slowed down by {', '.join(heat)}", *_SLOW)
    if not share:
        case.amend(type="informs", gates=False)
    return case.passed(message)


def _coverage(case: Case) -> Finding:
    measured, left = case.strings("measured"), case.objects("not_measured", "GPUs")
    case.rule("equals", expected="every visible GPU", gates=False)
    case.metric("gpus_measured", len(measured), "GPUs", "higher")
    message = f"measured {len(measured)} of {len(measured) + len(left)} GPUs"
    if not left:
        return case.passed(message)
    named = "; ".join(f"{item.get('gpu')} {item.get('name') or ''}: {item.get('why')}" for item in left)
    message = f"{message}; not measured: {named}"
    selection = case.observed.get("visible_devices")
    if selection is not None and all(item.get("why") == "not visible to torch" for item in left):
        return case.passed(f"{message} (CUDA_VISIBLE_DEVICES={selection})")
    advice = "Give the container all of them, --gpus all, and look at what the others report above."
    return case.warn("GPUS_NOT_MEASURED", message, advice)
