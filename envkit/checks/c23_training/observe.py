"""C23: a small training job with its loader, without it, and the loader alone: where a step's time goes.

Also options of a step that change only its speed: which of them this torch uses by default, and the gain of each.
"""

import contextlib
import sys
import time
import warnings

from envkit.smoke import compat, loaders, mini_train, noise, timing, workloads
from envkit.smoke.observation import control, ran, skipped

STEPS = 8  # of a round
ROUNDS, ROUNDS_MIN = 6, 2
# Seconds after which no further round begins.
ROUNDS_S = 7.0
QUIET_S = 0.15  # idle before and after, to see what others do
PATIENCE = 20  # more tries of a control
STARVED_LINE = 0.2  # share of a step spent waiting for data
PARTS = ("data_wait_s", "h2d_s", "compute_s")
# (parameters, elements of each) of the optimizer's step; (batch, heads, length, width) of attention.
PARAMETERS = {"cpu": (24, 4096), "cuda": (150, 1 << 18)}
ATTENTION = {"cpu": (1, 4, 256, 32), "cuda": (4, 16, 2048, 64)}
NETWORK = {"cpu": "small", "cuda": "large"}
SAMPLES, WARMUP_S, BUDGET_S = 9, 0.1, 0.4
# Names of SDPBackend by the number that torch._fused_sdp_choice returns.
BACKENDS = {0: "math", 1: "flash", 2: "efficient", 3: "cudnn"}
ENUM = {"math": "MATH", "flash": "FLASH_ATTENTION", "efficient": "EFFICIENT_ATTENTION", "cudnn": "CUDNN_ATTENTION"}
NEAR = {"cpu": 1e-4, "cuda": 3e-2}


def run(ctx):
    """Return C23.training, which breaks a step down and has the losses, and one observation per option of a step."""
    with timing.single_thread(ctx.seeded()):
        return [_run(ctx), *options(ctx)]


def _run(ctx):
    job = mini_train.Job(ctx)
    before = noise.quiet_window(QUIET_S)
    source = job.loader()
    try:
        first, batch = _first(source)
        rounds, waits = _rounds(job, source, batch)
        controls = _controls(job, batch)
    finally:
        loaders.stop(source)
    after = noise.quiet_window(QUIET_S)
    full = [item["full"]["step_s"] for item in rounds]
    middle = {name: timing.median([item[name]["step_s"] for item in rounds]) for name in ("full", "reuse")}
    losses = [float(loss) for loss in job.losses]
    observed = {
        "loader": job.settings,
        "batch": job.batch,
        "precision": job.precision,
        "threads": ctx.torch.get_num_threads(),
        "rounds": len(rounds),
        "steps_per_round": STEPS,
        "first_batch_s": first,
        "step_s": middle["full"],
        "step_without_loader_s": middle["reuse"],
        "loader_alone_s": timing.median([item["loader_s"] for item in rounds]),
        **{part: timing.median([item["full"][part] for item in rounds]) for part in PARTS},
        "starved_share": mini_train.starved_share(middle["full"], middle["reuse"]),
        "launch_share": job.launch_share(batch),
        "waits_ms": [wait * 1e3 for wait in waits[:100]],
        "loss_first": timing.median(losses[:5]),
        "loss_last": timing.median(losses[-5:]),
    }
    ctx.notes["starved_share"] = observed["starved_share"]
    step_ms = [seconds * 1e3 for seconds in full]
    label = "perf_counter+sync" if ctx.has_cuda else "perf_counter"
    samples = timing.sample_record(step_ms, clock=label, inner_loops=STEPS, warmup_discarded=job.queued())
    gate = before if before["gate"] != "clean" else after
    stats = timing.statistics(step_ms)
    return ran("C23.training", ctx.subject, observed, controls, samples=samples, stats=stats, noise=gate)


def _first(source):
    begin = time.perf_counter()
    batch = next(source)
    return time.perf_counter() - begin, batch


def _rounds(job, source, batch):
    """Time the three variants alternately, each after as many untimed steps as the workers have batches ready."""
    still, lead = mini_train.same(batch), max(3, job.queued())
    job.steps(still, 3)
    job.losses.clear()
    rounds, waits, begin = [], [], time.monotonic()
    while len(rounds) < ROUNDS and (len(rounds) < ROUNDS_MIN or time.monotonic() - begin < ROUNDS_S):
        job.steps(source, lead)
        full = job.steps(source, STEPS)
        waits.extend(full.pop("waits_s"))
        for _ in range(lead):
            next(source)
        asked = time.perf_counter()
        for _ in range(STEPS):
            next(source)
        alone = (time.perf_counter() - asked) / STEPS
        # Meanwhile the workers refill their queues, which would slow the first timed steps down.
        job.steps(still, lead)
        rounds.append({"full": full, "reuse": job.steps(still, STEPS), "loader_s": alone})
    return rounds, waits


def _controls(job, batch):
    """Controls: a loader that takes three times as long as a step starves the job, and no loader at all does not."""
    alone = min(job.steps(mini_train.same(batch), 2)["step_s"] for _ in range(3))
    starving = job.steps(mini_train.same(batch, 3 * alone), 2)["step_s"]
    again = min(job.steps(mini_train.same(batch), 2)["step_s"] for _ in range(3))
    for _ in range(PATIENCE):  # a burst of other work may last longer than three tries
        if mini_train.starved_share(again, alone) <= STARVED_LINE:
            break
        again = min(again, job.steps(mini_train.same(batch), 2)["step_s"])
    starved, fed = mini_train.starved_share(starving, alone), mini_train.starved_share(again, alone)
    return [
        control("planted_starvation_is_seen", starved > STARVED_LINE, f"starved share {starved:.2f}"),
        control("no_loader_no_starvation", fed <= STARVED_LINE, f"starved share {fed:.2f}"),
    ]


def options(ctx):
    """Return C23.optimizer, C23.channels_last and C23.attention: the default, and the gain of each form."""
    return [part(ctx, ctx.seeded()) for part in (optimizer, channels_last, attention)]


def optimizer(ctx, torch):
    """Time a step of AdamW in its three forms."""
    forms, refused = {}, {}
    for name, options in (("loop", {"foreach": False}), ("foreach", {"foreach": True}), ("fused", {"fused": True})):
        try:
            forms[name] = Steps(torch, ctx.device, options)
            forms[name]()
        except (TypeError, ValueError, RuntimeError, NotImplementedError) as error:
            forms.pop(name, None)
            refused[name] = _short(error)
    if "loop" not in forms:
        return skipped("C23.optimizer", ctx.subject, "API_ABSENT", f"AdamW: {refused['loop']}")
    differences = {name: largest(form.first(), forms["loop"].first()) for name, form in forms.items()}
    changed = largest(forms["loop"].first() + 1.0, forms["loop"].first())
    observed = {"default": _default_form(torch, forms["loop"]), "refused": refused, "largest_difference": differences}
    return _timed(ctx, "C23.optimizer", forms, observed, changed, base="loop")


class Steps:
    """AdamW over many parameters with gradients."""

    def __init__(self, torch, device, options):
        count, size = PARAMETERS[str(device).split(":")[0]]
        generator = torch.Generator().manual_seed(0)
        self.parameters = [torch.randn(size, generator=generator).to(device).requires_grad_() for _ in range(count)]
        for item in self.parameters:
            item.grad = torch.ones_like(item)
        self.optimizer = torch.optim.AdamW(self.parameters, lr=1e-3, **options)

    def __call__(self):
        """Do one step."""
        self.optimizer.step()

    def first(self):
        """Return the first parameter."""
        return self.parameters[0].detach()


def channels_last(ctx, torch):
    """Time forward and backward of a convolutional network in both memory formats."""
    kind = ctx.device.split(":")[0]
    forms = {}
    for name, order in (("contiguous", torch.contiguous_format), ("channels_last", torch.channels_last)):
        model, inputs, targets = workloads.build(torch, "cnn", NETWORK[kind], 0, ctx.device)
        model, inputs = model.to(memory_format=order), inputs.to(memory_format=order)
        forms[name] = Training(ctx, model, inputs, targets)
    losses = {name: form.loss() for name, form in forms.items()}
    differences = {name: abs(loss - losses["contiguous"]) for name, loss in losses.items()}
    kept = forms["channels_last"].keeps_order()
    observed = {"default": "contiguous", "refused": {}, "largest_difference": differences, "kept_in_the_network": kept}
    return _timed(ctx, "C23.channels_last", forms, observed, abs(losses["contiguous"]) + 1.0, base="contiguous")


class Training:
    """Forward and backward, in bfloat16 if the device has it."""

    def __init__(self, ctx, model, inputs, targets):
        self.torch, self.device = ctx.torch, ctx.device
        self.model, self.inputs, self.targets = model, inputs, targets
        self.lowered = ctx.has_cuda and compat.bf16_native(ctx.torch, ctx.device)

    def forward(self):
        """Return the loss."""
        torch = self.torch
        lowered = contextlib.nullcontext()
        if self.lowered:
            lowered = compat.autocast(torch, self.device, torch.bfloat16)
        with lowered:
            scores = self.model(self.inputs)
        return torch.nn.functional.cross_entropy(scores.float(), self.targets)

    def __call__(self):
        """Do one forward and backward pass."""
        self.model.zero_grad(set_to_none=True)
        self.forward().backward()

    def loss(self):
        """Return the loss as a number."""
        with self.torch.no_grad():
            return float(self.forward())

    def keeps_order(self):
        """Whether the first convolution returns its result in the memory format of its input."""
        with self.torch.no_grad():
            return bool(self.model[0](self.inputs).is_contiguous(memory_format=self.torch.channels_last))


def attention(ctx, torch):
    """Time scaled dot product attention with each backend."""
    call = getattr(torch.nn.functional, "scaled_dot_product_attention", None)
    if call is None:
        return skipped("C23.attention", ctx.subject, "API_ABSENT", "scaled_dot_product_attention begins with torch 2.0")
    kind = ctx.device.split(":")[0]
    dtype = torch.float32
    if ctx.has_cuda:
        dtype = torch.bfloat16 if compat.bf16_native(torch, ctx.device) else torch.float16
    parts = [torch.randn(*ATTENTION[kind]).to(ctx.device, dtype) for _ in range(3)]
    forms, refused, results = {}, {}, {}
    for name in ENUM:
        form = Attention(torch, call, parts, name)
        try:
            results[name] = form().float()
            forms[name] = form
        except (RuntimeError, NotImplementedError) as error:
            refused[name] = _short(error)
    differences = {name: largest(result, results["math"]) for name, result in results.items()}
    choice = getattr(torch, "_fused_sdp_choice", None)
    observed = {
        "default": None if choice is None else BACKENDS.get(int(choice(*parts))),
        "default_error": _error_of(Attention(torch, call, parts)),
        "dtype": str(dtype).replace("torch.", ""),
        "refused": refused,
        "largest_difference": differences,
    }
    return _timed(ctx, "C23.attention", forms, observed, largest(results["math"] + 1.0, results["math"]), base="math")


def _error_of(form):
    """Return why a call fails, or None. What torch chooses by itself can fail, too."""
    try:
        form()
    except (RuntimeError, NotImplementedError) as error:
        return _short(error)
    return None


class Attention:
    """A call with one backend, or with the one that torch chooses; raises RuntimeError if the backend cannot do it."""

    def __init__(self, torch, call, parts, name=None):
        self.torch, self.call, self.parts, self.name = torch, call, parts, name

    def __call__(self):
        """Do one forward pass."""
        with warnings.catch_warnings():
            # torch warns of every reason why a backend refuses the call, and raises as well.
            warnings.simplefilter("ignore")
            if self.name is None:
                return self.call(*self.parts)
            with compat.attention_backend(self.torch, self.name, ENUM[self.name]):
                return self.call(*self.parts)


def _timed(ctx, check_id, forms, observed, planted, *, base):
    torch = ctx.torch
    clock = timing.event_clock(torch) if ctx.has_cuda else timing.wall_clock()

    def twice():
        forms[base]()
        forms[base]()

    variants = [*forms.items(), ("twice", twice)]
    before = noise.snapshot(gpu=ctx.has_cuda, idle=True)
    timed = timing.measure(variants, clock, samples=SAMPLES, warmup_cap_s=WARMUP_S, budget_s=BUDGET_S)
    gate = noise.gate(before, noise.snapshot(gpu=ctx.has_cuda))
    took = {name: timed[name]["stats"]["median"] for name in forms}
    ratio = timed["twice"]["stats"]["median"] / took[base]
    line = NEAR[ctx.device.split(":")[0]]
    observed = dict(
        observed, base=base, took_ms=took, speed_up={name: took[base] / item for name, item in took.items()}, line=line
    )
    controls = [
        control("another_result_is_noticed", planted > line, f"difference {planted:.1e}"),
        control("two_steps_take_longer", ratio > 1.4, f"two take {ratio:.2f} times one"),
    ]
    item = timed[base]
    return ran(check_id, ctx.subject, observed, controls, samples=item["samples"], stats=item["stats"], noise=gate)


def largest(left, right):
    """Return the largest difference of two tensors."""
    return float((left - right).abs().max())


def _default_form(torch, steps):
    """Return the form that AdamW uses by default, or None if this torch cannot be asked."""
    choose = getattr(sys.modules[torch.optim.Optimizer.__module__], "_default_to_fused_or_foreach", None)
    if choose is None:
        return "loop"
    try:
        fused, foreach = choose(steps.parameters, differentiable=False, use_fused=False)
    except TypeError:
        return None
    return "fused" if fused else "foreach" if foreach else "loop"


def _short(error):
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]
