"""C17: tensors kept by a forward pass without gradients, and whether its outputs stay the same."""

from envkit.smoke import compat
from envkit.smoke.observation import control, ran, skipped

BATCH = 16  # images of 16 x 16


def run(ctx):
    """Return C17.no_grad and C17.inference_mode, in strict float32 with cuDNN's deterministic algorithms."""
    torch = ctx.seeded()
    before = torch.backends.cudnn.deterministic
    torch.backends.cudnn.deterministic = True
    try:
        with compat.fp32_precision(torch, "ieee", "ieee"):
            return _run(ctx)
    finally:
        torch.backends.cudnn.deterministic = before


def _run(ctx):
    torch = ctx.torch
    model = _model(torch).to(ctx.device)
    images = torch.randn(BATCH, 3, 16, 16).to(ctx.device)
    counted = _forward(torch, model, images)
    reference = counted["output"].detach()
    repeated = _difference(_forward(torch, model, images), reference)
    modes = [("no_grad", torch.no_grad), ("inference_mode", getattr(torch, "inference_mode", None))]
    results = []
    for name, mode in modes:
        check_id = f"C17.{name}"
        if mode is None:
            results.append(skipped(check_id, ctx.subject, "API_ABSENT", f"this torch has no torch.{name}"))
            continue
        with mode():
            bare = _forward(torch, model, images)
        observed = {
            "saved_tensors": bare["tensors"],
            "saved_bytes": bare["bytes"],
            "saved_bytes_with_grad": counted["bytes"],
            "requires_grad": bool(bare["output"].requires_grad),
            "relative_difference": _difference(bare, reference),
            "repeated_difference": repeated,
            "method": bare["method"],
        }
        detail = "{tensors} tensors, {bytes} bytes saved with gradients on".format(**counted)
        controls = [control("saving_is_counted", counted["tensors"] > 0 and counted["output"].requires_grad, detail)]
        results.append(ran(check_id, ctx.subject, observed, controls))
    return results


def _difference(result, reference):
    """Return the largest difference over the largest output."""
    return float((result["output"].detach() - reference).abs().max() / reference.abs().max())


def _model(torch):
    nn = torch.nn
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * 16 * 16, 64),
        nn.GELU(),
        nn.Linear(64, 10),
    ).eval()


def _forward(torch, model, images):
    """Do one forward pass and count the tensors that autograd keeps or, before torch 1.10, the nodes of its graph."""
    sizes = []

    def keep(tensor):
        sizes.append(tensor.numel() * tensor.element_size())
        return tensor

    try:
        with compat.saved_tensors_hooks(torch, keep, lambda tensor: tensor):
            output = model(images)
        method = "saved_tensors_hooks"
    except NotImplementedError:
        output = model(images)
        sizes = [0] * (0 if output.grad_fn is None else 1 + len(output.grad_fn.next_functions))
        method = "graph_nodes"
    return {"output": output, "tensors": len(sizes), "bytes": sum(sizes), "method": method}
