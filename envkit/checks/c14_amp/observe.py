"""C14: what automatic mixed precision lowers, how much accuracy it costs, and how much speed it gains."""

import warnings

from envkit.smoke import amp, amp_bench, compat, timing, workloads
from envkit.smoke.observation import control, ran, skipped

SEEDS = 3  # the worst one counts
STEPS = 10  # of a training in each precision
# A gradient without one of its layers is above this relative L2 distance; mixed precision stays below it.
GRAD_FAULT_LINE = 5e-2
LOW = (("fp16", "float16"), ("bf16", "bfloat16"))


def run(ctx):
    """Return the dtypes under autocast, the scaler's behavior, errors per network and precision, and the benchmark."""
    with timing.single_thread(ctx.seeded()):
        return _run(ctx)


def _run(ctx):
    results = [_choice(ctx)]
    for kind, dtype in LOW:
        results.append(_dtypes(ctx, kind, getattr(ctx.torch, dtype)))
    results += [_scaler(ctx), _underflow(ctx)]
    with amp.strict_fp32(ctx):
        for name in workloads.NAMES:
            for kind, _ in LOW:
                results.append(_error(ctx, name, kind))
        results += amp_bench.run(ctx, "C14")
    return results


def recommend(capability):
    """Return the 16-bit dtype to train in: tensor cores have float16 from compute capability 7.0, bfloat16 from 8.0."""
    if capability >= (8, 0):
        return "bfloat16"
    return "float16" if capability >= (7, 0) else None


def _choice(ctx):
    torch = ctx.torch
    capability = compat.capability(torch, ctx.device)
    claimed = None
    if capability is not None and hasattr(torch.cuda, "is_bf16_supported"):
        claimed = bool(torch.cuda.is_bf16_supported())
    observed = {
        "capability": None if capability is None else "{}.{}".format(*capability),
        "bf16_native": compat.bf16_native(torch, ctx.device),
        "bf16_claimed": claimed,
        "recommended": "bfloat16" if capability is None else recommend(capability),
    }
    held = recommend((7, 5)) == "float16" and recommend((6, 1)) is None
    return ran("C14.dtype_choice", ctx.subject, observed, [control("capability_7_5_gets_no_bf16", held)])


def _no_bf16(ctx, check_id):
    message = "this GPU only emulates bfloat16, slower than float32; capability 8.0 and newer compute it"
    return skipped(check_id, ctx.subject, "NO_BF16", message)


def _dtypes(ctx, kind, dtype):
    check_id = f"C14.dtypes.{kind}"
    if kind == "bf16" and not compat.bf16_native(ctx.torch, ctx.device):
        return _no_bf16(ctx, check_id)
    try:
        table = _table(ctx, compat.autocast(ctx.torch, ctx.device, dtype))
    except NotImplementedError as error:
        return skipped(check_id, ctx.subject, "API_ABSENT", str(error))
    plain = _table(ctx, compat.autocast(ctx.torch, ctx.device, dtype, enabled=False))
    observed = {"requested": str(dtype).replace("torch.", ""), "table": table}
    controls = [
        control("disabled_autocast_is_noticed", plain["mm"] == "float32", f"mm gives {plain['mm']}"),
        _inert(ctx, dtype),
    ]
    return ran(check_id, ctx.subject, observed, controls)


def _inert(ctx, dtype):
    """Control: autocast for the other kind of device must be noticed. It lowers nothing here and at most warns."""
    torch = ctx.torch
    other = "cpu" if ctx.has_cuda else "cuda"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            context = compat.autocast(torch, other, dtype)
            got = _table(ctx, context)["mm"]
        except (NotImplementedError, RuntimeError) as error:
            return control("inert_autocast_is_noticed", True, f"autocast({other!r}) refuses: {error}")
    return control("inert_autocast_is_noticed", got == "float32", f"under autocast({other!r}) mm gives {got}")


def _table(ctx, context):
    torch = ctx.torch
    functional = torch.nn.functional
    left = torch.randn(8, 8, device=ctx.device)
    images = torch.randn(2, 3, 8, 8, device=ctx.device)
    filters = torch.randn(4, 3, 3, 3, device=ctx.device)
    targets = torch.arange(8, device=ctx.device) % 8
    with context:
        outputs = {
            "mm": left @ left,
            "linear": functional.linear(left, left),
            "conv2d": functional.conv2d(images, filters),
            "cross_entropy": functional.cross_entropy(left @ left, targets),
            "softmax": torch.softmax(left @ left, dim=-1),
            "layer_norm": functional.layer_norm(left @ left, (8,)),
            "add": left + left,
        }
    return {name: str(output.dtype).replace("torch.", "") for name, output in outputs.items()}


def _scaler(ctx):
    """Put an infinity into a gradient: the step must be skipped and the scale halved. The next step must be exact."""
    torch = ctx.torch
    check_id = "C14.grad_scaler"
    try:
        scaler = compat.grad_scaler(torch, ctx.device, init_scale=65536.0, growth_interval=1000)
    except NotImplementedError as error:
        return skipped(check_id, ctx.subject, "API_ABSENT", str(error))
    weight = torch.nn.Parameter(torch.linspace(-1, 1, 16, device=ctx.device))
    optimizer = torch.optim.SGD([weight], lr=0.5)
    start = weight.detach().clone()
    scaler.scale((weight * weight).sum()).backward()
    weight.grad[3] = float("inf")
    observed = {"scale_before": scaler.get_scale()}
    scaler.step(optimizer)
    scaler.update()
    observed["weights_equal_after_inf"] = bool(torch.equal(weight.detach(), start))
    observed["scale_after_inf"] = scaler.get_scale()
    optimizer.zero_grad(set_to_none=True)
    scaler.scale((weight * weight).sum()).backward()
    scaler.unscale_(optimizer)
    observed["unscaled_gradient_exact"] = bool(torch.equal(weight.grad, 2 * start))
    scaler.step(optimizer)
    scaler.update()
    observed["weights_moved_after_finite"] = not bool(torch.equal(weight.detach(), start))
    observed["scale_after_finite"] = scaler.get_scale()
    bare = torch.nn.Parameter(start.clone())
    (bare * bare).sum().backward()
    bare.grad[3] = float("inf")
    torch.optim.SGD([bare], lr=0.5).step()
    broken = not bool(torch.isfinite(bare.detach()).all())
    detail = "the same gradient through a plain optimizer step"
    return ran(check_id, ctx.subject, observed, [control("without_scaler_inf_reaches_the_weights", broken, detail)])


def _underflow(ctx):
    torch = ctx.torch
    small, scale = 1e-8, 65536.0
    fp16 = torch.tensor(small, device=ctx.device).to(torch.float16)
    scaled = torch.tensor(small * scale, device=ctx.device).to(torch.float16).float() / scale
    observed = {
        "value": small,
        "scale": scale,
        "fp16_scaled": float(scaled),
        "bf16": float(torch.tensor(small, device=ctx.device).to(torch.bfloat16)),
    }
    lost = control("fp16_without_scaling_loses_it", float(fp16) == 0.0, f"1e-8 in float16 is {float(fp16)}")
    return ran("C14.underflow", ctx.subject, observed, [lost])


def _error(ctx, name, kind):
    check_id = f"C14.error.{name}.{kind}"
    if kind == "bf16" and not compat.bf16_native(ctx.torch, ctx.device):
        return _no_bf16(ctx, check_id)
    rows, controls = [], []
    try:
        for offset in range(SEEDS):
            row, missing_layer = _one_seed(ctx, name, kind, ctx.seed + offset)
            rows.append(row)
            held = missing_layer is not None and missing_layer > GRAD_FAULT_LINE
            detail = f"relative L2 {missing_layer} against {GRAD_FAULT_LINE}"
            controls.append(control(f"gradient_without_a_layer.seed{ctx.seed + offset}", held, detail))
    except NotImplementedError as error:
        return skipped(check_id, ctx.subject, "API_ABSENT", str(error))
    observed = {"network": name, "precision": kind, "seeds": SEEDS, "steps": STEPS, **amp.worst(rows)}
    return ran(check_id, ctx.subject, observed, controls)


def _one_seed(ctx, name, kind, seed):
    reference = amp.Stepper(ctx, name, "small", seed, "fp32")
    candidate = amp.Stepper(ctx, name, "small", seed, kind)
    true, low = reference.gradient(), candidate.gradient()
    row = amp.compare(true, low)
    largest = max(parameter.numel() for parameter in reference.model.parameters())
    faulty, begin = low[1].clone(), 0
    for parameter in reference.model.parameters():
        if parameter.numel() == largest:
            faulty[begin : begin + largest] = 0
        begin += parameter.numel()
    losses_true = [float(reference.step()) for _ in range(STEPS)]
    losses_low = [float(candidate.step()) for _ in range(STEPS)]
    row["last_loss_rel_err"] = abs(losses_low[-1] - losses_true[-1]) / abs(losses_true[-1])
    row["loss_ratio_fp32"] = losses_true[-1] / losses_true[0]
    row["loss_ratio_low"] = losses_low[-1] / losses_low[0]
    return row, amp.compare(true, (low[0], faulty))["grad_rel_l2"]
