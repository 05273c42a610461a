"""C20: all-reduces and DDP gradients of several processes on one machine, and the bandwidth between its GPUs."""

import os
import shutil
import tempfile

from envkit.smoke import gpus, hostfacts, noise, nvlink, nvml, pressure, probe, ranks, timing
from envkit.smoke.observation import Skip, control, ran, skipped

GLOO_RANKS = 2  # processes on CPUs
MAX_RANKS = 8  # GPUs of one machine
# Seconds for a whole group, and more for each process: eight processes that import torch on two CPUs take long.
# A group that hangs is ended, and its end is the observation.
LIMIT_S, LIMIT_OF_A_RANK_S = 30.0, 5.0
# Seconds of the check that are reserved for what follows a group.
RESERVE_S = 5.0
# Variables that an image may set for the network of its cluster, with the values that work within one machine.
LOCAL = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo", "NCCL_NET": "Socket"}


def run(ctx):
    """Return C20.allreduce and C20.ddp per backend, and C20.bandwidth.nccl if two or more GPUs are visible."""
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


def environment(networks):
    """Return ``(variables for the processes, variables of the image that these replace)``.

    The processes use loopback and one thread each. An interface or network plugin set by the image is kept unless this
    run has no network (``networks`` is empty): envkit then leaves only loopback, and the image's value cannot work.
    """
    given = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    replaced = {}
    for name, local in LOCAL.items():
        set_here = os.environ.get(name)
        if set_here is not None and set_here != local and not networks:
            replaced[name] = set_here
        if not networks or (set_here is None and name != "NCCL_NET"):
            given[name] = local
    return given, replaced


def group_limit_s(count, cpus):
    """Return the time limit of a group of ``count`` processes on ``cpus`` CPUs, in seconds."""
    return LIMIT_S + LIMIT_OF_A_RANK_S * count * max(1.0, count / cpus)


def launch(backend, world, limit_s, env):
    """Run ``world`` processes; return how each ended, in rank order, and how many finished their imports."""
    folder = tempfile.mkdtemp(prefix="envkit-")
    # The limit here stretches on a busy machine. A process that gave up by its own, which does not, would look broken.
    longest = limit_s * pressure.STRETCH
    store = os.path.join(folder, "store")  # noqa: PTH118
    code = probe.code_of("ranks")
    try:
        arguments = [[backend, str(world), str(rank), store, str(longest)] for rank in range(world)]
        ends = probe.finish_all([probe.start(code, words, env) for words in arguments], limit_s)
        begun = sum(os.path.exists(ranks.started(store, rank)) for rank in range(world))  # noqa: PTH110
        return ends, begun
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _group(ctx, backend, world):
    subject = "cpu" if backend == "gloo" else ctx.subject
    wanted = group_limit_s(world, hostfacts.cpus()["effective"])
    limit = max(1.0, min(wanted, ctx.remaining() - RESERVE_S))
    given, replaced = environment(_networks())
    ends, begun = launch(backend, world, limit, given)
    ctx.notes[backend] = ends
    broken = broken_rank(ends)
    common = {
        "backend": backend,
        "ranks": world,
        "outcome": worst(ends),
        "error": None if broken is None else ends[broken]["text"],
        "rank": broken,
        "begun": begun,
        "limit_s": limit,
        "limit_wanted_s": wanted,
        "replaced": replaced,
        "environment": _variables(),
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
    """Return ``answered`` if every process did, else the outcome of ``broken_rank``."""
    broken = broken_rank(ends)
    return "answered" if broken is None else ends[broken]["outcome"]


def broken_rank(ends):
    """Return the rank that explains how the group ended, or None if every process answered.

    A process that failed comes before those that timed out, which may only have waited for it.
    """
    for outcome in ("failed", "timeout"):
        for rank, end in enumerate(ends):
            if end["outcome"] == outcome:
                return rank
    return None


def _variables():
    return {name: value for name, value in os.environ.items() if name.startswith(("NCCL_", "GLOO_"))}


def _networks():
    texts = [hostfacts.read_text("/proc/net/" + name) for name in ("route", "ipv6_route")]
    return hostfacts.routed_interfaces(*texts)


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
    # The slowest rank of each trial counts, because only then all ranks have the result.
    values = [max(trial) for trial in zip(*(end["bandwidth"]["values_ms"] for end in ends))]  # noqa: B905
    size, stats = ends[0]["bandwidth"]["bytes"], timing.statistics(values)
    algorithm = size / stats["median"] / 1e6
    observed = {
        "ranks": world,
        "bytes": size,
        "algbw_gb_per_s": algorithm,
        "busbw_gb_per_s": bus_bandwidth(algorithm, world),
        "nccl": ends[0]["nccl"],
        "peer_access": not without_peer_access(ctx.torch, world),
        "pairs_without_peer_access": without_peer_access(ctx.torch, world),
        "nvlink_gb_per_s": _nvlink_rate(ctx.torch, world),
        "environment": _variables(),
    }
    held = bus_bandwidth(1.0, 2) == 1.0 and bus_bandwidth(1.0, 8) == 1.75
    controls = [control("formula_of_two_and_eight_ranks", held), *results[-2]["controls"]]
    samples = timing.sample_record(values, clock=timing.EVENT_CLOCK, warmup_discarded=5, bytes_per_call=size)
    gate = noise.gate(before, noise.snapshot(gpu=True))
    return ran(check_id, ctx.subject, observed, controls, samples=samples, stats=stats, noise=gate)


def without_peer_access(torch, world):
    """Return the pairs of GPUs without peer access in both directions: ``["0-1", ...]``."""
    reaches = torch.cuda.can_device_access_peer
    pairs = [(left, right) for left in range(world) for right in range(left + 1, world)]
    return [f"{left}-{right}" for left, right in pairs if not (reaches(left, right) and reaches(right, left))]


def _nvlink_rate(torch, world):
    session = nvml.open_session()
    if session is None:
        return None
    states = []
    for index in range(world):
        card = gpus.nvml_index(torch, session, index)
        states.append(None if card is None else nvlink.state(session, session.handle(card)))
    return nvlink.group_rate(states)


def bus_bandwidth(algorithm, ranks):
    """Return the rate of each link in an all-reduce: 2 (n - 1) / n times the rate of the result (nccl-tests)."""
    return algorithm * 2.0 * (ranks - 1) / ranks
