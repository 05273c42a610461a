"""C15: are the tensor cores used? Products in each reduced precision, timed alternately with strict float32."""

from envkit.smoke import amp_bench, compat, noise, one_gpu, timing
from envkit.smoke.observation import control, ran, skipped

CPU_SIZE = 768  # rows and columns
SAMPLES = 12  # of each precision
KINDS = ("tf32", "fp16", "bf16")


def run(ctx):
    """Return one observation per reduced precision: its rate, and its speedup over strict float32 and TF32."""
    with timing.single_thread(ctx.seeded()):
        return _run(ctx)


def _run(ctx):
    torch = ctx.torch
    size = gemm_size(compat.capability(torch, ctx.device))
    allowed = dict(amp_bench.kinds(ctx))
    kinds = [kind for kind in ("fp32", *KINDS) if allowed[kind] is None]
    products = {kind: Product(ctx, kind, size) for kind in kinds}
    variants = list(products.items())
    variants.append(("fp32_twice", products["fp32"].twice))
    clock = timing.event_clock(torch) if ctx.has_cuda else timing.wall_clock()
    before = noise.snapshot(gpu=ctx.has_cuda, idle=True)
    # A strict float32 product of the largest size takes 20 ms, in which several fast ones fit.
    measured = timing.measure(variants, clock, samples=SAMPLES, warmup_cap_s=0.4, budget_s=3.0)
    gate = noise.gate(before, noise.snapshot(gpu=ctx.has_cuda))
    limits = one_gpu.limits(torch, 0) if ctx.has_cuda else None
    busiest = products.get("fp16") or products["fp32"]
    health = one_gpu.health_under(torch, 0, busiest) if ctx.has_cuda else None
    results = []
    for kind in KINDS:
        check_id = f"C15.gemm.{kind}"
        if kind not in products:
            results.append(skipped(check_id, ctx.subject, *allowed[kind]))
            continue
        item = measured[kind]
        observed = {
            "precision": kind,
            "size": size,
            "capability": _words(compat.capability(torch, ctx.device)),
            "name": torch.cuda.get_device_name(0) if ctx.has_cuda else None,
            "tflops": one_gpu.tflops(size, item["stats"]["median"]),
            "tflops_fp32": one_gpu.tflops(size, measured["fp32"]["stats"]["median"]),
            "over_fp32": _gain(measured, "fp32", kind),
            "over_tf32": _gain(measured, "tf32", kind),
            "output_dtype": str(products[kind]().dtype).replace("torch.", ""),
            "limits": limits,
            "health": health,
            "claimed_bf16": _claimed(torch) if ctx.has_cuda else None,
        }
        controls = [_clock_control(measured)]
        options = {"samples": item["samples"], "stats": item["stats"], "noise": gate}
        results.append(ran(check_id, ctx.subject, observed, controls, **options))
    return results


class Product:
    """A product of random matrices in one precision. Constant ones would run faster than real data."""

    def __init__(self, ctx, kind, size):
        torch = self.torch = ctx.torch
        self.mode = "tf32" if kind == "tf32" else "ieee"
        dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(kind, torch.float32)
        generator = torch.Generator().manual_seed(ctx.seed)
        self.left = torch.randn(size, size, generator=generator).to(ctx.device, dtype)
        self.right = torch.randn(size, size, generator=generator).to(ctx.device, dtype)
        self.out = torch.empty_like(self.left)

    def __call__(self):
        """Queue or do the product. The result goes to one buffer, so that nothing is allocated while timed."""
        with compat.fp32_precision(self.torch, self.mode, "ieee"):
            self.torch.mm(self.left, self.right, out=self.out)
        return self.out

    def twice(self):
        """Do the product twice."""
        self()
        self()


def gemm_size(capability):
    """Return the rows and columns of the matrices; smaller ones are enough on a CPU."""
    return CPU_SIZE if capability is None else one_gpu.gemm_size(capability)


def _gain(measured, base, kind):
    if base not in measured or kind == base:
        return None
    return measured[base]["stats"]["median"] / measured[kind]["stats"]["median"]


def _claimed(torch):
    supported = getattr(torch.cuda, "is_bf16_supported", None)
    return None if supported is None else bool(supported())


def _words(capability):
    return None if capability is None else "{}.{}".format(*capability)


def _clock_control(measured):
    """Control: two products must take longer than one. A clock that stops before the work is done shows the same."""
    ratio = measured["fp32_twice"]["stats"]["median"] / measured["fp32"]["stats"]["median"]
    return control("two_products_take_longer", ratio > 1.5, f"two products take {ratio:.2f} times one")
