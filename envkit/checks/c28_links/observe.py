"""C28: copies to and from a GPU at once, NVLinks, and copies between all pairs of GPUs.

C28.nvlink and C28.matrix come from a child process, because copies between GPUs need a context on each of them.
"""

from envkit.smoke import context, noise, probe, timing
from envkit.smoke.observation import Skip, control, ran, skipped

MAX_GPUS = 8  # 56 ordered pairs
# Seconds of the check that are reserved for what follows the copies.
RESERVE_S = 3.0
LIMIT_S = 60.0  # for all pairs


def run(ctx):
    """Return C28.both_ways, and C28.nvlink and C28.matrix if two or more GPUs are visible."""
    return [_both_ways(ctx), *_between(ctx)]


class Ways:
    """The copies in both directions, each with a page-locked buffer, a device buffer and a stream of its own."""

    def __init__(self, torch, size):
        self.torch = torch
        pattern = torch.empty(size + 1, dtype=torch.uint8)
        context.fill_pattern(torch, pattern)
        self.expected, self.other = pattern[:-1], pattern[1:]
        self.up_host = torch.zeros(size, dtype=torch.uint8, pin_memory=True)
        self.down_host = torch.zeros(size, dtype=torch.uint8, pin_memory=True)
        self.up_host.copy_(self.expected)
        self.up_device = torch.zeros(size, dtype=torch.uint8, device="cuda:0")
        self.down_device = self.other.to("cuda:0")
        self.streams = [torch.cuda.Stream() for _ in range(2)]

    def up(self):
        """Queue the copy to the device."""
        self.up_device.copy_(self.up_host, non_blocking=True)

    def down(self):
        """Queue the copy to the host."""
        self.down_host.copy_(self.down_device, non_blocking=True)

    def in_turn(self):
        """Queue both on one stream."""
        self.up()
        self.down()

    def at_once(self):
        """Queue both, each on its own stream. Later work on the current stream waits for both."""
        cuda = self.torch.cuda
        main = cuda.current_stream()
        for stream, copy in zip(self.streams, (self.up, self.down)):  # noqa: B905 - Python 3.8
            stream.wait_stream(main)
            with cuda.stream(stream):
                copy()
        for stream in self.streams:
            main.wait_stream(stream)

    def exact(self):
        """Whether all bytes of both copies arrived."""
        equal = self.torch.equal
        return bool(equal(self.up_device.cpu(), self.expected) and equal(self.down_host, self.other))


def _both_ways(ctx):
    torch = ctx.torch
    size = ctx.slab_bytes // 2
    try:
        ways = Ways(torch, size)
    except RuntimeError as error:
        # C09 judges whether this is a fault of the image.
        raise Skip("BUFFERS_UNAVAILABLE", str(error)[:300]) from error
    variants = [(name, getattr(ways, name)) for name in ("up", "down", "in_turn", "at_once")]
    before = noise.snapshot(gpu=True, idle=True)
    timed = timing.measure(variants, timing.event_clock(torch), samples=12, warmup_cap_s=0.2, budget_s=1.5)
    gate = noise.gate(before, noise.snapshot(gpu=True))
    ways.up_device.zero_()
    ways.down_host.zero_()
    ways.at_once()
    torch.cuda.synchronize()
    exact = ways.exact()
    ways.down_host[size // 3] ^= 1
    took = {name: item["stats"]["median"] for name, item in timed.items()}
    turns = took["in_turn"] / max(took["up"], took["down"])
    observed = {
        "bytes": size,
        "up_gb_per_s": size / took["up"] / 1e6,
        "down_gb_per_s": size / took["down"] / 1e6,
        "both_gb_per_s": 2 * size / took["at_once"] / 1e6,
        # 1: they take turns, 2: neither slows the other down (if both are equally fast alone).
        "gain": took["in_turn"] / took["at_once"],
        "exact": exact,
    }
    controls = [
        control("flipped_bit_is_noticed", not ways.exact(), "one bit of a buffer changed"),
        control("one_stream_takes_turns", turns > 1.5, f"both on one stream take {turns:.2f} times the slower one"),
    ]
    item = timed["at_once"]
    options = {"samples": item["samples"], "stats": item["stats"], "noise": gate}
    return ran("C28.both_ways", "gpu:0", observed, controls, **options)


def _between(ctx):
    count = min(ctx.torch.cuda.device_count(), MAX_GPUS)
    if count < 2:
        names = ("C28.nvlink", "C28.matrix")
        return [skipped(name, "gpu:0", "ONE_GPU", "links between GPUs need two of them") for name in names]
    limit = max(1.0, min(LIMIT_S, ctx.remaining() - RESERVE_S))
    seen = probe.probe(probe.code_of("peers"), [str(count)], limit)
    return between(seen)


def between(seen):
    """Return C28.nvlink and C28.matrix from the answer of the process that copies between GPUs."""
    if seen["outcome"] != "answered":
        observed = {"outcome": seen["outcome"], "text": seen["text"]}
        noticed = [control("a_broken_process_is_noticed", True, "it is broken")]
        return [
            skipped("C28.nvlink", "gpu:0", "NO_ANSWER", "the process that reads the links failed: C28.matrix says why"),
            ran("C28.matrix", "gpu:0", observed, noticed),
        ]
    matrix = {"outcome": "answered", "text": None, "names": seen["names"], "pairs": seen["pairs"]}
    noticed = all(pair["noticed"] for pair in seen["pairs"])
    rows = [ran("C28.matrix", "gpu:0", matrix, [control("flipped_bit_is_noticed", noticed, "one bit of 64 MiB")])]
    if not any(seen["links"]):
        message = "no GPU here has NVLinks, or NVML does not show them"
        return [skipped("C28.nvlink", "gpu:0", "NO_NVLINK", message), *rows]
    planted = fewest([*seen["links"], {"active": -1}])
    links = {"names": seen["names"], "links": seen["links"], "fewest": fewest(seen["links"])}
    controls = [control("a_gpu_without_links_is_noticed", planted == -1, f"the fewest are {planted}")]
    return [ran("C28.nvlink", "gpu:0", links, controls), *rows]


def fewest(states):
    """Return the active links of the GPU with the fewest. A GPU without NVLink counts as 0."""
    return min(0 if item is None else item["active"] for item in states)
