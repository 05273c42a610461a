"""C17: does a forward pass without gradients keep no tensors for backward?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from envkit.checks import thresholds
from envkit.checks.fields import flag, mapping, number, optional_number
from envkit.checks.model import Finding, Verdict

if TYPE_CHECKING:
    from envkit.checks.model import Env, Observation, Spec

_ADVICE = ("Start python with `-I` and try again: something in the image replaces torch's own modes at start-up.",)
_LIBRARY = (
    "cuDNN's results differ from run to run although deterministic algorithms are set: try another version of cuDNN.",
    "Run `envkit verify IMAGE --only C07 --tier standard`: products that differ as well point to the GPU.",
)


def judge(observation: Observation, _spec: Spec, _env: Env) -> Finding:
    """Judge that no tensors are saved, that outputs need no gradient, and that they are the same."""
    observed = mapping(observation, "observed")
    row = thresholds.load().row("C17.difference")
    saved = number(observed, "saved_tensors")
    difference = number(observed, "relative_difference")
    metric = {"name": "saved_tensors", "value": saved, "unit": "1", "better": "lower"}
    derived = {"saved_bytes_with_grad": number(observed, "saved_bytes_with_grad")}
    nothing = {"type": "equals", "expected": 0, "gates": True, "unit": "tensors"}
    if saved or flag(observed, "requires_grad"):
        message = f"{saved:g} tensors are kept although no backward pass can follow"
        return Finding(Verdict.FAIL, message, "TENSORS_SAVED", _ADVICE, nothing, metric, derived)
    # Checked first, because a library that does not repeat its own results also differs without gradients.
    repeated = optional_number(observed, "repeated_difference")
    if repeated:
        message = f"two equal passes with gradients on differ by {repeated:.1e} of the largest output"
        rule = row.record(gates=False)
        return Finding(Verdict.WARN, message, "CONV_NOT_REPEATABLE", _LIBRARY, rule, metric, derived)
    if difference > row.number("fail_above"):
        message = f"outputs differ by {difference:.1e} of the largest from those with gradients on"
        return Finding(Verdict.FAIL, message, "ANSWERS_DIFFER", _ADVICE, row.record(), metric, derived)
    kept = derived["saved_bytes_with_grad"] / 1e6
    return Finding(Verdict.PASS, f"nothing kept; {kept:.1f} MB with gradients on", None, (), nothing, metric, derived)
