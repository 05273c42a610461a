"""C26: every GPU that torch sees, measured in parallel, and which GPUs of the machine are not measured."""

import os
import tempfile

from envkit.smoke import gpus, nvml, one_gpu, probe
from envkit.smoke.observation import control, ran
from envkit.smoke.timing import median

# Each process has two page-locked buffers of this size. They are smaller with more than eight GPUs or little memory.
BUFFER_BYTES = 16 * one_gpu.MIB
# Seconds for all processes together, less than the check has: eight take 8 s if the CPUs are not busy.
LIMIT_S, RESERVE_S = 24.0, 4.0
WHY = {"failed": "its process failed", "timeout": "it gave no answer in time"}
RATES = ("h2d_gb_per_s", "d2h_gb_per_s", "tflops")


def run(ctx):
    """Return C26.gpu for each GPU that torch sees, and C26.coverage: how many of the visible GPUs were measured."""
    torch = ctx.torch
    count = torch.cuda.device_count()
    size = min(BUFFER_BYTES, ctx.slab_bytes // (2 * count))
    ends = measured(ctx, count, size)
    rows = [_observation(index, end, ends) for index, end in enumerate(ends)]
    return [*rows, _coverage(torch, ends)]


def measured(ctx, count, size):
    """Return how each GPU ended, by its number in torch: the first one measured here, the others in child processes.

    This process has a context on the first GPU, and a GPU in exclusive mode allows only one.
    """
    limit = max(1.0, min(LIMIT_S, ctx.remaining() - RESERVE_S))
    processes = []
    with tempfile.NamedTemporaryFile(prefix="envkit-") as turns:
        code = probe.code_of("one_gpu")
        try:
            for index in range(1, count):
                processes.append(probe.start(code, [str(index), str(size), turns.name]))  # noqa: PERF401 - ended below
            return [_first(ctx.torch, size, turns.name), *probe.finish_all(processes, limit)]
        finally:
            for process in processes:
                probe.kill(process)


def _first(torch, size, turns):
    try:
        return dict(one_gpu.measure(torch, 0, size, turns), outcome="answered")
    except RuntimeError as error:
        return {"outcome": "failed", "text": f"{type(error).__name__}: {error}"}


def _observation(index, end, ends):
    answered = end["outcome"] == "answered"
    others = [other for other in ends if other is not end and other["outcome"] == "answered"]
    alike = [other for other in others if answered and other["name"] == end["name"]]
    observed = {
        "outcome": end["outcome"],
        "text": None if answered else end["text"],
        "others_answered": len(others),
        "alike": len(alike),
        "alike_median": {name: median([rates(other)[name] for other in alike]) for name in RATES} if alike else {},
    }
    if not answered:
        controls = [control("a_broken_process_is_noticed", True, "it is broken")]
        return ran("C26.gpu", f"gpu:{index}", observed, controls)
    done = {name: value for name, value in end.items() if name not in ("outcome", "text", "wall_s")}
    ratio = end["product"]["two_over_one"]
    controls = [
        control("one_changed_element_is_noticed", end["kernel"]["noticed"], "a sum of odd numbers"),
        control("flipped_bit_is_noticed", end["copy"]["noticed"], "one bit of a copied piece"),
        control("two_products_take_longer", ratio > 1.5, f"two products take {ratio:.2f} times one"),
    ]
    return ran("C26.gpu", f"gpu:{index}", dict(observed, **done, rates=rates(end)), controls)


def rates(end):
    """Return the rates of one GPU by their names in RATES."""
    return {name: end["product" if name == "tflops" else "copy"][name] for name in RATES}


def _coverage(torch, ends):
    session = nvml.open_session()
    left = [
        {"gpu": f"gpu:{index}", "name": torch.cuda.get_device_name(index), "why": WHY[end["outcome"]]}
        for index, end in enumerate(ends)
        if end["outcome"] != "answered"
    ]
    known = {gpus.nvml_index(torch, session, index) for index in range(len(ends))} if session else set()
    # If one cannot be matched, it is unknown which of the driver's GPUs it is, so none can be called unseen.
    for index in unseen(range(session.count()), known) if session and None not in known else ():
        card = session.describe(index) or {}
        left.append(
            {"gpu": card.get("uuid") or f"NVML {index}", "name": card.get("name"), "why": "not visible to torch"}
        )
    observed = {
        "measured": [f"gpu:{index}" for index, end in enumerate(ends) if end["outcome"] == "answered"],
        "not_measured": left,
        "visible_devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
    }
    planted = unseen([*range(len(ends)), "planted"], range(len(ends)))
    return ran("C26.coverage", "host", observed, [control("one_gpu_more_is_noticed", planted == ["planted"], planted)])


def unseen(visible, known):
    """Return the GPUs of the driver that torch does not have."""
    return [item for item in visible if item not in known]
