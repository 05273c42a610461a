"""C19: does a restored training continue bit by bit, and does activation checkpointing keep the gradient?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from envkit.ground.sizes import shown_size

if TYPE_CHECKING:
    from envkit.checks.case import Case
    from envkit.checks.model import Finding

_STATE = "Load and save with the torch of this image alone: torch.save(model.state_dict(), FILE), weights_only=True."
_ACTIVATIONS = "Use torch.utils.checkpoint.checkpoint(..., use_reentrant=False), and keep dropout's random state."


def judge(case: Case) -> Finding:
    """Judge C19.state and C19.activations."""
    return _state(case) if case.part == "state" else _activations(case)


def _state(case: Case) -> Finding:
    case.rule("equals", expected=0, gates=True, unit="tensors")
    different, size = case.value("differences"), case.value("bytes")
    loss, restored = case.value("next_loss"), case.value("next_loss_restored")
    case.metric("differences", different, "1", "lower")
    if different:
        return case.fail("STATE_CHANGED", f"{different:.0f} entries of a training state came back changed", _STATE)
    if loss != restored:
        message = f"the next step has loss {restored!r} after restoring, {loss!r} without"
        return case.fail("RESTORED_STEP_DIFFERS", message, _STATE)
    how = "weights_only" if case.flag("weights_only") else "as a pickle"
    return case.passed(
        f"model, optimizer and scaler from {shown_size(size, 'kB')} ({how}) are bit-identical, and so is the next step"
    )


def _activations(case: Case) -> Finding:
    case.use("C19.gradient")
    difference = case.value("gradient_difference")
    plain, kept = case.value("saved_bytes"), case.value("saved_bytes_checkpointed")
    case.metric("gradient_difference", difference, "1", "lower")
    case.derive(saved_ratio=kept / plain)
    if difference > case.number("fail_above"):
        message = f"activation checkpointing changes the gradient by {difference:.1e} of its largest element"
        return case.fail("CHECKPOINTED_GRADIENT", message, _ACTIVATIONS)
    if kept >= plain:
        message = f"activation checkpointing keeps {kept:.0f} bytes, as much as without it"
        return case.fail("CHECKPOINT_KEEPS_ALL", message, _ACTIVATIONS)
    return case.passed(f"activation checkpointing keeps {kept / plain:.0%} of the bytes and changes no gradient")
