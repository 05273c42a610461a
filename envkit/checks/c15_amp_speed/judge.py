"""C15: does reduced precision use the tensor cores? The speedup over strict float32 in one process shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envkit.checks import peaks, thresholds
from envkit.checks.observed import optional_number, version_key

if TYPE_CHECKING:
    from envkit.checks.case import Case
    from envkit.checks.model import Finding

_UNUSED = (
    "Check that cuBLAS is the installed one: `envkit verify IMAGE --only C02`.",
    "Make matrix dimensions multiples of 8 (64 on data center GPUs), so that tensor cores are used.",
)
_BELOW = "Look for a power or clock limit: nvidia-smi -q -d CLOCK,POWER,PERFORMANCE"
_IGNORED = "Something changes torch's dtypes: start without PYTHONPATH and without a sitecustomize.py."
_TENSOR_CORES = version_key("7.0")  # Volta, the first generation with tensor cores
_RESULT = {"tf32": "float32", "fp16": "float16", "bf16": "bfloat16"}


def judge(case: Case) -> Finding:
    """Judge one precision. Only the speedup of float16 on a GPU gates; the rest informs."""
    precision, gain, dtype = case.text("precision"), case.value("over_fp32"), case.text("output_dtype")
    if dtype != _RESULT[precision]:
        case.rule("equals", output_dtype=_RESULT[precision], gates=False)
        message = f"a product in {precision} has the dtype {dtype}, so its rate is that of another precision"
        return case.fail("PRECISION_NOT_USED", message, _IGNORED)
    rate, over_tf32 = case.value("tflops"), case.optional("over_tf32")
    rates = f"{rate:.3g} against {case.value('tflops_fp32'):.3g} TFLOP/s"
    rates += "" if over_tf32 is None else f", {over_tf32:.2f} times TF32"
    message = f"{precision} products run {gain:.2f} times the speed of strict float32 ({rates})"
    capability, reduced = case.observed.get("capability"), precision != "tf32"
    if capability is not None and peaks.without_tensor_cores(capability, case.observed.get("name")):
        case.use("C15.no_tensor_cores", gates=False)
        return case.skip("NO_TENSOR_CORES", f"{case.observed['name']} has no tensor cores")
    case.metric("gemm_rate", rate, "TFLOP/s", "higher")
    case.derive(over_fp32=gain, over_tf32=over_tf32)
    case.use("C15.tensor_cores", type="informs", gates=False)
    if capability is None:
        return case.passed(f"{message}, on a CPU")
    eligible = version_key(str(capability)) >= _TENSOR_CORES
    if eligible and reduced and gain < case.number("fail_below"):
        # float16 has tensor cores on every eligible GPU, bfloat16 only from 8.0 on.
        case.use("C15.tensor_cores", gates=precision == "fp16")
        return case.fail("TENSOR_CORES_UNUSED", message, *_UNUSED)
    if eligible and precision == "fp16":
        case.use("C15.tensor_cores")
    return _by_chip(case, rate, gain, message) if reduced else case.passed(message)


def _by_chip(case: Case, rate: float, gain: float, message: str) -> Finding:
    """Judge the rate by the limit of the GPU's clock, and the speedup by what is usual for its compute capability."""
    limits, capability = case.observed.get("limits"), case.observed.get("capability")
    limits = limits if isinstance(limits, dict) else {}
    limit = peaks.product_limit(limits)
    if limit is not None:
        case.derive(limit_tflops=limit, fraction_of_limit=rate / limit)
        held = peaks.power_held(case.observed.get("health"), optional_number(limits, "max_sm_mhz"))
        message = f"{message}, {rate / limit:.2f} of what the GPU's clock allows{f': {held}' if held else ''}"
        if rate < case.number("fail_below", peaks.PRODUCT) * limit:
            case.use(peaks.PRODUCT)
            return case.fail("PRODUCTS_BELOW_FLOOR", message, _BELOW)
    usual = optional_number(thresholds.load().row("C15.expected").values, f"cc{capability}")
    if usual is not None and gain < usual:
        case.use("C15.expected")
        usually = f"{message}; {usual:g} times is usual for compute capability {capability}"
        return case.warn("TENSOR_CORES_SLOW", usually, _BELOW)
    return case.passed(message)
