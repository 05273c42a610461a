"""C11: does a copy run while kernels run if it has a stream of its own, and only then?"""

import os
import time

from envkit.smoke import gpus, noise, observation, timing
from envkit.smoke.context import fill_pattern

SIZE = 2048  # rows and columns of the products that run during a copy
ROUNDS, WARMUP = 12, 2
# Long enough that everything is queued before the device begins, so that no launch falls into the timed window.
SPIN_CYCLES = 4000000


def run(ctx):
    """Return C11.overlap: the times of copy, kernels and both, and the share of the shorter one that is hidden."""
    torch = ctx.seeded()
    try:
        bench = Bench(ctx)
    except RuntimeError as error:
        # C09 judges whether this is a fault of the image.
        raise observation.Skip("BUFFERS_UNAVAILABLE", str(error)[:300]) from error
    before = noise.snapshot(gpu=True, idle=True)
    bench.tune()
    values = {name: [] for name in bench.variants()}
    for number in range(WARMUP + ROUNDS):
        for name, variant in bench.variants().items():
            took = bench.timed(*variant)
            if number >= WARMUP:
                values[name].append(took)
    middle = {name: timing.median(items) for name, items in values.items()}
    exact, noticed = bench.exact()
    shares = {
        "pinned": efficiency(middle["copy"], middle["compute"], middle["both"]),
        "same_stream": efficiency(middle["copy"], middle["compute"], middle["same_stream"]),
        "pageable": efficiency(middle["copy_pageable"], middle["compute"], middle["both_pageable"]),
    }
    observed = {
        "bytes": bench.host.numel(),
        "kernels": bench.loops,
        "times_ms": middle,
        "overlap": shares,
        "host_return_ms": bench.host_return(),
        "exact": exact,
        "cc_mode": gpus.HostLink(torch).read()["cc_mode"],
        "connections": os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS"),
    }
    gate = noise.gate(before, noise.snapshot(gpu=True))
    controls = [observation.control("flipped_byte_is_noticed", noticed, "one byte of the copy changed")]
    moved = bench.host.numel()
    samples = timing.sample_record(
        values["both"], clock=timing.EVENT_CLOCK, warmup_discarded=WARMUP, bytes_per_call=moved
    )
    del bench
    ctx.release_pinned()
    stats = timing.statistics(values["both"])
    return [observation.ran("C11.overlap", "gpu:0", observed, controls, samples=samples, stats=stats, noise=gate)]


def efficiency(copy_ms, compute_ms, both_ms):
    """Return the share of the shorter of the two that is hidden behind the other: 1 is all of it, 0 is none.

    The share is below 0 if both together take longer than one after the other.
    """
    return (copy_ms + compute_ms - both_ms) / min(copy_ms, compute_ms)


class Bench:
    """The buffers of the copy, the matrices, and a second stream. All is allocated and touched before timing."""

    def __init__(self, ctx):
        torch = self.torch = ctx.torch
        self.host = ctx.pinned_slab()
        count = self.host.numel()
        fill_pattern(torch, self.host)
        self.plain = self.host.clone()
        self.device = torch.zeros(count, dtype=torch.uint8, device=ctx.device)
        self.left = torch.randn(SIZE, SIZE, device=ctx.device)
        self.right = torch.randn(SIZE, SIZE, device=ctx.device)
        self.out = torch.empty_like(self.left)
        self.side = torch.cuda.Stream()
        self.loops = 1
        self.compute()
        self.copy(self.host)
        torch.cuda.synchronize()

    def compute(self):
        """Queue the kernels on the current stream."""
        for _ in range(self.loops):
            self.torch.mm(self.left, self.right, out=self.out)

    def copy(self, source):
        """Queue one copy on the current stream."""
        self.device.copy_(source, non_blocking=True)

    def variants(self):
        """Return ``{name: (source of the copy or None, whether kernels run, whether the copy has its own stream)}``."""
        return {
            "copy": (self.host, False, True),
            "compute": (None, True, False),
            "both": (self.host, True, True),
            "same_stream": (self.host, True, False),
            "copy_pageable": (self.plain, False, True),
            "both_pageable": (self.plain, True, True),
        }

    def timed(self, source, kernels, aside):
        """Return the device's milliseconds from before the first to after the last operation queued.

        The host waits for a copy from pageable memory, so kernels are queued before such a copy.
        """
        torch = self.torch
        main = torch.cuda.current_stream()
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        if hasattr(torch.cuda, "_sleep"):
            torch.cuda._sleep(SPIN_CYCLES)  # noqa: SLF001 - there is no public form
        first.record(main)
        if kernels and source is self.plain:
            self.compute()
        if source is not None and aside:
            self.side.wait_event(first)
            with torch.cuda.stream(self.side):
                self.copy(source)
        elif source is not None:
            self.copy(source)
        if kernels and source is not self.plain:
            self.compute()
        main.wait_stream(self.side)
        last.record(main)
        torch.cuda.synchronize()
        return first.elapsed_time(last)

    def tune(self):
        """Set the number of kernels so that they take about as long as the copy."""
        for _ in range(3):
            copy, kernel = self.timed(self.host, False, True), self.timed(None, True, False) / self.loops
            self.loops = max(1, min(20000, round(copy / kernel)))

    def host_return(self):
        """Return the median milliseconds until queueing the copy returns control to the host."""
        torch, values = self.torch, []
        for _ in range(5):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            with torch.cuda.stream(self.side):
                self.copy(self.host)
            values.append((time.perf_counter() - begin) * 1e3)
        torch.cuda.synchronize()
        return timing.median(values)

    def exact(self):
        """Copy once more while kernels run. Return whether all bytes arrived, and whether a changed byte is noticed."""
        torch = self.torch
        self.device.zero_()
        self.timed(self.host, True, True)
        self.plain.copy_(self.device)
        exact = bool(torch.equal(self.plain, self.host))
        self.plain[self.plain.numel() // 3] += 1
        noticed = not torch.equal(self.plain, self.host)
        self.plain.copy_(self.host)
        return exact, noticed
