"""Changes to try, and their computed gains. Pure.

A gain is the factor by which a step would become faster, as a range: computed from what was measured, or else from
published ranges for the part of the step that the change affects.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from envkit.ground.sizes import shown_size
from envkit.watch.hanging import Straggler
from envkit.watch.measures import Measures
from envkit.watch.model import Record
from envkit.watch.symptoms import Symptoms


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """One change. `gain` is None if it cannot be computed; `reason` is the arithmetic behind it."""

    id: str
    text: str
    gain: tuple[float, float] | None = None
    reason: str = ""


def for_data(record: Record, measures: Measures, symptoms: Symptoms) -> list[Advice]:
    """Return changes that make batches arrive in time."""
    loading, changes = measures.loading, []
    if not loading.is_known:
        # 1e-9 keeps the gain finite if the whole step is spent waiting; likewise below.
        at_most = _spread(1 / max(1e-9, 1 - loading.share), symptoms)
        return [Advice(id="loader", text=symptoms.text("loader_other"), gain=(1.0, at_most[1]))]
    more = _more_workers(measures, symptoms)
    changes += [more] if more is not None else []
    if loading.workers and not loading.persistent and loading.epochs >= symptoms.limit("worth") / 2:
        changes.append(
            Advice(
                id="persistent_workers",
                text=symptoms.text("persistent_workers"),
                gain=_spread(1 / max(1e-9, 1 - loading.epochs), symptoms, only_down=True),
                reason=f"{loading.epochs:.0%} of the time is spent at the start and end of epochs",
            )
        )
    is_uneven = loading.workers and more is None and loading.share > loading.epochs + symptoms.limit("worth")
    if is_uneven and loading.uneven > 2:  # noqa: PLR2004 - a wait as long as two steps
        wanted = 2 * (loading.prefetch or 2)
        text = symptoms.text("prefetch_factor", wanted=wanted, prefetch=loading.prefetch)
        changes.append(Advice(id="prefetch_factor", text=text, gain=(1.0, 1 / max(1e-9, 1 - loading.share))))
    if measures.shm is not None and measures.shm > symptoms.limit("cpu_full"):
        size = record.machine.shm_bytes or 0
        text = symptoms.text("shm", used=f"{measures.shm:.0%}", size=shown_size(size, "MB"))
        changes.append(Advice(id="shm", text=text))
    changes += _less_work(measures, symptoms)
    if not changes:
        changes.append(Advice(id="source", text=symptoms.text("source", workers=loading.workers)))
    changes.sort(key=lambda change: -(change.gain[0] if change.gain else 0))
    return changes


def _more_workers(measures: Measures, symptoms: Symptoms) -> Advice | None:
    """Return the number of workers that keeps up with the rest of a step, as far as the CPUs allow."""
    loading = measures.loading
    if loading.make_s is None:
        return None
    rest = max((1 - loading.share) * measures.step_s, 1e-6)
    make = loading.make_s * loading.batches_per_step
    cpus = measures.usable / measures.ranks
    busy_s = (loading.make_cpu_s or 0.0) * loading.batches_per_step
    is_cpu = _computes(loading.make_s, loading.make_cpu_s or 0.0, measures, symptoms)
    # One more than just enough, because some batches take longer than others.
    wanted = min(math.ceil(make / rest) + 1, int(symptoms.limit("workers_most")))
    # Workers that compute need a CPU each; workers that wait for storage do not.
    room = max(1, math.floor(cpus)) if is_cpu else wanted
    chosen = min(wanted, max(room, 1))
    if chosen <= loading.workers:
        return None
    # CPU time of the rest of the step, which shares the CPUs with the workers.
    other_s = max(0.0, (measures.cpus or 0.0) / measures.ranks * measures.step_s - busy_s)
    # A rank that becomes faster than the next one waits for that.
    step = max(rest, make / chosen, (busy_s + other_s) * _crowding(measures, symptoms) / cpus, measures.next_s)
    gain = measures.step_s / step
    if gain < 1 + symptoms.limit("worth"):
        return None
    key = "num_workers_cpu" if chosen < wanted else "num_workers"
    text = symptoms.text(key, wanted=chosen, workers=loading.workers, cpus=f"{cpus:g}")
    reason = (
        f"a batch takes {make * 1e3:.1f} ms to make and the rest of the {measures.unit} {rest * 1e3:.1f} ms: "
        f"{measures.step_s * 1e3:.1f} ms become {step * 1e3:.1f} ms"
    )
    return Advice(id="num_workers", text=text, gain=_spread(gain, symptoms), reason=reason)


def _crowding(measures: Measures, symptoms: Symptoms) -> float:
    """Return how many seconds a second on a CPU takes, because other programs use the CPUs; 1 where none do."""
    used = measures.cpus or 0.0
    # A training that fills its CPUs queues behind itself.
    if not used or used >= symptoms.limit("cpu_full") * measures.usable:
        return 1.0
    return max(1.0, measures.wanted / used)


def _computes(make_s: float, cpu_s: float, measures: Measures, symptoms: Symptoms) -> bool:
    """Whether a worker computes while it makes a batch, and does not wait for storage.

    Where the processes already want more CPUs than there are, the rest of its time may be waiting for one.
    """
    is_full = measures.wanted >= symptoms.limit("cpu_full") * measures.usable
    return cpu_s > make_s / (5 if is_full else 2)


def _less_work(measures: Measures, symptoms: Symptoms) -> list[Advice]:
    loading = measures.loading
    at_most = 1 / max(1e-9, 1 - loading.share)
    if loading.make_s is None or loading.make_cpu_s is None:
        return []
    is_cpu = _computes(loading.make_s, loading.make_cpu_s, measures, symptoms)
    full = max(measures.cpus or 0.0, measures.wanted) >= symptoms.limit("cpu_full") * measures.usable
    if is_cpu and (full or not loading.workers):
        return [Advice(id="less_work", text=symptoms.text("less_work"), gain=(1.0, at_most))]
    if not is_cpu and (measures.read_mb_per_s or 0) > 1:
        rate = f"{measures.read_mb_per_s:.0f}"
        return [Advice(id="storage", text=symptoms.text("storage", rate=rate), gain=(1.0, at_most))]
    return []


def for_copies(record: Record, measures: Measures, symptoms: Symptoms) -> list[Advice]:
    """Return changes that make copies faster, or overlap them with computing."""
    copying, changes = measures.copying, []
    at_most = 1 / max(1e-9, 1 - copying.share)
    if copying.pageable > 1 / 2:
        link, gain, reason = measures.cards.link_bytes_per_s, None, _published("pinned", copying.share, symptoms)
        if copying.rate and link and link > copying.rate:
            gain = (1.0, _part(copying.share, link / copying.rate))
            reason = f"the link can carry {link / copying.rate:.1f} times as much as was copied; {reason}"
        changes.append(Advice(id="pin_memory", text=symptoms.text("pin_memory"), gain=gain, reason=reason))
    elif copying.blocking > 1 / 2:
        changes.append(Advice(id="non_blocking", text=symptoms.text("non_blocking"), gain=(1.0, at_most)))
    hidden = f"at most the {copying.share:.0%} of the time that copies take"
    changes.append(
        Advice(id="prefetch_stream", text=symptoms.text("prefetch_stream"), gain=(1.0, at_most), reason=hidden)
    )
    nodes = [card.get("numa_node") for card in record.machine.gpus]
    node = next((numa_node for numa_node in nodes if numa_node is not None), None)
    slow = measures.cards.link_bytes_per_s and copying.rate and copying.rate < measures.cards.link_bytes_per_s / 2
    if record.machine.numa_nodes > 1 and node is not None and slow and copying.pageable <= 1 / 2:
        text = symptoms.text("numa", node=node, nodes=record.machine.numa_nodes)
        changes.append(Advice(id="numa", text=text, gain=(1.0, _part(copying.share, 2.0))))
    changes.append(
        Advice(id="smaller_copies", text=symptoms.text("smaller_copies"), gain=(1.0, _part(copying.share, 4.0)))
    )
    return changes


def for_communication(measures: Measures, symptoms: Symptoms) -> list[Advice]:
    """Return changes that make ranks wait less for each other."""
    share, changes, times = measures.communication, [], 4
    passes = max(1, round(measures.passes))  # per step, now
    if measures.imbalance >= symptoms.limit("imbalance"):
        gain = (1.0, 1 / max(1e-9, 1 - share))
        text = symptoms.text("imbalance", spread=f"{measures.imbalance:.0%}")
        changes.append(Advice(id="imbalance", text=text, gain=gain))
    less = _part(share, times)
    changes.append(
        Advice(
            id="accumulate",
            text=symptoms.text("accumulate", times=times * passes, now=passes),
            gain=_spread(less, symptoms),
            reason=f"{share:.0%} of the time becomes {share / times:.0%}, per backward pass",
        )
    )
    half = _part(share, 2.0)
    changes.append(Advice(id="compress", text=symptoms.text("compress"), gain=(1.0, half), reason="half the bytes"))
    return changes


def for_cpus(measures: Measures, symptoms: Symptoms) -> list[Advice]:
    """Return changes that give waiting threads a CPU."""
    changes: list[Advice] = []
    cpus, worth = measures.usable, symptoms.limit("worth")
    share = max(measures.queued or 0.0, measures.throttled or 0.0)
    gain = (1.0, 1 / max(1e-9, 1 - min(share, 0.95)))  # for shares near 1 the gain would be unlimited
    # All ranks of the record share the CPUs of one machine.
    fair = max(1, math.floor(cpus / measures.ranks))
    threads, workers = measures.threads or 0, measures.loading.workers
    processes = _processes(measures)
    if threads > fair:
        text = symptoms.text("threads_less", wanted=fair, threads=threads, ranks=processes, cpus=f"{cpus:g}")
        reason = f"at most the {share:.0%} in which main threads wait for a CPU, and what threads lose to each other"
        changes.append(Advice(id="threads_less", text=text, gain=gain, reason=reason))
    is_full = (measures.cpus or 0.0) >= symptoms.limit("cpu_full") * cpus
    if is_full and workers * measures.ranks > cpus and measures.loading.share < worth:
        text = symptoms.text("workers_less", wanted=max(1, fair - 1), workers=workers)
        changes.append(Advice(id="workers_less", text=text, gain=gain))
    if (measures.throttled or 0.0) >= worth:
        text = symptoms.text("quota", share=f"{measures.throttled:.0%}")
        changes.append(Advice(id="quota", text=text, gain=gain))
    if not changes and not is_full:
        changes.append(Advice(id="neighbors", text=symptoms.text("neighbors"), gain=gain))
    if not changes:
        changes.append(Advice(id="less_work", text=symptoms.text("less_work"), gain=gain))
    return changes


def for_waiting(measures: Measures, symptoms: Symptoms) -> list[Advice]:
    """Return changes that let the model go on: one for each kind of waiting that is worth one."""
    waiting = measures.waiting
    shares: dict[str, float] = {}
    for place in waiting.places:
        shares[place.kind] = shares.get(place.kind, 0.0) + place.share
    if not waiting.places:
        shares["other"] = waiting.share
    worth = symptoms.limit("worth")
    kept = {kind: share for kind, share in shares.items() if share >= worth / 2}
    changes = []
    for kind, share in sorted(kept.items(), key=lambda one: -one[1]):
        gain = (1.0, 1 / max(1e-9, 1 - share))
        reason = f"at most the {share:.0%} that it takes"
        changes.append(Advice(id=f"wait_{kind}", text=symptoms.text(f"wait_{kind}"), gain=gain, reason=reason))
    return changes


def for_compiling(measures: Measures, symptoms: Symptoms) -> list[Advice]:
    """Return changes that make the compiler compile less often."""
    share = measures.compiling.share
    if measures.steps and measures.compiling.times > 1:
        gain = (1.0, 1 / max(1e-9, 1 - share))
        reason = f"at most the {share:.0%} that compiling takes after the warm-up"
        return [Advice(id="recompile", text=symptoms.text("recompile"), gain=gain, reason=reason)]
    return [
        Advice(id="recompile", text=symptoms.text("recompile")),
        Advice(id="compile_once", text=symptoms.text("compile_once")),
    ]


def for_affinity(record: Record, measures: Measures, symptoms: Symptoms) -> list[Advice]:
    """Return how a training gets all CPUs."""
    allowed = measures.allowed or 1
    reason = f"at most {record.machine.cpus:g} CPUs instead of {allowed}"
    gain = (1.0, record.machine.cpus / allowed)
    return [Advice(id="affinity", text=symptoms.text("affinity"), gain=gain, reason=reason)]


def for_straggler(slow: Straggler, measures: Measures, symptoms: Symptoms) -> list[Advice]:
    """Return that ranks should have equal work: a step then takes as long as they take now in the mean."""
    gain = (1.0, slow.seconds / max(1e-9, slow.mean_s))
    reason = f"with equal work each {measures.unit} takes the mean of all ranks"
    text = symptoms.text("imbalance", spread=f"{slow.seconds / max(1e-9, slow.fastest_s) - 1:.0%}")
    return [Advice(id="imbalance", text=text, gain=gain, reason=reason)]


def for_clock(measures: Measures, symptoms: Symptoms) -> list[Advice]:
    """Return changes that raise the GPU's clock."""
    cards = measures.cards
    gain = None if not cards.clock else (1.0, 1 / cards.clock)
    reasons = ", ".join(cards.reasons)
    if cards.slowed:
        text = symptoms.text("cooling", celsius="?" if cards.celsius is None else cards.celsius, reasons=reasons)
        return [Advice(id="cooling", text=text, gain=gain)]
    watts = "?" if cards.watts is None else f"{cards.watts:.0f}"
    return [Advice(id="power", text=symptoms.text("power", watts=watts, reasons=reasons), gain=gain)]


def for_full_memory(measures: Measures, symptoms: Symptoms) -> list[Advice]:
    """Return changes that make a step fit into the GPU's memory."""
    text = symptoms.text("smaller_batch", times=f"{measures.retries:.1f}", unit=measures.unit)
    return [
        Advice(id="smaller_batch", text=text),
        Advice(id="fragmentation", text=symptoms.text("fragmentation")),
    ]


def for_host_memory(measures: Measures, symptoms: Symptoms) -> list[Advice]:
    """Return changes that reduce waiting for host memory."""
    share = min(0.95, measures.pressure_memory or 0.0)
    return [Advice(id="host_memory", text=symptoms.text("host_memory"), gain=(1.0, 1 / (1 - share)))]


def for_bandwidth(record: Record, measures: Measures, symptoms: Symptoms) -> list[Advice]:
    """Return changes that move fewer bytes in the GPU's memory."""
    fuse = Advice(id="fuse", text=symptoms.text("fuse"))
    return [fuse, *for_computing(record, measures, symptoms)]


def for_launches(record: Record, measures: Measures, symptoms: Symptoms) -> list[Advice]:
    """Return changes that make the host queue fewer or larger kernels."""
    changes: list[Advice] = []
    util = measures.cards.util
    at_most = None if not util else (1.0, 100 / util)
    reason = "" if not util else f"kernels run {util:.0f} % of the time and could run all the time"
    if measures.syncs >= 1:
        changes.append(Advice(id="sync", text=symptoms.text("sync", count=f"{measures.syncs:.0f}"), gain=at_most))
    if not measures.compiled:
        text = symptoms.text("compile_launch")
        changes.append(Advice(id="compile_launch", text=text, gain=at_most, reason=reason))
    if measures.cards.memory_used is not None and measures.cards.memory_used < 1 - symptoms.limit("memory_free"):
        text = symptoms.text("batch_size", free=f"{1 - measures.cards.memory_used:.0%}")
        changes.append(Advice(id="batch_size", text=text, gain=at_most, reason="per sample"))
    changes += _fused(record, measures, symptoms)
    return changes


def for_computing(record: Record, measures: Measures, symptoms: Symptoms) -> list[Advice]:
    """Return changes that make the model itself faster."""
    changes = [*_threads(record, measures, symptoms), *_lower_precision(record, measures, symptoms)]
    first = record.ranks[0] if record.ranks else None
    if first is not None and first.fact("training", "convolutions") and not first.fact("training", "channels_last"):
        reason = _published("channels_last", measures.computing, symptoms)
        changes.append(Advice(id="channels_last", text=symptoms.text("channels_last"), reason=reason))
    if not measures.compiled:
        reason = _published("compile", measures.computing, symptoms)
        changes.append(Advice(id="compile", text=symptoms.text("compile"), reason=reason))
    return [*changes, *_fused(record, measures, symptoms)]


def _threads(record: Record, measures: Measures, symptoms: Symptoms) -> list[Advice]:
    """Return more threads if torch uses fewer than its share of the CPUs: torchrun sets one thread per rank."""
    fair = math.floor(record.machine.cpus / measures.ranks)
    if measures.device != "cpu" or not measures.threads or measures.threads >= fair:
        return []
    first = record.ranks[0]
    source = "" if first.fact("process", "omp_num_threads") is None else "from the environment"
    text = symptoms.text(
        "threads",
        wanted=fair,
        threads=measures.threads,
        source=source,
        cpus=f"{record.machine.cpus:g}",
        ranks=_processes(measures),
    ).replace(" )", ")")
    more = fair / measures.threads
    least = 1 + (more - 1) * symptoms.limit("parallel")
    gain = (_part(measures.computing, least), _part(measures.computing, more))
    reason = f"{measures.computing:.0%} of the {measures.unit} runs on {fair} instead of {measures.threads} CPUs"
    return [Advice(id="threads", text=text, gain=gain, reason=reason)]


def _lower_precision(record: Record, measures: Measures, symptoms: Symptoms) -> list[Advice]:
    if measures.autocast or not record.ranks:
        return []
    if measures.device == "cpu":
        if not record.machine.bf16_cpu:
            return []
        source = "amp_cpu"
        text = symptoms.text("amp", device="cpu", dtype="bfloat16", scaler="")
    else:
        capability = record.ranks[0].fact("training", "capability") or [0, 0]
        if capability[0] < 7:  # noqa: PLR2004 - tensor cores begin with 7.0
            return []
        source = "amp"
        is_new = capability[0] >= 8  # noqa: PLR2004 - bf16 begins with 8.0
        scaler = "" if is_new else " with torch.amp.GradScaler('cuda')"
        text = symptoms.text("amp", device="cuda", dtype="bfloat16" if is_new else "float16", scaler=scaler)
    return [Advice(id="amp", text=text, reason=_published(source, measures.computing, symptoms))]


def _published(name: str, share: float, symptoms: Symptoms) -> str:
    """Return what others measured of a change, which promises nothing for this training."""
    low, high = symptoms.gain(name)
    return symptoms.text("published", low=low, high=high, share=f"{share:.0%}", source=symptoms.sources[name])


def _fused(record: Record, measures: Measures, symptoms: Symptoms) -> list[Advice]:
    if not record.ranks or measures.optimizer < symptoms.limit("worth"):
        return []
    name = record.ranks[0].fact("training", "optimizer")
    # The optimizers of torch that have a fused form.
    if name not in ("Adam", "AdamW", "SGD", "Adagrad") or record.ranks[0].fact("training", "fused"):
        return []
    gain = (1.0, 1 / max(1e-9, 1 - measures.optimizer))
    reason = f"at most the {measures.optimizer:.0%} that optimizer steps take"
    return [Advice(id="fused", text=symptoms.text("fused", optimizer=name), gain=gain, reason=reason)]


def _processes(measures: Measures) -> str:
    return "one process" if measures.ranks == 1 else f"{measures.ranks} ranks"


def _part(share: float, factor: float) -> float:
    """Return how many times faster a step becomes if `share` of it becomes `factor` times faster."""
    return 1 / max(1e-9, 1 - share + share / factor)


def _spread(gain: float, symptoms: Symptoms, *, only_down: bool = False) -> tuple[float, float]:
    """Return a computed gain as a range."""
    by = symptoms.limit("spread")
    return max(1.0, gain * (1 - by)), gain if only_down else gain * (1 + by)
