"""A profile of the small training job in the format that browsers open, packed to fit into the document."""

import base64
import gzip
import itertools
import pathlib
import tempfile

from . import loaders, mini_train, timing

STEPS = 8  # at first
# Characters of base64 that the document may carry; a trace that is longer is taken again with fewer steps.
LIMIT = 4 << 20
BUDGET_S = 60.0


def capture(ctx, limit=LIMIT):
    """Return ``{format, steps, bytes, data}``: a gzipped Chrome trace in base64, ``bytes`` its size unpacked.

    Raises ValueError where not even one step fits ``limit`` characters.
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
    """Profile some steps; each has its parts marked data_wait, h2d and train."""
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
