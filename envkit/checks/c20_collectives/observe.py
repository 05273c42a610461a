"""C20: processes on one machine add up what they should, and share gradients as one process would compute them."""

import os
import shutil
import tempfile
import time

from envkit.smoke import noise, probe, timing
from envkit.smoke.observation import Skip, control, ran, skipped

GLOO_RANKS = 2
MAX_RANKS = 8
# Seconds for one group from start to end; what hangs is ended and is an observation.
LIMITS_S = {"gloo": 30.0, "nccl": 45.0}


def run(ctx):
    """Return C20.allreduce and C20.ddp per backend, and C20.bandwidth.nccl where two GPUs or more are visible."""
    torch = ctx.torch
    if not torch.distributed.is_available():
        raise Skip("API_ABSENT", "this torch is built without torch.distributed")
    results = _group(ctx, "gloo", GLOO_RANKS)
    cards = torch.cuda.device_count() if ctx.has_cuda else 0
    if cards and torch.distributed.is_nccl_available():
        before = noise.snapshot(gpu=True, idle=True)
        world = min(cards, MAX_RANKS)
        results += _group(ctx, "nccl", world)
        return [*results, _bandwidth(ctx, results, world, before)]
    for part in ("allreduce", "ddp", "bandwidth"):
        message = "NCCL needs a CUDA device" if not cards else "this torch is built without NCCL"
        results.append(skipped(f"C20.{part}.nccl", ctx.subject, "NO_GPU" if not cards else "API_ABSENT", message))
    return results


def environment():
    """Return what the processes are given: loopback where nothing else is set, and one thread each."""
    wanted = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    return {name: os.environ.get(name, value) for name, value in wanted.items()}


def launch(backend, world, limit_s, env):
    """Run ``world`` processes and return what each of them printed, in rank order."""
    folder = tempfile.mkdtemp(prefix="envkit-")
    code, processes = probe.code_of("ranks"), []
    try:
        for rank in range(world):
            arguments = [backend, str(world), str(rank), os.path.join(folder, "store")]  # noqa: PTH118
            processes.append(probe.start(code, arguments, env))
        begin = time.monotonic()
        return [probe.finish(item, max(1.0, limit_s - (time.monotonic() - begin))) for item in processes]
    finally:
        for process in processes:
            probe.kill(process)
        shutil.rmtree(folder, ignore_errors=True)


def _group(ctx, backend, world):
    subject = "cpu" if backend == "gloo" else ctx.subject
    ends = launch(backend, world, LIMITS_S[backend], environment())
    ctx.notes[backend] = ends
    common = {
        "backend": backend,
        "ranks": world,
        "outcome": worst(ends),
        "error": next((end["text"] for end in ends if end["outcome"] != "answered"), None),
        "environment": {name: value for name, value in os.environ.items() if name.startswith(("NCCL_", "GLOO_"))},
        "wall_s": max(end["wall_s"] for end in ends),
    }
    answered = common["outcome"] == "answered"
    sums = [size for end in ends for size in end["sums"]] if answered else []
    gradients = [end["ddp"] for end in ends] if answered else []
    wrong = {str(size["bytes"]): 0 for size in sums}
    for size in sums:
        wrong[str(size["bytes"])] += size["wrong"]
    reduced = dict(common, wrong=wrong, init_s=ends[0].get("init_s"))
    shared = dict(common, difference=max((item["difference"] for item in gradients), default=None))
    return [
        ran(f"C20.allreduce.{backend}", subject, reduced, _sum_controls(sums, world, answered)),
        ran(f"C20.ddp.{backend}", subject, shared, _gradient_controls(gradients, world, answered)),
    ]


def worst(ends):
    """Return ``answered`` where every process did, else how the first other one ended."""
    return next((end["outcome"] for end in ends if end["outcome"] != "answered"), "answered")


def _sum_controls(sums, world, answered):
    if not answered:
        return [control("a_broken_group_is_noticed", True, "it is broken")]
    controls = [control("one_changed_element_is_noticed", all(size["noticed"] == 1 for size in sums))]
    if world > 1:
        held = all(size["wrong_without_reduction"] for size in sums)
        controls.append(control("one_rank_alone_is_wrong", held, "its own numbers against the sum"))
    return controls


def _gradient_controls(gradients, world, answered):
    if not answered:
        return [control("a_broken_group_is_noticed", True, "it is broken")]
    if world == 1:
        return [control("one_rank_shares_nothing", gradients[0]["difference_without_sharing"] == 0.0, "world of one")]
    least = min(item["difference_without_sharing"] for item in gradients)
    return [control("own_part_is_not_the_whole", least > 1e-3, f"difference {least:.1e} without sharing")]


def _bandwidth(ctx, results, world, before):
    check_id = "C20.bandwidth.nccl"
    ends = ctx.notes["nccl"]
    if world < 2:
        return skipped(check_id, ctx.subject, "ONE_GPU", "bandwidth between GPUs needs two of them")
    if worst(ends) != "answered":
        return skipped(check_id, ctx.subject, "NO_GROUP", "the group could not be made; C20.allreduce.nccl says why")
    # The slowest rank of each trial is when the result is everywhere.
    values = [max(trial) for trial in zip(*(end["bandwidth"]["values_ms"] for end in ends))]  # noqa: B905
    size, stats = ends[0]["bandwidth"]["bytes"], timing.statistics(values)
    algorithm = size / stats["median"] / 1e6
    observed = {
        "ranks": world,
        "bytes": size,
        "algbw_gb_per_s": algorithm,
        "busbw_gb_per_s": bus_bandwidth(algorithm, world),
        "nccl": ends[0]["nccl"],
        "peer_access": bool(ctx.torch.cuda.can_device_access_peer(0, 1)),
    }
    held = bus_bandwidth(1.0, 2) == 1.0 and bus_bandwidth(1.0, 8) == 1.75
    controls = [control("formula_of_two_and_eight_ranks", held), *results[-2]["controls"]]
    samples = timing.sample_record(values, clock=timing.EVENT_CLOCK, warmup_discarded=5, bytes_per_call=size)
    gate = noise.gate(before, noise.snapshot(gpu=True))
    return ran(check_id, ctx.subject, observed, controls, samples=samples, stats=stats, noise=gate)


def bus_bandwidth(algorithm, ranks):
    """Return what each link carries in an all-reduce, 2 (n - 1) / n of the rate of the result (nccl-tests)."""
    return algorithm * 2.0 * (ranks - 1) / ranks
