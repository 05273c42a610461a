"""C17: does a forward pass without gradients keep no tensors for backward?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from envkit.ground.sizes import shown_size

if TYPE_CHECKING:
    from envkit.checks.case import Case
    from envkit.checks.model import Finding

_ADVICE = "Start python with `-I` and try again: something in the image replaces torch's own modes at start-up."
_LIBRARY = (
    "cuDNN's results differ from run to run although deterministic algorithms are set: try another version of cuDNN.",
    "Run `envkit verify IMAGE --only C07 --tier standard`: products that differ as well point to the GPU.",
)


def judge(case: Case) -> Finding:
    """Judge that no tensors are saved, that outputs need no gradient, and that they are the same."""
    saved, difference = case.value("saved_tensors"), case.value("relative_difference")
    case.metric("saved_tensors", saved, "1", "lower")
    kept = case.value("saved_bytes_with_grad")
    case.derive(saved_bytes_with_grad=kept)
    case.rule("equals", expected=0, gates=True, unit="tensors")
    if saved or case.flag("requires_grad"):
        return case.fail("TENSORS_SAVED", f"{saved:g} tensors are kept although no backward pass can follow", _ADVICE)
    # Checked first, because a library that does not repeat its own results also differs without gradients.
    repeated = case.optional("repeated_difference")
    if repeated:
        case.use("C17.difference", gates=False)
        message = f"two equal passes with gradients on differ by {repeated:.1e} of the largest output"
        return case.warn("CONV_NOT_REPEATABLE", message, *_LIBRARY)
    if difference > case.number("fail_above", "C17.difference"):
        case.use("C17.difference")
        message = f"outputs differ by {difference:.1e} of the largest from those with gradients on"
        return case.fail("ANSWERS_DIFFER", message, _ADVICE)
    return case.passed(f"nothing kept; {shown_size(kept, 'MB', 1)} with gradients on")
