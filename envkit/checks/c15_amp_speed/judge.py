"""C15: does reduced precision use the tensor cores? The speedup over strict float32 in one process shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envkit.checks import peaks, thresholds
from envkit.checks.fields import mapping, number, optional_number, text, version_key
from envkit.checks.model import Finding, Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from envkit.checks.model import Env, Observation, Spec

_UNUSED = (
    "Check that cuBLAS is the installed one: `envkit verify IMAGE --only C02`.",
    "Make matrix dimensions multiples of 8 (64 on data center GPUs), so that tensor cores are used.",
)
_BELOW = ("Look for a power or clock limit: nvidia-smi -q -d CLOCK,POWER,PERFORMANCE",)
_IGNORED = ("Something changes torch's dtypes: start without PYTHONPATH and without a sitecustomize.py.",)
_TENSOR_CORES = version_key("7.0")  # Volta, the first generation with tensor cores
_RESULT = {"tf32": "float32", "fp16": "float16", "bf16": "bfloat16"}


def judge(observation: Observation, _spec: Spec, _env: Env) -> Finding:
    """Judge one precision. Only the speedup of float16 on a GPU gates; the rest informs."""
    observed = mapping(observation, "observed")
    table = thresholds.load()
    row, expected = table.row("C15.tensor_cores"), table.row("C15.expected")
    precision, gain = text(observed, "precision"), number(observed, "over_fp32")
    dtype = text(observed, "output_dtype")
    if dtype != _RESULT[precision]:
        message = f"a product in {precision} has the dtype {dtype}, so its rate is that of another precision"
        exact = {"type": "equals", "output_dtype": _RESULT[precision], "gates": False}
        return Finding(Verdict.FAIL, message, "PRECISION_NOT_USED", _IGNORED, exact)
    rate = number(observed, "tflops")
    metric = {"name": "gemm_rate", "value": rate, "unit": "TFLOP/s", "better": "higher"}
    derived = {"over_fp32": gain, "over_tf32": optional_number(observed, "over_tf32")}
    message = f"{precision} products run {gain:.2f} times the speed of strict float32 ({_rates(observed, derived)})"
    capability = observed.get("capability")
    if capability is None:
        rule = row.record(type="informs", gates=False)
        return Finding(Verdict.PASS, f"{message}, on a CPU", None, (), rule, metric, derived)
    if peaks.without_tensor_cores(capability, observed.get("name")):
        missing = f"{observed['name']} has no tensor cores"
        rule = table.row("C15.no_tensor_cores").record(gates=False)
        return Finding(Verdict.SKIP, missing, "NO_TENSOR_CORES", rule=rule)
    eligible = version_key(str(capability)) >= _TENSOR_CORES
    if eligible and precision != "tf32" and gain < row.number("fail_below"):
        # float16 has tensor cores on every eligible GPU, bfloat16 only from 8.0 on.
        rule = row.record(gates=precision == "fp16")
        return Finding(Verdict.FAIL, message, "TENSOR_CORES_UNUSED", _UNUSED, rule, metric, derived)
    limits = observed.get("limits")
    limits = limits if isinstance(limits, dict) else {}
    limit = peaks.product_limit(limits) if precision != "tf32" else None
    if limit is not None:
        derived |= {"limit_tflops": limit, "fraction_of_limit": rate / limit}
        message = f"{message}, {rate / limit:.2f} of what the GPU's clock allows"
        held = peaks.power_held(observed.get("health"), optional_number(limits, "max_sm_mhz"))
        message += f": {held}" if held else ""
    usual = optional_number(expected.values, f"cc{capability}") if precision != "tf32" else None
    floor = peaks.product_row()
    if limit is not None and rate < floor.number("fail_below") * limit:
        finding = Finding(Verdict.FAIL, message, "PRODUCTS_BELOW_FLOOR", _BELOW, floor.record(), metric, derived)
    elif usual is not None and gain < usual:
        usually = f"{message}; {usual:g} times is usual for compute capability {capability}"
        finding = Finding(Verdict.WARN, usually, "TENSOR_CORES_SLOW", _BELOW, expected.record(), metric, derived)
    else:
        rule = row.record() if eligible and precision == "fp16" else row.record(type="informs", gates=False)
        finding = Finding(Verdict.PASS, message, None, (), rule, metric, derived)
    return finding


def _rates(observed: Mapping[str, Any], derived: Mapping[str, Any]) -> str:
    rates = f"{number(observed, 'tflops'):.3g} against {number(observed, 'tflops_fp32'):.3g} TFLOP/s"
    over = derived["over_tf32"]
    return rates if over is None else f"{rates}, {over:.2f} times TF32"
