"""C27: a pattern over most of the device's free memory, and the rate of a copy within it."""

from envkit.smoke import noise, observation, one_gpu, timing

SHARE = 0.8  # of the free memory; comparing needs some as well
# An integrated GPU uses the host's memory, and taking most of that would kill other processes.
INTEGRATED_BYTES = 1 << 30
# Words of a pattern that are written or compared at once, and the least number of slices.
SLICE_WORDS, SLICES_MIN = 1 << 26, 16
# Odd, so that words at power-of-two distances differ in every byte: 2**64 over the golden ratio, as a signed number.
FACTOR = -7046029254386353131
COPY_BYTES, COPY_PART = 1 << 30, 8
SAMPLES = 12  # copies of one buffer


def run(ctx):
    """Return C27.pattern, the words of device memory that changed, and C27.copy, the rate of a copy on the device."""
    torch = ctx.torch
    if not hasattr(torch.cuda, "mem_get_info"):
        raise observation.Skip("API_ABSENT", "torch.cuda.mem_get_info begins with torch 1.11")
    torch.cuda.empty_cache()
    free = torch.cuda.mem_get_info()[0]
    before = noise.snapshot(gpu=True, idle=True)
    rate = _copy(torch, free)
    gate = noise.gate(before, noise.snapshot(gpu=True))
    torch.cuda.empty_cache()
    pattern = _pattern(torch, words(torch, free))
    torch.cuda.empty_cache()
    return [pattern, dict(rate, noise=observation.finite(gate))]


def words(torch, free):
    """Return how many words of eight bytes the pattern has, of ``free`` bytes of memory."""
    integrated = getattr(torch.cuda.get_device_properties(0), "is_integrated", False)
    return int(min(SHARE * free, INTEGRATED_BYTES) if integrated else SHARE * free) // 8


def slices(count):
    """Return ``[(begin, end)]`` of the slices of a pattern of ``count`` words."""
    step = max(1, min(SLICE_WORDS, count // SLICES_MIN))
    return [(begin, min(begin + step, count)) for begin in range(0, count, step)]


def expected(torch, begin, end, inverted, device):
    """Return the words ``begin`` to ``end`` of the pattern or of its complement, so that each bit is once 0, once 1."""
    part = torch.arange(begin, end, dtype=torch.int64, device=device).mul_(FACTOR)
    return part.bitwise_not_() if inverted else part


def fill(torch, memory, inverted):
    """Write the pattern or its complement."""
    for begin, end in slices(memory.numel()):
        memory[begin:end].copy_(expected(torch, begin, end, inverted, memory.device))


def changed(torch, memory, inverted):
    """Return how many words differ from the pattern."""
    wrong = torch.zeros((), dtype=torch.int64, device=memory.device)
    for begin, end in slices(memory.numel()):
        wrong += (memory[begin:end] != expected(torch, begin, end, inverted, memory.device)).sum()
    return int(wrong)


def _pattern(torch, count):
    memory = torch.empty(count, dtype=torch.int64, device="cuda:0")
    wrong = {}
    for name, inverted in (("pattern", False), ("complement", True)):
        # All is written before anything is read, so that no cache holds what is compared.
        fill(torch, memory, inverted)
        wrong[name] = changed(torch, memory, inverted)
    at = count // 3
    memory[at] ^= 1 << 40
    noticed = changed(torch, memory, inverted=True)
    controls = [
        observation.control("flipped_bit_is_noticed", noticed == wrong["complement"] + 1, f"{noticed} words differ")
    ]
    return observation.ran("C27.pattern", "gpu:0", {"bytes": 8 * count, "wrong": wrong}, controls)


def _copy(torch, free):
    size = min(COPY_BYTES, free // COPY_PART)
    source = torch.zeros(size, dtype=torch.uint8, device="cuda:0")
    target = torch.zeros(size, dtype=torch.uint8, device="cuda:0")

    def one():
        target.copy_(source)

    def two():
        one()
        # The second copy goes back, so that neither of them is redundant.
        source.copy_(target)

    clock = timing.event_clock(torch)
    timed = timing.measure(
        [("one", one), ("two", two)], clock, samples=SAMPLES, warmup_cap_s=0.2, bytes_per_call=size, budget_s=1.0
    )
    item = timed["one"]
    ratio = timed["two"]["stats"]["median"] / item["stats"]["median"]
    controls = [observation.control("two_copies_take_longer", ratio > 1.5, f"two copies take {ratio:.2f} times one")]
    # Each byte is read once and written once.
    observed = {"bytes": size, "gb_per_s": 2 * size / item["stats"]["median"] / 1e6, "limits": one_gpu.limits(torch, 0)}
    return observation.ran("C27.copy", "gpu:0", observed, controls, samples=item["samples"], stats=item["stats"])
