"""C06: are the errors of a convolution and of both gradients those expected of the promised precision?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from envkit.checks.observed import MalformedError, mapping
from envkit.checks.precision_bands import Result, judge_results, read_result

if TYPE_CHECKING:
    from typing import Any

    from envkit.checks.case import Case
    from envkit.checks.model import Finding

PARTS = ("forward", "grad_input", "grad_weight")


def judge(case: Case) -> Finding:
    """Judge one precision over both layouts, the library on and off, and the three results. The worst decides."""
    case.use("C06.bands")
    cudnn = case.spec.get("cudnn")
    if case.observed.get("library") == "cudnn" and cudnn is not None and not case.flag("library_available"):
        advice = "Check the installed sub-libraries: `envkit verify IMAGE --only C01,C02`."
        return case.fail("CUDNN_UNAVAILABLE", f"torch finds no cuDNN; {cudnn} was promised", advice)
    results = [result for name, parts in case.mapping("cases").items() for result in _results(case, name, parts)]
    return judge_results(case, results, wide="C06.stride1")


def _results(case: Case, name: str, parts: Any) -> list[Result]:
    if not isinstance(parts, dict):
        raise MalformedError(f"cases.{name} is not an object")
    # Only float32 is precise enough to show the order of the long sums in a weight gradient.
    long_sum = case.observed.get("promise") == "ieee"
    return [
        read_result(
            f"{name} {part}",
            mapping(parts, part),
            full_max="full_max_grad_weight" if part == "grad_weight" else "full_max",
            element="ieee_grad_weight" if part == "grad_weight" and long_sum else None,
            wide=name.startswith("stride1."),
        )
        for part in PARTS
    ]
