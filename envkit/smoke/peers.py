"""Copies between all pairs of GPUs, in a separate process: whether they are exact, and their rate."""

import json

from . import context, gpus, nvlink, nvml, timing

BYTES = 64 << 20  # milliseconds on the slowest link
SAMPLES, BUDGET_S = 5, 0.3


def main(arguments):
    """Measure the first ``arguments[0]`` GPUs; print one JSON line."""
    import torch

    print(json.dumps(measure(torch, int(arguments[0]))), flush=True)


def measure(torch, count):
    """Return ``{names, links, pairs}``: the name and NVLinks of each GPU, and the result of each ordered pair."""
    session = nvml.open_session()
    numbers = [gpus.nvml_index(torch, session, index) if session else None for index in range(count)]
    return {
        "names": [torch.cuda.get_device_name(index) for index in range(count)],
        "links": [None if number is None else nvlink.state(session, session.handle(number)) for number in numbers],
        "pairs": [
            pair(torch, source, target) for source in range(count) for target in range(count) if source != target
        ],
    }


def pair(torch, source, target):
    """Copy from one GPU to another and return ``{source, target, peer_access, exact, noticed, gb_per_s}``."""
    pattern = torch.empty(BYTES, dtype=torch.uint8)
    context.fill_pattern(torch, pattern)
    near = pattern.to(f"cuda:{source}")
    far = torch.zeros(BYTES, dtype=torch.uint8, device=f"cuda:{target}")
    with torch.cuda.device(source):
        far.copy_(near)
        torch.cuda.synchronize(source)
        torch.cuda.synchronize(target)
        back = far.cpu()
        exact = bool(torch.equal(back, pattern))
        back[BYTES // 3] ^= 1
        noticed = not torch.equal(back, pattern)
        clock = timing.event_clock(torch)
        variants = [("copy", lambda: far.copy_(near, non_blocking=True))]
        timed = timing.measure(variants, clock, samples=SAMPLES, warmup_cap_s=0.05, budget_s=BUDGET_S)
    return {
        "source": source,
        "target": target,
        "peer_access": bool(torch.cuda.can_device_access_peer(target, source)),
        "exact": exact,
        "noticed": noticed,
        "gb_per_s": BYTES / timed["copy"]["stats"]["median"] / 1e6,
    }
