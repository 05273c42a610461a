"""C19: save and restore a training bit by bit, and compare gradients with and without activation checkpointing."""

import io
import os

from envkit.smoke import amp, compat, timing
from envkit.smoke.observation import control, ran, skipped

STEPS = 3  # of a training, so that Adam's state is not empty
BLOCKS, BATCH, WIDTH = 4, 64, 128


def run(ctx):
    """Return C19.state and C19.activations."""
    with timing.single_thread(ctx.seeded()), amp.strict_fp32(ctx):
        return [_state(ctx), _activations(ctx)]


class _Planted:
    """An object that runs a command when it is unpickled."""

    def __reduce__(self):
        return os.getpid, ()


def _state(ctx):
    """Train, save the state to bytes, load it into another training, and take the next step in both."""
    torch = ctx.torch
    kind = "fp16" if ctx.has_cuda else "fp32"
    source, target = (amp.Stepper(ctx, "mlp", "small", seed, kind) for seed in (ctx.seed, ctx.seed + 1))
    for stepper in (source, target):
        stepper.optimizer = torch.optim.Adam(stepper.model.parameters(), lr=1e-3)
    target.inputs, target.targets = source.inputs, source.targets
    for _ in range(STEPS):
        source.step()
    fresh_loss = float(target.step())
    state = _state_of(source)
    file = io.BytesIO()
    torch.save(state, file)
    size = file.tell()
    loaded, safe = compat.load_weights(torch, file)
    target.model.load_state_dict(loaded["model"])
    target.optimizer.load_state_dict(loaded["optimizer"])
    if source.scaler is not None:
        target.scaler.load_state_dict(loaded["scaler"])
    changed = differences(torch, state, _state_of(target))
    losses = float(source.step()), float(target.step())
    observed = {
        "bytes": size,
        "weights_only": safe,
        "differences": changed,
        "next_loss": losses[0],
        "next_loss_restored": losses[1],
    }
    planted = _state_of(source)
    next(iter(planted["model"].values())).reshape(-1)[0] += 1
    controls = [
        control("changed_weight_is_noticed", differences(torch, _state_of(source), planted) == 1, "one weight changed"),
        control("another_state_has_another_loss", fresh_loss != losses[0], f"{fresh_loss} against {losses[0]}"),
    ]
    if safe:
        controls.append(_code_is_refused(ctx))
    return ran("C19.state", ctx.subject, observed, controls)


def _state_of(stepper):
    import copy

    state = {"model": stepper.model.state_dict(), "optimizer": stepper.optimizer.state_dict()}
    if stepper.scaler is not None:
        state["scaler"] = stepper.scaler.state_dict()
    return copy.deepcopy(state)


def differences(torch, left, right):
    """Return how many leaves of two nested states differ, tensors bit by bit. A key that one of them lacks counts."""
    if isinstance(left, dict) and isinstance(right, dict):
        keys = {*left, *right}
        return sum(differences(torch, left.get(key), right.get(key)) for key in keys)
    if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)) and len(left) == len(right):
        return sum(differences(torch, *pair) for pair in zip(left, right))  # noqa: B905
    if torch.is_tensor(left) and torch.is_tensor(right):
        same = left.dtype == right.dtype and left.shape == right.shape
        return int(not same or not torch.equal(left.to("cpu"), right.to("cpu")))
    return int(type(left) is not type(right) or left != right)


def _code_is_refused(ctx):
    """Control: weights_only must refuse a file that runs code when it is loaded."""
    file = io.BytesIO()
    ctx.torch.save({"model": _Planted()}, file)
    try:
        compat.load_weights(ctx.torch, file)
    except Exception as error:
        return control("code_in_a_checkpoint_is_refused", True, type(error).__name__)
    return control("code_in_a_checkpoint_is_refused", False, "a planted call was executed")


def _activations(ctx):
    torch = ctx.torch
    check_id = "C19.activations"
    torch.manual_seed(ctx.seed)
    nn = torch.nn
    blocks = [
        nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.Tanh())
        for _ in range(BLOCKS)
    ]
    model = nn.Sequential(*blocks).to(ctx.device)
    inputs = torch.randn(BATCH, WIDTH).to(ctx.device)
    try:
        plain, less = _gradient(ctx, blocks, model, inputs, False), _gradient(ctx, blocks, model, inputs, True)
    except NotImplementedError as error:
        return skipped(check_id, ctx.subject, "API_ABSENT", str(error))
    damaged = plain["gradient"].clone()
    damaged[int(damaged.abs().argmax())] *= 1.01
    line = 1e-5
    noticed = relative(damaged, plain["gradient"])
    observed = {
        "saved_bytes": plain["saved"],
        "saved_bytes_checkpointed": less["saved"],
        "saved_ratio": less["saved"] / plain["saved"],
        "gradient_difference": relative(less["gradient"], plain["gradient"]),
        "bitwise_equal": bool(torch.equal(less["gradient"], plain["gradient"])),
    }
    controls = [
        control("saving_is_counted", plain["saved"] > 0, f"{plain['saved']} bytes without checkpointing"),
        control("one_percent_of_one_is_noticed", noticed > line, f"difference {noticed:.1e} against {line:.0e}"),
    ]
    return ran(check_id, ctx.subject, observed, controls)


def relative(left, right):
    """Return the largest difference over the largest element."""
    return float((left - right).abs().max() / right.abs().max())


def _gradient(ctx, blocks, model, inputs, checkpointed):
    """Do a forward and backward pass; return the bytes kept for backward and the gradient of all parameters."""
    torch = ctx.torch
    known = {parameter.data_ptr() for parameter in model.parameters()}
    sizes = {}

    def keep(tensor):
        if tensor.data_ptr() not in known:
            sizes[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
        return tensor

    model.zero_grad(set_to_none=True)
    hidden = inputs
    with compat.saved_tensors_hooks(torch, keep, lambda tensor: tensor):
        for block in blocks:
            # A checkpointed block keeps only its input, which the hook does not see.
            sizes[hidden.data_ptr()] = hidden.numel() * hidden.element_size()
            hidden = compat.checkpoint(torch, block, hidden) if checkpointed else block(hidden)
        loss = hidden.square().mean()
    saved = sum(sizes.values())
    loss.backward()
    return {"saved": saved, "gradient": torch.cat([p.grad.detach().reshape(-1) for p in model.parameters()])}
