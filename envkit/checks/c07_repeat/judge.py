"""C07: the same product gives the same bits every time. A difference comes from the hardware, not from the image."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envkit.checks.fields import mapping, number, part_of
from envkit.checks.model import Finding, Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from envkit.checks.model import Env, Observation, Spec

# The rule only informs about the image; NONDETERMINISTIC_GEMM blames the machine (check.yaml), which always counts.
_RULE = {"type": "equals", "expected": 0, "gates": False, "unit": "elements"}
_HARDWARE = (
    "Run `dcgmi diag -r 3` on the host: repeats that differ point to the GPU or its memory.",
    "Read the host's kernel log for Xid messages: dmesg | grep -i xid",
)
_TRAINING = ("Set torch.use_deterministic_algorithms(True) and CUBLAS_WORKSPACE_CONFIG=:4096:8, and run it again.",)


def judge(observation: Observation, _spec: Spec, _env: Env) -> Finding:
    """Judge one precision, or two equal trainings."""
    observed = mapping(observation, "observed")
    return _training(observed) if part_of(observation) == "training" else _gemm(observed)


def _gemm(observed: Mapping[str, Any]) -> Finding:
    repeats, different = number(observed, "repeats"), number(observed, "repeats_different")
    elements, size = number(observed, "elements_different"), number(observed, "size")
    metric = {"name": "elements_different", "value": elements, "unit": "elements", "better": "lower"}
    what = f"{repeats:.0f} products of {size:.0f} x {size:.0f}"
    if different or elements:
        message = f"{different:.0f} of {what} differ from the first, in {elements:.0f} elements"
        return Finding(Verdict.FAIL, message, "NONDETERMINISTIC_GEMM", _HARDWARE, _RULE, metric)
    if number(observed, "nonfinite"):
        message = f"{what}: {number(observed, 'nonfinite'):.0f} elements are not finite"
        return Finding(Verdict.FAIL, message, "NONFINITE_RESULT", _HARDWARE, _RULE, metric)
    return Finding(Verdict.PASS, f"{what} are bit-identical", None, (), _RULE, metric)


def _training(observed: Mapping[str, Any]) -> Finding:
    steps = number(observed, "steps")
    weights, losses = number(observed, "weights_different"), number(observed, "losses_different")
    metric = {"name": "weights_different", "value": weights, "unit": "elements", "better": "lower"}
    if weights or losses:
        message = f"two trainings of {steps:.0f} steps with the same seed differ in {weights:.0f} weights"
        return Finding(Verdict.WARN, message, "NONDETERMINISTIC_TRAINING", _TRAINING, _RULE, metric)
    message = f"two trainings of {steps:.0f} steps with the same seed are bit-identical"
    return Finding(Verdict.PASS, message, None, (), _RULE, metric)
