"""C05: matrix products against float64. The size of the error shows which precision was really used."""

import time

from envkit.smoke import compat, precision, timing
from envkit.smoke.observation import ran, skipped

SIZES = (512, 1024)
CONTROL_SIZE = 512  # the smaller one, which every machine measures
# A CPU without instructions for a dtype needs seconds for the larger product, which shows nothing new. The larger
# product is left out if the smaller one took longer than this.
SLOW_S = 0.06


def run(ctx):
    """Return C05.default, with torch's settings as they are, and one observation per precision."""
    with timing.single_thread(ctx.seeded()):
        return _run(ctx)


def _run(ctx):
    torch = ctx.torch
    problems = {size: _problem(torch, size, ctx.seed) for size in SIZES}
    results = [_default(ctx, problems)]
    for name, dtype, promise, skip in precision.variants(ctx, compat):
        check_id = f"C05.{name}"
        if skip is not None:
            results.append(skipped(check_id, ctx.subject, *skip))
            continue
        try:
            with compat.fp32_precision(torch, "tf32" if promise == "tf32" else "ieee", "ieee"):
                results.append(_fingerprint(ctx, check_id, problems, getattr(torch, dtype), promise))
        except RuntimeError as error:
            if not precision.unsupported(error):
                raise
            results.append(skipped(check_id, ctx.subject, "DTYPE_UNSUPPORTED", str(error)[:200]))
    return results


def _default(ctx, problems):
    return _fingerprint(ctx, "C05.default", problems, ctx.torch.float32, _default_promise(ctx))


def _default_promise(ctx):
    """Return torch's default precision for float32 products: TF32 only before 1.12."""
    capability = compat.capability(ctx.torch, ctx.device)
    old = compat.version_tuple(ctx.torch) < (1, 12)
    return "tf32" if old and capability is not None and capability >= (8, 0) else "ieee"


def _problem(torch, size, seed):
    generator = torch.Generator().manual_seed(seed + size)
    left = torch.randn(size, size, generator=generator, dtype=torch.float64)
    right = torch.randn(size, size, generator=generator, dtype=torch.float64)
    return left, right, left @ right


def _fingerprint(ctx, check_id, problems, dtype, promise):
    sizes, left_out, controls = {}, [], []
    took = 0.0
    for size, (left, right, reference) in sorted(problems.items()):
        if took > SLOW_S and ctx.device == "cpu" and dtype is not ctx.torch.float32:
            left_out.append(size)
            continue
        left, right = left.to(ctx.device, dtype), right.to(ctx.device, dtype)
        begin = time.perf_counter()
        product = left @ right
        took = time.perf_counter() - begin
        sizes[str(size)] = precision.errors(product, reference)
        if size == CONTROL_SIZE:
            controls = _controls(left, right, product, reference, promise)
    observed = {
        "dtype": str(dtype).replace("torch.", ""),
        "output_dtype": str(product.dtype).replace("torch.", ""),
        "promise": promise,
        "sizes": sizes,
        "sizes_left_out_as_too_slow": left_out,
        "settings": compat.fp32_settings(ctx.torch),
        "environment": precision.overrides(),
    }
    return ran(check_id, ctx.subject, observed, controls)


def _controls(left, right, product, reference, promise):
    kept = CONTROL_SIZE - CONTROL_SIZE // 64
    controls = [
        precision.fault_control("one_64th_of_k_dropped", left[:, :kept] @ right[:kept], reference),
        precision.element_control(product, reference, promise),
    ]
    if promise == "ieee":
        rounded = precision.to_tf32(left) @ precision.to_tf32(right)
        controls.append(precision.rounding_control(rounded, reference))
    return controls
