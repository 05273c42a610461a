"""A few seconds of work on one GPU: an exact kernel, exact copies and their rate, a matrix product, GPU health.

The first GPU does it in the payload's process, every other GPU in a separate process.
"""

import contextlib
import ctypes
import fcntl
import json
import os

from . import compat, context, gpus, hostfacts, nvml, telemetry, timing

MIB = 1 << 20
COPIED_BYTES = 256 * MIB
# The sum of the first n odd numbers is n squared: it is exact, and every element affects it.
ODD = 1 << 22
SM_CLOCK, MEMORY_CLOCK = 1, 2
SAMPLES, WARMUP_S, BUDGET_S = 7, 0.1, 0.4
# Products that are queued before clock, temperature and power are read, so that the GPU is busy meanwhile.
QUEUED = 20
# Multiples of 64, so that all tiles are whole; large enough that arithmetic is the limit, not memory.
GPU_SIZE, HOPPER_SIZE = 4096, 8192


def main(arguments):
    """Measure device ``arguments[0]`` with page-locked buffers of ``arguments[1]`` bytes; print one JSON line.

    ``arguments[2]`` is the file that each process locks while it times copies.
    """
    import torch

    index = int(arguments[0])
    busy = busy_before(torch, index)
    result = measure(torch, index, int(arguments[1]), arguments[2])
    print(json.dumps(dict(result, busy_before=busy)), flush=True)


def measure(torch, index, buffer_bytes, turns):
    """Return the results of device ``index`` as plain JSON."""
    with torch.cuda.device(index):
        result = limits(torch, index)
        result["kernel"] = kernel(torch, index)
        with near_the_gpu(torch, index) as near:
            result["copy"] = dict(copies(torch, index, buffer_bytes, turns), near=near)
        result["product"] = product(torch, index)
        result["health"] = result["product"].pop("health")
        return result


def busy_before(torch, index):
    """Return the utilization in percent of a GPU that this run has not used yet, so by others; None if unknown."""
    session = nvml.open_session()
    number = gpus.nvml_index(torch, session, index) if session else None
    return None if number is None else session.utilization(session.handle(number))


def limits(torch, index):
    """Return the numbers that limit the device's rates: multiprocessors, highest clocks, width of the memory bus.

    Unknown values are None. ``memory_mhz`` is NVML's, with two transfers per cycle.
    """
    properties = torch.cuda.get_device_properties(index)
    session = nvml.open_session()
    number = gpus.nvml_index(torch, session, index) if session else None
    handle = None if number is None else session.handle(number)

    def read(name, *kind):
        return None if handle is None else session.number(name, handle, *(ctypes.c_uint(item) for item in kind))

    # A MIG slice has a part of the bus, but NVML reports the whole bus.
    whole = number is not None and not session.describe(number)["mig"]
    return {
        "name": torch.cuda.get_device_name(index),
        "uuid": gpus.device_uuid(torch, index),
        "capability": "{}.{}".format(*torch.cuda.get_device_capability(index)),
        "multiprocessors": getattr(properties, "multi_processor_count", None),
        "max_sm_mhz": read("nvmlDeviceGetMaxClockInfo", SM_CLOCK),
        "memory_mhz": read("nvmlDeviceGetMaxClockInfo", MEMORY_CLOCK),
        "memory_bits": read("nvmlDeviceGetMemoryBusWidth") if whole else None,
    }


def kernel(torch, index):
    """Return ``{total, expected, noticed}``: an exact sum, and whether it shows that one element was changed."""
    odd = torch.arange(ODD, dtype=torch.int64, device=f"cuda:{index}") * 2 + 1
    total = int(odd.sum().item())
    odd[ODD // 3] += 1
    return {"total": total, "expected": ODD**2, "noticed": int(odd.sum().item()) == total + 1}


def copies(torch, index, buffer_bytes, turns):
    """Copy 256 MiB to the device and back in pieces, compare every byte, and time both directions.

    Returns ``{bytes, exact, noticed, h2d_gb_per_s, d2h_gb_per_s}``. GPUs may share a PCIe switch, so they time their
    copies one after the other.
    """
    base = torch.empty(buffer_bytes + context.PATTERN, dtype=torch.uint8)
    context.fill_pattern(torch, base)
    up, down = (torch.zeros(buffer_bytes, dtype=torch.uint8, pin_memory=True) for _ in range(2))
    pieces = COPIED_BYTES // buffer_bytes
    far = torch.zeros(pieces * buffer_bytes, dtype=torch.uint8, device=f"cuda:{index}")

    def expected(piece):
        # Each piece begins at another position in the pattern, so that swapped pieces differ.
        return base[piece % context.PATTERN :][:buffer_bytes]

    def part(piece):
        return far[piece * buffer_bytes :][:buffer_bytes]

    for piece in range(pieces):
        up.copy_(expected(piece))
        part(piece).copy_(up, non_blocking=True)
        torch.cuda.synchronize()
    exact = True
    for piece in range(pieces):
        down.copy_(part(piece), non_blocking=True)
        torch.cuda.synchronize()
        exact = exact and bool(torch.equal(down, expected(piece)))
    down.copy_(expected(0))
    down[buffer_bytes // 3] ^= 1
    noticed = not torch.equal(down, expected(0))
    target, source = part(0), part(1)
    variants = [
        ("h2d", lambda: target.copy_(up, non_blocking=True)),
        ("d2h", lambda: down.copy_(source, non_blocking=True)),
    ]
    with in_turns(turns):
        clock = timing.event_clock(torch)
        timed = timing.measure(variants, clock, samples=SAMPLES, warmup_cap_s=WARMUP_S, budget_s=BUDGET_S)
    rates = {f"{name}_gb_per_s": buffer_bytes / timed[name]["stats"]["median"] / 1e6 for name, _ in variants}
    return dict(rates, bytes=pieces * buffer_bytes, exact=exact, noticed=noticed)


def product(torch, index):
    """Time a large matrix product in bfloat16, else float16, and read the device's health under this load.

    Returns ``{dtype, size, tflops, two_over_one, health}``.
    """
    device = f"cuda:{index}"
    size = gemm_size(compat.capability(torch, device))
    name = "bfloat16" if compat.bf16_native(torch, device) else "float16"
    left, right = (torch.randn(size, size, device=device).to(getattr(torch, name)) for _ in range(2))
    out = torch.empty_like(left)

    def once():
        torch.mm(left, right, out=out)

    def twice():
        once()
        once()

    clock = timing.event_clock(torch)
    variants = [("one", once), ("two", twice)]
    timed = timing.measure(variants, clock, samples=SAMPLES, warmup_cap_s=WARMUP_S, budget_s=BUDGET_S)
    state = health_under(torch, index, once)
    took = {variant: item["stats"]["median"] for variant, item in timed.items()}
    return {
        "dtype": name,
        "size": size,
        "tflops": tflops(size, took["one"]),
        "two_over_one": took["two"] / took["one"],
        "health": state,
    }


def gemm_size(capability):
    """Return the side of square matrices that keep a GPU of this capability busy: from Hopper on, larger ones."""
    return HOPPER_SIZE if capability >= (9, 0) else GPU_SIZE


def tflops(size, milliseconds):
    """Return the rate of one product of square matrices in TFLOP/s, None if it took no time."""
    return 2.0 * size**3 / milliseconds / 1e9 if milliseconds else None


def health(torch, index):
    """Return the current clock, temperature, power and clock events of the device, None without NVML.

    C25 reads its error counters.
    """
    session = nvml.open_session()
    number = gpus.nvml_index(torch, session, index) if session else None
    if number is None:
        return None
    return telemetry.reading(session, session.handle(number))


def health_under(torch, index, work):
    """Return the ``health`` of the device while several calls of ``work`` are queued on it."""
    for _ in range(QUEUED):
        work()
    state = health(torch, index)
    torch.cuda.synchronize()
    return state


@contextlib.contextmanager
def in_turns(file):
    """Hold the lock of ``file`` inside the block, so that one process at a time runs it."""
    with open(file, "w") as stream:  # noqa: PTH123 - pathlib has no lock either
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def near_the_gpu(torch, index):
    """Run this thread on the CPUs near the device inside the block; yields False if they are not known or not allowed.

    Page-locked memory is allocated on the NUMA node of the thread that first touches it, and copies from the other
    socket are slower.
    """
    near = hostfacts.numbers_of_list(gpus.placement(gpus.bus_address(torch, index))["cpus"] or "")
    before = os.sched_getaffinity(0)
    near &= before
    if not near:
        yield False
        return
    os.sched_setaffinity(0, near)
    try:
        yield True
    finally:
        os.sched_setaffinity(0, before)
