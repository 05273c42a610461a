"""A small training job with a real loader, timed as a whole, without its loader, and the loader alone; its profile."""

import base64
import contextlib
import gzip
import itertools
import pathlib
import tempfile
import time

from . import amp, compat, hostfacts, loaders, timing

# (batch, channels, convolutions, stride of the first one): on a GPU about as much work per image as a ResNet-50.
SIZES = {"cpu": (16, 16, 2, 4), "cuda": (64, 128, 8, 2)}
CLASSES = 10
WORKER_CAP = 8  # with more, their start takes longer than the training
PREFETCH = 2  # torch's default
TRACE_STEPS = 8  # of the first attempt
# Most characters of a trace in the document; a longer one is taken again with half as many steps.
TRACE_LIMIT = 4 << 20
TRACE_S = 60.0


class Job:
    """Network, optimizer and loader. Each step takes a batch from a source, copies it to the device and trains."""

    def __init__(self, ctx):
        torch = self.torch = ctx.seeded()
        self.ctx = ctx
        self.cuda = ctx.has_cuda
        self.batch, width, depth, stride = SIZES["cuda" if self.cuda else "cpu"]
        self.model = _network(torch.nn, width, depth, stride).to(ctx.device).train()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.02)
        self.precision = "fp32"
        if self.cuda:
            self.precision = "bf16" if compat.bf16_native(torch, ctx.device) else "fp16"
        self.scaler = None
        if self.precision == "fp16":
            self.scaler = compat.grad_scaler(torch, ctx.device, init_scale=amp.INIT_SCALE)
        self.settings = settings(ctx, self.batch * loaders.Pictures.BYTES)
        self.losses = []

    def loader(self):
        """Return an iterator over the loader's batches (sample numbers, images, labels), practically without end."""
        wanted = self.settings
        options = {"batch_size": self.batch, "num_workers": wanted["num_workers"], "pin_memory": wanted["pin_memory"]}
        if wanted["num_workers"]:
            options["prefetch_factor"] = wanted["prefetch_factor"]
        return loaders.batches(self.torch, loaders.Pictures(1 << 24), **options)

    def queued(self):
        """Return how many batches the workers may have prefetched: these are read before anything is timed."""
        return self.settings["num_workers"] * self.settings["prefetch_factor"]

    def transfer(self, batch):
        """Copy a batch to the device."""
        _, pictures, labels = batch
        return pictures.to(self.ctx.device, non_blocking=True), labels.to(self.ctx.device, non_blocking=True)

    def train(self, pictures, labels):
        """Run one optimizer step; the loss stays on the device."""
        torch = self.torch
        self.optimizer.zero_grad(set_to_none=True)
        lowered = contextlib.nullcontext()
        if self.precision != "fp32":
            dtype = torch.bfloat16 if self.precision == "bf16" else torch.float16
            lowered = compat.autocast(torch, self.ctx.device, dtype)
        with lowered:
            scores = self.model(pictures.float().div_(255.0))
            loss = torch.nn.functional.cross_entropy(scores.float(), labels)
        if self.scaler is None:
            loss.backward()
            self.optimizer.step()
        else:
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
        self.losses.append(loss.detach())

    def synchronize(self):
        """Wait until the device has finished all queued work."""
        if self.cuda:
            self.torch.cuda.synchronize()

    def steps(self, source, count):
        """Train ``count`` steps on batches of ``source``.

        Returns ``{step_s, data_wait_s, h2d_s, compute_s, waits_s}``: means in seconds per step, and the list of all
        waits. On a GPU, copies and kernels are timed by events, so that nothing waits inside the loop.
        """
        waits, copied, computed, marks = [], 0.0, 0.0, []
        self.synchronize()
        begin = time.perf_counter()
        for _ in range(count):
            asked = time.perf_counter()
            batch = next(source)
            got = time.perf_counter()
            waits.append(got - asked)
            if self.cuda:
                events = [self.torch.cuda.Event(enable_timing=True) for _ in range(3)]
                events[0].record()
                near = self.transfer(batch)
                events[1].record()
                self.train(*near)
                events[2].record()
                marks.append(events)
            else:
                near = self.transfer(batch)
                there = time.perf_counter()
                self.train(*near)
                copied += there - got
                computed += time.perf_counter() - there
        self.synchronize()
        total = time.perf_counter() - begin
        for first, second, third in marks:
            copied += first.elapsed_time(second) / 1e3
            computed += second.elapsed_time(third) / 1e3
        return {
            "step_s": total / count,
            "data_wait_s": sum(waits) / count,
            "h2d_s": copied / count,
            "compute_s": computed / count,
            "waits_s": waits,
        }

    def launch_share(self, batch):
        """Return the share of a step that the host needs to queue it; None on a CPU, which does the work itself."""
        if not self.cuda:
            return None
        queued = finished = 0.0
        for _ in range(5):
            self.synchronize()
            begin = time.perf_counter()
            self.train(*self.transfer(batch))
            queued += time.perf_counter() - begin
            self.synchronize()
            finished += time.perf_counter() - begin
        return queued / finished


def settings(ctx, batch_bytes):
    """Return the loader's settings: the declared ones, else one worker per CPU; fewer if /dev/shm is small."""
    declared = ctx.spec.get("loader") or {}
    wanted = declared.get("num_workers")
    workers = hostfacts.whole_cpus(hostfacts.cpus()["effective"]) if wanted is None else int(wanted)
    prefetch = int(declared.get("prefetch_factor") or PREFETCH)
    free = hostfacts.shared_memory()["free_bytes"]
    room = WORKER_CAP if free is None else free // 2 // (batch_bytes * (prefetch + 1))
    return {
        "num_workers": min(workers, WORKER_CAP, room),
        "prefetch_factor": prefetch,
        "pin_memory": ctx.has_cuda and declared.get("pin_memory") is not False,
        "declared_num_workers": wanted,
    }


def same(batch, delay_s=0.0):
    """Yield one batch forever, each time after ``delay_s``: training without a loader, or with a slow one."""
    for _ in itertools.repeat(None):
        if delay_s:
            time.sleep(delay_s)
        yield batch


def starved_share(with_loader, without):
    """Return the share of a step that the loader costs: 1 - time without it / time with it, at least 0."""
    return max(0.0, 1.0 - without / with_loader) if with_loader > 0 else 0.0


def _network(nn, width, depth, stride):
    layers = [nn.Conv2d(3, width, 7, stride=stride, padding=3, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    for _ in range(depth):
        layers += [nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, CLASSES))


def trace(ctx, limit=TRACE_LIMIT):
    """Return a profile as ``{format, steps, bytes, data}``: a gzipped Chrome trace in base64, ``bytes`` unpacked.

    Raises ValueError if even one step needs more than ``limit`` characters.
    """
    with timing.single_thread(ctx.seeded()):
        job = Job(ctx)
        source = job.loader()
        try:
            for _ in range(max(3, job.queued())):
                job.train(*job.transfer(next(source)))
            steps = TRACE_STEPS
            while steps:
                raw = _profiled(ctx, job, source, steps)
                packed = base64.b64encode(gzip.compress(raw, 9)).decode("ascii")
                if len(packed) <= limit:
                    return {"format": "chrome-trace+gzip+base64", "steps": steps, "bytes": len(raw), "data": packed}
                steps //= 2
        finally:
            loaders.stop(source)
    raise ValueError(f"a trace of one step is {len(packed)} characters long, more than {limit}")


def _profiled(ctx, job, source, steps):
    """Profile ``steps`` steps, whose parts are marked data_wait, h2d and train, and return the trace as JSON."""
    profiler = ctx.torch.profiler
    kinds = [profiler.ProfilerActivity.CPU] + ([profiler.ProfilerActivity.CUDA] if ctx.has_cuda else [])
    with profiler.profile(activities=kinds) as profile:
        for _ in itertools.repeat(None, steps):
            with profiler.record_function("data_wait"):
                batch = next(source)
            with profiler.record_function("h2d"):
                near = job.transfer(batch)
            with profiler.record_function("train"):
                job.train(*near)
        job.synchronize()
    with tempfile.TemporaryDirectory(prefix="envkit-") as folder:
        path = pathlib.Path(folder) / "trace.json"
        profile.export_chrome_trace(str(path))
        return path.read_bytes()
