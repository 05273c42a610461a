"""C24: a minute of full load: does the GPU hold its clock, report no errors, and compute the same results?"""

import time

from envkit.smoke import compat, gpus, nvml, telemetry, timing
from envkit.smoke.observation import control, failed, ran, skipped

LOAD_S = 60.0  # long enough for a card to get warm
SIZE = 8192  # rows and columns: 1.1 TFLOP a product
CHUNK_S = 0.5  # one point of the record
# A comparison reads both results from device memory, which takes about a twentieth of eight products' time.
COMPARE_EVERY = 8


def run(ctx):
    """Return C24.load (rate and results over the minute) and C24.telemetry (what the device reported meanwhile).

    ``launch.sustained_s`` of the spec replaces the minute by another duration in seconds.
    """
    torch = ctx.seeded()
    session = nvml.open_session()
    index = gpus.nvml_index(torch, session) if session is not None else None
    watch = telemetry.Watch(session, index) if index is not None else None
    load, broken = Load(ctx), None
    if watch is not None:
        watch.start()
    try:
        load.keep_up((ctx.spec.get("launch") or {}).get("sustained_s", LOAD_S))
    except RuntimeError as error:
        # After a failure every later call to the device raises. NVML still says why it failed.
        broken = error
    finally:
        seen = watch.stop() if watch is not None else None
    return [_load(ctx, load) if broken is None else _broken(ctx, load, broken), _telemetry(ctx, seen)]


def _load(ctx, load):
    chunks = load.chunks
    rates = [chunk["tflops"] for chunk in chunks]
    edge = max(1, len(rates) // 6)
    observed = {
        "seconds": sum(chunk["seconds"] for chunk in chunks),
        "products": sum(chunk["products"] for chunk in chunks),
        "size": SIZE,
        "dtype": load.name,
        "different": load.different(),
        "compared": load.compared,
        "tflops_first": timing.median(rates[:edge]),
        "tflops_last": timing.median(rates[-edge:]),
    }
    controls = [control("flipped_element_is_noticed", load.notices_a_fault(), "one element of the result changed")]
    millis = [chunk["seconds"] * 1e3 / chunk["products"] for chunk in chunks]
    samples = timing.sample_record(millis, clock="perf_counter+sync", inner_loops=chunks[0]["products"])
    return ran("C24.load", ctx.subject, observed, controls, samples=samples, stats=timing.statistics(millis))


def _broken(ctx, load, error):
    """Return the observation of a load that an error ended early."""
    done = {
        "seconds": sum(chunk["seconds"] for chunk in load.chunks),
        "products": sum(chunk["products"] for chunk in load.chunks),
        "dtype": load.name,
        "exception": type(error).__name__,
    }
    return failed("C24.load", ctx.subject, "EXCEPTION", f"{type(error).__name__}: {error}", done)


def _telemetry(ctx, seen):
    if seen is None:
        return skipped("C24.telemetry", ctx.subject, "NO_NVML", f"NVML does not answer: {nvml.refusal()}")
    if not any(_filled(row) for row in seen["rows"]) and not seen["xids"]:
        message = "this device reports no clock, temperature or power, as virtual ones do"
        return skipped("C24.telemetry", ctx.subject, "NO_TELEMETRY", message)
    return ran("C24.telemetry", ctx.subject, seen, [_watch_control(seen)])


def _filled(row):
    return any(row[name] is not None for name in ("sm_mhz", "celsius", "watts", "events"))


def _watch_control(seen):
    """Control: the device was read throughout, so that any event was seen."""
    rows = [row for row in seen["rows"] if _filled(row)]
    expected = seen["seconds"] / telemetry.PERIOD_S
    enough = len(rows) > min(expected, telemetry.MAX_ROWS) / 4
    return control("the_device_was_read_all_along", enough, f"{len(rows)} readings")


class Load:
    """The same large product again and again, compared on the device with the first result."""

    def __init__(self, ctx):
        torch = self.torch = ctx.torch
        self.name = "bfloat16" if compat.bf16_native(torch, ctx.device) else "float16"
        dtype = getattr(torch, self.name)
        self.left = torch.randn(SIZE, SIZE, device=ctx.device).to(dtype)
        self.right = torch.randn(SIZE, SIZE, device=ctx.device).to(dtype)
        self.first = self.left @ self.right
        self.out = torch.empty_like(self.first)
        self.wrong = torch.zeros(1, dtype=torch.int64, device=ctx.device)
        self.chunks = []
        self.compared = 0
        torch.cuda.synchronize()

    def product(self):
        """Queue one product."""
        self.torch.mm(self.left, self.right, out=self.out)

    def compare(self):
        """Queue the count of elements that differ from the first result."""
        self.wrong += (self.out.view(self.torch.int16) != self.first.view(self.torch.int16)).sum()
        self.compared += 1

    def different(self):
        """Return the elements that differed in any comparison."""
        return int(self.wrong)

    def notices_a_fault(self):
        """Whether the count goes up by one if one element changes; the count is restored afterwards.

        A copy of the first result is changed, because a new product of a faulty device could differ by itself.
        """
        before = self.different()
        self.out.copy_(self.first)
        self.out.view(self.torch.int16)[SIZE // 2, SIZE // 3] ^= 1
        self.compare()
        noticed = self.different() - before == 1
        self.wrong.fill_(before)
        return noticed

    def keep_up(self, seconds):
        """Load the device for ``seconds``; ``chunks`` gets ``{seconds, products, tflops}`` for every half second."""
        torch = self.torch
        count = self._products_per_chunk()
        begin = time.monotonic()
        while time.monotonic() - begin < seconds:
            start = time.perf_counter()
            self.products(count)
            torch.cuda.synchronize()
            took = time.perf_counter() - start
            self.chunks.append({"seconds": took, "products": count, "tflops": 2.0 * SIZE**3 * count / took / 1e12})

    def products(self, count):
        """Queue ``count`` products, and compare one in COMPARE_EVERY and the last."""
        for number in range(1, count + 1):
            self.product()
            if number % COMPARE_EVERY == 0 or number == count:
                self.compare()

    def _products_per_chunk(self):
        torch = self.torch
        for _ in range(3):
            self.product()
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(5):
            self.product()
        torch.cuda.synchronize()
        return max(1, int(CHUNK_S * 5 / (time.perf_counter() - start)))
