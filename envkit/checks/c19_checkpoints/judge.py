"""C19: does a restored training continue bit by bit, and does activation checkpointing keep the gradient?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from envkit.checks import thresholds
from envkit.checks.fields import flag, mapping, number, part_of
from envkit.checks.model import Finding, Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from envkit.checks.model import Env, Observation, Spec

_STATE = ("Load and save with the torch of this image alone: torch.save(model.state_dict(), FILE), weights_only=True.",)
_ACTIVATIONS = ("Use torch.utils.checkpoint.checkpoint(..., use_reentrant=False), and keep dropout's random state.",)


def judge(observation: Observation, _spec: Spec, _env: Env) -> Finding:
    """Judge C19.state and C19.activations."""
    observed = mapping(observation, "observed")
    return _state(observed) if part_of(observation) == "state" else _activations(observed)


def _state(observed: Mapping[str, Any]) -> Finding:
    rule = {"type": "equals", "expected": 0, "gates": True, "unit": "tensors"}
    different, size = number(observed, "differences"), number(observed, "bytes")
    loss, restored = number(observed, "next_loss"), number(observed, "next_loss_restored")
    metric = {"name": "differences", "value": different, "unit": "1", "better": "lower"}
    if different:
        message = f"{different:.0f} entries of a training state came back changed"
        return Finding(Verdict.FAIL, message, "STATE_CHANGED", _STATE, rule, metric)
    if loss != restored:
        message = f"the next step has loss {restored!r} after restoring, {loss!r} without"
        return Finding(Verdict.FAIL, message, "RESTORED_STEP_DIFFERS", _STATE, rule, metric)
    how = "weights_only" if flag(observed, "weights_only") else "as a pickle"
    message = f"model, optimizer and scaler from {size / 1e3:.0f} kB ({how}) are bit-identical, and so is the next step"
    return Finding(Verdict.PASS, message, None, (), rule, metric)


def _activations(observed: Mapping[str, Any]) -> Finding:
    row = thresholds.load().row("C19.gradient")
    difference = number(observed, "gradient_difference")
    plain, kept = number(observed, "saved_bytes"), number(observed, "saved_bytes_checkpointed")
    metric = {"name": "gradient_difference", "value": difference, "unit": "1", "better": "lower"}
    derived = {"saved_ratio": kept / plain}
    if difference > row.number("fail_above"):
        message = f"activation checkpointing changes the gradient by {difference:.1e} of its largest element"
        return Finding(Verdict.FAIL, message, "CHECKPOINTED_GRADIENT", _ACTIVATIONS, row.record(), metric, derived)
    if kept >= plain:
        message = f"activation checkpointing keeps {kept:.0f} bytes, as much as without it"
        return Finding(Verdict.FAIL, message, "CHECKPOINT_KEEPS_ALL", _ACTIVATIONS, row.record(), metric, derived)
    message = f"activation checkpointing keeps {kept / plain:.0%} of the bytes and changes no gradient"
    return Finding(Verdict.PASS, message, None, (), row.record(), metric, derived)
