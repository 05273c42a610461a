"""C07: the same product fifty times, compared bit by bit on the device: a difference is silent corruption."""

import os

from envkit.smoke import amp, compat, precision, timing
from envkit.smoke.observation import control, ran, skipped

REPEATS = 50  # products
CPU_SIZE, GPU_SIZE = 512, 4096
STEPS = 20  # of a training


def run(ctx):
    """Return one observation per precision, and one of two equal trainings."""
    with timing.single_thread(ctx.seeded()):
        return _run(ctx)


def _run(ctx):
    torch = ctx.torch
    results = []
    for name, dtype, promise, skip in precision.variants(ctx, compat):
        check_id = f"C07.gemm.{name}"
        if skip is not None:
            results.append(skipped(check_id, ctx.subject, *skip))
            continue
        if ctx.device == "cpu" and name != "fp32":
            message = "a CPU computes reduced precision with the same units; float32 is enough there"
            results.append(skipped(check_id, ctx.subject, "SAME_UNITS", message))
            continue
        # One stream only: with several, cuBLAS promises equal bits only for a fixed workspace.
        with compat.fp32_precision(torch, "tf32" if promise == "tf32" else "ieee", "ieee"):
            results.append(_repeat(ctx, check_id, getattr(torch, dtype)))
    with amp.strict_fp32(ctx):
        results.append(_training(ctx))
    return results


def _repeat(ctx, check_id, dtype):
    torch = ctx.torch
    size = GPU_SIZE if ctx.has_cuda else CPU_SIZE
    generator = torch.Generator().manual_seed(ctx.seed)
    left = torch.randn(size, size, generator=generator).to(ctx.device, dtype)
    right = torch.randn(size, size, generator=generator).to(ctx.device, dtype)
    first = left @ right
    # Counted on the device: nothing is copied back before the last repeat.
    runs = torch.zeros(1, dtype=torch.int64, device=ctx.device)
    elements = torch.zeros(1, dtype=torch.int64, device=ctx.device)
    product = first
    for _ in range(REPEATS):
        product = left @ right
        different = differing(product, first)
        elements += different
        runs += different > 0
    flipped = product.clone()
    bits(flipped)[size // 2, size // 3] ^= 1
    observed = {
        "dtype": str(dtype).replace("torch.", ""),
        "size": size,
        "repeats": REPEATS,
        "repeats_different": int(runs),
        "elements_different": int(elements),
        "nonfinite": int(first.numel() - int(torch.isfinite(first).sum())),
        "workspace": os.environ.get("CUBLAS_WORKSPACE_CONFIG"),
    }
    noticed = int(differing(flipped, product))
    return ran(check_id, ctx.subject, observed, [control("flipped_bit_is_noticed", noticed == 1, f"{noticed} differ")])


def bits(tensor):
    """Return the same memory as integers, which are equal exactly if their bits are."""
    import torch

    return tensor.view(torch.int32 if tensor.element_size() == 4 else torch.int16)


def differing(left, right):
    """Return the number of elements that differ in any bit, as a tensor on the same device."""
    return (bits(left) != bits(right)).sum()


def _training(ctx):
    """Train twice with the same seed and compare losses and weights bit by bit. Another seed must differ."""
    first, second, other = (_trained(ctx, seed) for seed in (ctx.seed, ctx.seed, ctx.seed + 1))
    observed = {
        "network": "mlp",
        "steps": STEPS,
        "losses_different": sum(left != right for left, right in zip(first[0], second[0])),  # noqa: B905
        "weights_different": int(differing(first[1], second[1])),
    }
    unlike = int(differing(first[1], other[1]))
    controls = [control("another_seed_differs", unlike > 0, f"{unlike} differ")]
    return ran("C07.training", ctx.subject, observed, controls)


def _trained(ctx, seed):
    stepper = amp.Stepper(ctx, "mlp", "small", seed, "fp32")
    losses = [float(stepper.step()) for _ in range(STEPS)]
    return losses, ctx.torch.cat([p.detach().reshape(-1) for p in stepper.model.parameters()])
