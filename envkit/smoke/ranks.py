"""One process (rank) of a group: run the collectives and print the observations as one JSON line."""

import contextlib
import datetime as dt
import json
import os
import pathlib
import time

from . import compat

# Elements of int32: 4 B, 64 KiB, 1 MiB, 16 MiB.
COUNTS = (1, 1 << 14, 1 << 18, 1 << 22)
PERIOD = 1009  # a prime, so that elements at power-of-two distances differ
BANDWIDTH_BYTES = 512 << 20  # large enough that the latency of a call does not matter
WARMUP, TRIALS = 5, 20
BATCH, WIDTH = 24, 32


def main(arguments):
    """Join the group given by ``backend world rank file limit_s``, run every collective, print the result and exit.

    The file ``file.rank`` is created once torch is imported: it distinguishes a process that starts slowly from one
    that waits for the others.
    """
    import torch

    backend, world, rank, file = arguments[0], int(arguments[1]), int(arguments[2]), arguments[3]
    pathlib.Path(started(file, rank)).touch()
    device = "cpu"
    if backend == "nccl":
        device = "cuda:{}".format(rank)
        torch.cuda.set_device(rank)
    group = torch.distributed
    limit = dt.timedelta(seconds=float(arguments[4]))
    options = compat.group_options(torch, device)
    begin = time.perf_counter()
    group.init_process_group(
        backend, init_method="file://" + file, world_size=world, rank=rank, timeout=limit, **options
    )
    result = {"init_s": time.perf_counter() - begin}
    result["sums"] = sums(torch, device, rank, world)
    result["ddp"] = ddp(torch, device, rank, world)
    result["bandwidth"] = bandwidth(torch, device) if backend == "nccl" and world > 1 else None
    result["nccl"] = list(compat.nccl_version(torch)) if backend == "nccl" else None
    print(json.dumps(result), flush=True)
    with contextlib.suppress(RuntimeError):
        group.barrier()
    # Gloo's threads may outlive its objects, so a normal exit aborts now and then. The result is already printed.
    os._exit(0)


def started(file, rank):
    """Return the path of the file that exists once ``rank`` has imported torch."""
    return "{}.{}".format(file, rank)


def contribution(torch, count, rank):
    """Return the input of ``rank``: integers that depend on the rank and on their position."""
    return (torch.arange(count, dtype=torch.int32) % PERIOD + 1) * (rank + 1)


def expected_sum(torch, count, world):
    """Return the sum over all ranks, computed without communication."""
    return (torch.arange(count, dtype=torch.int32) % PERIOD + 1) * (world * (world + 1) // 2)


def sums(torch, device, rank, world):
    """All-reduce each size and count wrong elements; ``noticed`` is the count after one is changed on purpose."""
    rows = []
    for count in COUNTS:
        near = contribution(torch, count, rank).to(device)
        alone = near.clone()
        torch.distributed.all_reduce(near)
        wanted = expected_sum(torch, count, world).to(device)
        wrong = int((near != wanted).sum())
        unreduced = int((alone != wanted).sum())
        changed = wanted.clone()
        changed[count // 2] += 1
        noticed = int((changed != wanted).sum())
        rows.append({"bytes": 4 * count, "wrong": wrong, "noticed": noticed, "wrong_without_reduction": unreduced})
    return rows


def ddp(torch, device, rank, world):
    """Return the difference between DistributedDataParallel's averaged gradient and that of the whole batch."""
    nn = torch.nn
    torch.manual_seed(0)
    inputs = torch.randn(BATCH * world, WIDTH, dtype=torch.float64)
    targets = torch.randn(BATCH * world, 4, dtype=torch.float64)

    def network():
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(WIDTH, 48), nn.Tanh(), nn.Linear(48, 4)).double()

    def gradient(model, near, wanted, where):
        (model(near.to(where)) - wanted.to(where)).square().mean().backward()
        return torch.cat([p.grad.detach().to("cpu").reshape(-1) for p in model.parameters()])

    whole = gradient(network(), inputs, targets, "cpu")
    part = slice(rank * BATCH, (rank + 1) * BATCH)
    own = gradient(network(), inputs[part], targets[part], "cpu")
    wrapped = nn.parallel.DistributedDataParallel(
        network().to(device), device_ids=None if device == "cpu" else [torch.device(device).index]
    )
    shared = gradient(wrapped, inputs[part], targets[part], device)
    scale = float(whole.abs().max())
    return {
        "difference": float((shared - whole).abs().max()) / scale,
        "difference_without_sharing": float((own - whole).abs().max()) / scale,
    }


def bandwidth(torch, device):
    """Return ``{bytes, values_ms}`` of an all-reduce of 512 MiB: each value is one trial, after all ranks arrived."""
    tensor = torch.zeros(BANDWIDTH_BYTES // 4, dtype=torch.float32, device=device)
    values = []
    for number in range(WARMUP + TRIALS):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        torch.distributed.all_reduce(tensor[:1])  # wait for all ranks
        first.record()
        torch.distributed.all_reduce(tensor)
        last.record()
        torch.cuda.synchronize()
        if number >= WARMUP:
            values.append(first.elapsed_time(last))
    return {"bytes": BANDWIDTH_BYTES, "values_ms": values}
