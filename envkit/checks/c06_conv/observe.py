"""C06: convolution forward and both gradients against float64, in both layouts, with the vendor library on and off.

The precision is read from a convolution with stride 2, which cuDNN can only compute as sums of products. With stride 1
it may choose Winograd or FFT, which are less exact by design: one such case is measured too, with wider limits.
"""

import contextlib

from envkit.smoke import compat, precision, timing
from envkit.smoke.observation import ran, skipped

BATCH, CHANNELS_IN, CHANNELS_OUT, SIDE, KERNEL = 8, 16, 16, 32, 3
FINGERPRINT_STRIDE = 2


def run(ctx):
    """Return one observation per precision."""
    with timing.single_thread(ctx.seeded()):
        return _run(ctx)


def _run(ctx):
    torch = ctx.torch
    problems = [_problem(torch, ctx.seed, stride) for stride in (FINGERPRINT_STRIDE, 1)]
    before = compat.fp32_settings(torch)
    results = []
    for name, dtype, promise, skip in precision.variants(ctx, compat):
        check_id = f"C06.{name}"
        if skip is not None:
            results.append(skipped(check_id, ctx.subject, *skip))
            continue
        try:
            reduced = "tf32" if promise == "tf32" else "ieee"
            # With cuDNN off a convolution becomes a matrix product, so the setting for products is changed as well.
            with compat.fp32_precision(torch, reduced, reduced):
                kind = {"dtype": getattr(torch, dtype), "promise": promise, "before": before}
                results.append(_fingerprint(ctx, check_id, *problems, **kind))
        except RuntimeError as error:
            if not precision.unsupported(error):
                raise
            results.append(skipped(check_id, ctx.subject, "DTYPE_UNSUPPORTED", str(error)[:200]))
    return results


def _problem(torch, seed, stride):
    """Return inputs in float64 on the CPU, and the reference results: the convolution and its two gradients."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(BATCH, CHANNELS_IN, SIDE, SIDE, generator=generator, dtype=torch.float64)
    weights = torch.randn(CHANNELS_OUT, CHANNELS_IN, KERNEL, KERNEL, generator=generator, dtype=torch.float64)
    side = SIDE // stride
    upstream = torch.randn(BATCH, CHANNELS_OUT, side, side, generator=generator, dtype=torch.float64)
    return images, weights, upstream, _convolve(torch, images, weights, upstream)


def _convolve(torch, images, weights, upstream):
    images = images.detach().requires_grad_(True)
    weights = weights.detach().requires_grad_(True)
    stride = images.shape[-1] // upstream.shape[-1]
    output = torch.nn.functional.conv2d(images, weights, padding=1, stride=stride)
    output.backward(upstream)
    return {"forward": output.detach(), "grad_input": images.grad, "grad_weight": weights.grad}


def _fingerprint(ctx, check_id, problem, stride1, *, dtype, promise, before):
    torch = ctx.torch
    reference = problem[-1]
    inputs = [tensor.to(ctx.device, dtype) for tensor in problem[:-1]]
    last = [tensor.contiguous(memory_format=torch.channels_last) for tensor in inputs]
    layouts = {"contiguous": inputs, "channels_last": last}
    cases, left_out, results = {}, {}, {}
    for library, switch in (("on", contextlib.nullcontext()), ("off", _library_off(ctx))):
        if library == "off" and not ctx.has_cuda and dtype is not torch.float32:
            # Up to torch 1.13 these kernels also accumulate in the low precision, so nothing can be compared with them.
            left_out = {f"{layout}.library_off": "native CPU kernels may sum in low precision" for layout in layouts}
            continue
        with switch:
            for layout, tensors in layouts.items():
                name = f"{layout}.library_{library}"
                try:
                    results[name] = _convolve(torch, *tensors)
                except RuntimeError as error:
                    if library == "on" or not precision.unsupported(error):
                        raise
                    left_out[name] = str(error)[:200]
                    continue
                cases[name] = {part: precision.errors(results[name][part], reference[part]) for part in reference}
    result = _convolve(torch, *[tensor.to(ctx.device, dtype) for tensor in stride1[:-1]])
    cases["stride1.library_on"] = {part: precision.errors(result[part], stride1[-1][part]) for part in stride1[-1]}
    observed = {
        "dtype": str(dtype).replace("torch.", ""),
        "promise": promise,
        "library": "cudnn" if ctx.has_cuda else "onednn",
        "library_available": _library_available(ctx),
        "cases": cases,
        "cases_left_out": left_out,
        "settings_found": before,
        "settings": compat.fp32_settings(torch),
        "environment": precision.overrides(),
    }
    return ran(check_id, ctx.subject, observed, _controls(torch, inputs, results, reference, promise))


def _library_available(ctx):
    backends = ctx.torch.backends
    return bool(backends.cudnn.is_available()) if ctx.has_cuda else bool(backends.mkldnn.is_available())


@contextlib.contextmanager
def _library_off(ctx):
    """Turn cuDNN (GPU) or oneDNN (CPU) off; torch's native kernels are the cross-check.

    The ``flags()`` contexts of both also set TF32, through an older API that must not be mixed with the newer one.
    """
    library = ctx.torch.backends.cudnn if ctx.has_cuda else ctx.torch.backends.mkldnn
    before = library.enabled
    library.enabled = False
    try:
        yield
    finally:
        library.enabled = before


def _controls(torch, inputs, results, reference, promise):
    images, weights, upstream = inputs
    one_tap_less = weights.clone()
    one_tap_less[:, 0, 0, 0] = 0
    faulty = _convolve(torch, images, one_tap_less, upstream)
    controls = [
        precision.fault_control("one_tap_of_one_channel_dropped", faulty["forward"], reference["forward"]),
        precision.element_control(results["contiguous.library_on"]["grad_input"], reference["grad_input"], promise),
    ]
    if promise == "ieee":
        rounded = _convolve(torch, precision.to_tf32(images), precision.to_tf32(weights), upstream)
        controls.append(precision.rounding_control(rounded["forward"], reference["forward"]))
    return controls
