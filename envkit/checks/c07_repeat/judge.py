"""C07: the same product gives the same bits every time. A difference comes from the hardware, not from the image."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from envkit.checks.case import Case
    from envkit.checks.model import Finding

_HARDWARE = (
    "Run `dcgmi diag -r 3` on the host: repeats that differ point to the GPU or its memory.",
    "Read the host's kernel log for Xid messages: dmesg | grep -i xid",
)
_TRAINING = "Set torch.use_deterministic_algorithms(True) and CUBLAS_WORKSPACE_CONFIG=:4096:8, and run it again."


def judge(case: Case) -> Finding:
    """Judge one precision, or two equal trainings."""
    # The rule only informs about the image; NONDETERMINISTIC_GEMM blames the machine (check.yaml), which always counts.
    case.rule("equals", expected=0, gates=False, unit="elements")
    return _training(case) if case.part == "training" else _gemm(case)


def _gemm(case: Case) -> Finding:
    repeats, different = case.value("repeats"), case.value("repeats_different")
    elements, size = case.value("elements_different"), case.value("size")
    case.metric("elements_different", elements, "elements", "lower")
    what = f"{repeats:.0f} products of {size:.0f} x {size:.0f}"
    if different or elements:
        message = f"{different:.0f} of {what} differ from the first, in {elements:.0f} elements"
        return case.fail("NONDETERMINISTIC_GEMM", message, *_HARDWARE)
    if nonfinite := case.value("nonfinite"):
        return case.fail("NONFINITE_RESULT", f"{what}: {nonfinite:.0f} elements are not finite", *_HARDWARE)
    return case.passed(f"{what} are bit-identical")


def _training(case: Case) -> Finding:
    what = f"two trainings of {case.value('steps'):.0f} steps with the same seed"
    weights, losses = case.value("weights_different"), case.value("losses_different")
    case.metric("weights_different", weights, "elements", "lower")
    if weights or losses:
        return case.warn("NONDETERMINISTIC_TRAINING", f"{what} differ in {weights:.0f} weights", _TRAINING)
    return case.passed(f"{what} are bit-identical")
