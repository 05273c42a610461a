"""A profile of the small training job as a compressed Chrome trace that fits into the document."""

import base64
import gzip
import itertools
import pathlib
import tempfile

from . import loaders, mini_train, timing

STEPS = 8  # of the first attempt
# Most characters of base64 in the document; a longer trace is taken again with half as many steps.
LIMIT = 4 << 20
BUDGET_S = 60.0


def capture(ctx, limit=LIMIT):
    """Return ``{format, steps, bytes, data}``: a gzipped Chrome trace in base64; ``bytes`` is its unpacked size.

    Raises ValueError if even one step needs more than ``limit`` characters.
    """
    with timing.single_thread(ctx.seeded()):
        job = mini_train.Job(ctx)
        source = job.loader()
        try:
            for _ in range(max(3, job.queued())):
                job.train(*job.transfer(next(source)))
            steps = STEPS
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
