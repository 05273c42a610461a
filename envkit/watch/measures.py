"""The numbers for a judgment, computed from a record: shares of a step, rates and means. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from envkit.checks import thresholds
from envkit.knowledge.clock_events import SLOWING
from envkit.watch.doing import WAITS, Doing
from envkit.watch.model import Activity, Process, Record, Sample, Total

_COPIES = 0.8  # of what a link carries, which copies from page-locked memory reach
# Clock events that slow a GPU down. A power cap alone is the normal state of a 70 W card.
POWER_CAP = "sw_power_cap"
_LEAST_SAMPLES = 15  # a third of fewer samples is not significant
_WHOLE = 0.9  # share of the step from which on a copy counts as taking the whole step
LEAST_LOOKS = 8  # at the thread that trains, outside of timed calls; two seconds of it
STRAGGLING = 0.5  # imbalance from which on the parts of a step are those of the slowest rank: means are of no rank
_IDLE_CPUS = 0.7  # of a training that computes nothing while its main thread waits
# Calls in which the host is, as the probes time them.
_HOST_CALLS = ("next", "iter", "copy", "collective", "compile", "backward", "optimizer", "sync")
_IDLE = 5  # percent of utilization; an idle GPU lowers its clock by itself


@dataclass(frozen=True, slots=True, kw_only=True)
class Loading:
    """The loading of one rank; times are seconds per batch."""

    share: float  # of the step time spent waiting
    epochs: float  # the part of it at the start and end of epochs, where workers start and stop
    workers: int
    prefetch: int | None
    persistent: bool
    pinned: bool
    is_known: bool  # a DataLoader was used
    batches_per_step: float
    make_s: float | None  # to make one batch in one worker
    make_cpu_s: float | None  # CPU time of that
    uneven: float  # longest wait / mean time of a step
    late: float | None  # share of waiting in the last third of the time; None if that is too short


@dataclass(frozen=True, slots=True, kw_only=True)
class Copying:
    """Copies to the device."""

    share: float
    bytes_per_step: float
    rate: float | None  # bytes per second
    pageable: float  # share of the bytes
    blocking: float  # share of the copies


@dataclass(frozen=True, slots=True, kw_only=True)
class Cards:
    """The GPUs during the steps of the training; means over samples and devices."""

    util: float | None
    memory_util: float | None
    memory_used: float | None  # share
    slowed: float  # share of the busy samples in which the clock was lowered; a power limit alone does not count
    capped: float  # share of those in which only the power limit lowered it
    clock: float | None  # as a share of the maximum, while busy
    reasons: tuple[str, ...]
    celsius: int | None
    watts: float | None
    link_bytes_per_s: float | None  # what the PCIe link can carry


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Something that keeps the model waiting, and where in the program; its share of the step."""

    kind: str
    where: str
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Time in which the thread that trains did something else than the model, and no call that the probes time."""

    share: float
    looks: int  # at the thread; 0: it could not be looked at, and the share is that in which it used no CPU
    places: tuple[Place, ...] = ()  # the largest first


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiling:
    """Calls of torch.compile's compiler."""

    share: float
    times: int
    longest_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Measures:
    """Everything that the rules use of a record. Shares are of the step time, from 0 to 1."""

    unit: str
    ranks: int
    steps: int
    seconds: float
    step_s: float
    loading: Loading
    copying: Copying
    communication: float
    compiling: Compiling
    waiting: Waiting
    bytes_reduced: float
    imbalance: float  # (slowest - fastest) / fastest rank, without the time in collectives
    slowest: str | None  # the rank that all others wait for, of which alone the parts are then
    next_s: float  # time of a step of the second slowest rank without waiting for others; 0 without a slowest one
    optimizer: float
    backward: float
    passes: float  # backward passes per step
    device: str | None
    drained: float | None  # share of steps before which the device had finished all its work
    syncs: float  # per step
    waiting_for_device: float  # share of the step in which the host waits
    retries: float  # of the allocator, per step
    autocast: float  # share of steps
    compiled: bool
    threads: int | None
    cpus: float | None  # CPUs that the training kept busy
    allowed: int | None  # CPUs to which the training's processes are pinned, if that is fewer than the machine has
    usable: float  # CPUs that the training may use at once
    main_cpus: float | None
    queued: float | None
    wanted: float  # CPUs that the training kept busy, or whose processes waited for one
    throttled: float | None
    pressure_memory: float | None
    faults: float
    read_mb_per_s: float | None
    shm: float | None  # share of /dev/shm in use
    cards: Cards

    @property
    def units(self) -> str:
        """The unit in the plural."""
        return "batches" if self.unit == "batch" else f"{self.unit}s"

    def is_device_ahead(self, drained: float, waits: float) -> bool | None:
        """Whether the device waits for the host; None if that was not measured.

        A host that reads a value from the device waits until the device has finished (GradScaler does that in every
        step), so long waits mean the opposite.
        """
        if self.drained is None:
            return None
        return self.drained >= drained and self.waiting_for_device < waits

    def is_past(self, worth: float) -> bool:
        """Whether waiting for data has ended, as after the first epoch has filled a cache.

        It has not ended if the time lost at the start and end of epochs is worth a change; that recurs every epoch.
        """
        loading = self.loading
        ended = loading.late is not None and loading.late < worth / 2
        return ended and loading.epochs < worth <= loading.share

    @property
    def computing(self) -> float:
        """The share of forward, backward and optimizer.

        Forward cannot be timed as a call: it is what looks at the thread find outside of all timed calls.
        """
        others = self.copying.share + self.communication + self.compiling.share + self.waiting.share
        return max(0.0, 1 - self.loading.share - others)

    @property
    def parts(self) -> tuple[tuple[str, float], ...]:
        """The parts of a step with their shares, which add up to 1."""
        optimizer = min(self.optimizer, self.computing)
        named = [
            ("waiting for data", self.loading.share),
            ("copies to the GPU", self.copying.share),
            ("communication", self.communication),
            ("compiling", self.compiling.share),
            ("waiting for something else", self.waiting.share),
            ("optimizer", optimizer),
            ("computing", self.computing - optimizer),
        ]
        return tuple((name, share) for name, share in named if share > 0 or name == "computing")


def measure(record: Record) -> Measures:
    """Return the numbers of a record; shares are means over its ranks, or those of a rank that all others wait for."""
    every, samples = record.ranks, steady(record)
    imbalance, slowest = uneven(every)
    ranks = (slowest,) if slowest is not None and imbalance >= STRAGGLING else every
    steps, seconds = sum(process.steps for process in ranks), sum(process.seconds for process in ranks)
    loading = _loading(record, ranks, steps, seconds, _late(samples))
    room = max(0.0, 1 - loading.share)
    copying = _copying(ranks, steps, seconds, room)
    communication = min(_communication(ranks, seconds), max(0.0, room - copying.share))
    compiling = _compiling(ranks, seconds, max(0.0, room - copying.share - communication))
    first = ranks[0] if ranks else None
    known = _sum(ranks, "step.known").count
    allowed = min((sample.allowed for sample in samples if sample.allowed), default=None)
    is_pinned = allowed is not None and allowed < math.floor(record.machine.cpus)
    return Measures(
        unit=first.unit if first else "step",
        ranks=max(len(every), 1),
        steps=steps // max(len(ranks), 1),
        seconds=seconds / max(len(ranks), 1),
        step_s=seconds / steps if steps else 0.0,
        loading=loading,
        copying=copying,
        communication=communication,
        compiling=compiling,
        waiting=_waiting(ranks, seconds, samples, max(0.0, room - copying.share - communication - compiling.share)),
        bytes_reduced=float(first.fact("training", "parameter_bytes") or 0) if first else 0.0,
        imbalance=imbalance,
        slowest=named(ranks[0]) if ranks != every else None,
        next_s=max((own_s(process) for process in every if process not in ranks), default=0.0),
        optimizer=_part(_sum(ranks, "optimizer").seconds, seconds),
        backward=_part(max(0.0, _sum(ranks, "backward").seconds - _sum(ranks, "compile.within").seconds), seconds),
        passes=_sum(ranks, "backward").count / steps if steps else 0.0,
        device=first.fact("training", "device") if first else None,
        drained=_sum(ranks, "step.drained").count / known if known else None,
        syncs=_sum(ranks, "sync").count / steps if steps else 0.0,
        waiting_for_device=_part(_sum(ranks, "sync").seconds, seconds),
        retries=_sum(ranks, "allocator").amount / steps if steps else 0.0,
        autocast=_sum(ranks, "step.autocast").count / steps if steps else 0.0,
        compiled=any(process.fact("compile", "used") for process in ranks),
        threads=first.fact("training", "threads") if first else None,
        cpus=_over(samples, lambda sample: sample.cpus if sample.processes else None),
        allowed=allowed if is_pinned else None,
        usable=min(record.machine.cpus, allowed or record.machine.cpus),
        main_cpus=_over(samples, lambda sample: sample.main_cpus if sample.processes else None),
        queued=_over(samples, lambda sample: sample.main_queued),
        wanted=_over(samples, lambda sample: sample.cpus + (sample.queued or 0.0)) or 0.0,
        throttled=_over(samples, lambda sample: sample.throttled),
        pressure_memory=_over(samples, lambda sample: sample.pressure_memory),
        faults=_over(samples, lambda sample: sample.major_faults_per_s) or 0.0,
        read_mb_per_s=_over(samples, lambda sample: sample.read_mb_per_s),
        shm=_shm(record, samples),
        cards=_cards(record, samples),
    )


def steady(record: Record) -> tuple[Sample, ...]:
    """Return the samples within the counted steps of the ranks; all samples if there are no steps."""
    begins = [process.begin_s for process in record.ranks if process.begin_s is not None]
    ends = [process.end_s for process in record.ranks if process.end_s is not None]
    if not begins or not ends:
        return record.samples
    begin, end = min(begins), max(ends)
    # Whole samples within the steps; if they are too long for that, as after merging, those that overlap.
    inner = [sample for sample in record.samples if sample.at_s - sample.seconds >= begin and sample.at_s <= end]
    return tuple(
        inner or [sample for sample in record.samples if sample.at_s > begin and sample.at_s - sample.seconds < end]
    )


def _late(samples: Sequence[Sample]) -> float | None:
    """Return the share of waiting for batches in the last third of the samples with steps."""
    known = [(sample.waiting, sample.seconds) for sample in samples if sample.waiting is not None and sample.steps]
    last = known[-(len(known) // 3) :]
    spent = sum(seconds for _, seconds in last)
    return sum(share * seconds for share, seconds in last) / spent if len(known) >= _LEAST_SAMPLES else None


def _loading(record: Record, ranks: Sequence[Process], steps: int, seconds: float, late: float | None) -> Loading:
    waits, starts = _sum(ranks, "next"), _sum(ranks, "iter")
    makers = [worker for process in ranks for worker in record.workers_of(process)]
    made = _sum(ranks, "fetch")
    made = made if made.count else _sum(makers, "fetch")  # without workers a rank makes its own batches
    first = ranks[0] if ranks else None
    settings: Any = first.facts.get("loader", {}) if first else {}
    # Without workers, nothing starts or stops with an epoch.
    edges = _sum(ranks, "next.edge").seconds if settings.get("num_workers") else 0.0
    return Loading(
        share=min(1.0, _part(waits.seconds + starts.seconds, seconds)),
        epochs=min(1.0, _part(starts.seconds + edges, seconds)),
        workers=int(settings.get("num_workers") or 0),
        prefetch=settings.get("prefetch_factor"),
        persistent=bool(settings.get("persistent_workers")),
        pinned=bool(settings.get("pin_memory")),
        is_known=bool(settings),
        batches_per_step=waits.count / steps if steps else 1.0,
        make_s=made.seconds / made.count if made.count else None,
        make_cpu_s=made.amount / made.count if made.count else None,
        uneven=waits.longest_s / (seconds / steps) if steps and seconds else 0.0,
        late=late,
    )


def _copying(ranks: Sequence[Process], steps: int, seconds: float, room: float) -> Copying:
    host, device = _sum(ranks, "copy"), _sum(ranks, "copy_device")
    spent = _sum(ranks, "copy.blocking").seconds
    rate = host.amount / spent if spent else None
    if device.count:  # only some copies are timed on the device, so their time is scaled up to all
        spent = device.seconds * host.count / device.count if host.count else device.seconds
        rate = device.amount / device.seconds if device.seconds else None
    aside = _sum(ranks, "copy_device.side").seconds
    # Copies that overlap with computing cost nothing until they take about as long as the step.
    spent += aside if _part(aside, seconds) >= _WHOLE else 0.0
    return Copying(
        share=min(room, _part(spent, seconds)),
        bytes_per_step=host.amount / steps if steps else 0.0,
        rate=rate,
        pageable=_sum(ranks, "copy.pageable").amount / host.amount if host.amount else 0.0,
        blocking=_sum(ranks, "copy.blocking").count / host.count if host.count else 0.0,
    )


def _communication(ranks: Sequence[Process], seconds: float) -> float:
    device = _sum(ranks, "collective_device")
    spent = device.seconds if device.count else _sum(ranks, "collective").seconds
    for process in ranks:  # DDP times only some passes: their mean is used for all steps
        passes = process.total("ddp")
        if passes.count:
            spent += passes.amount / passes.count * process.steps
    return min(1.0, _part(spent, seconds))


def _compiling(ranks: Sequence[Process], seconds: float, room: float) -> Compiling:
    total = _sum(ranks, "compile")
    return Compiling(share=min(room, _part(total.seconds, seconds)), times=total.count, longest_s=total.longest_s)


def _waiting(ranks: Sequence[Process], seconds: float, samples: Sequence[Sample], room: float) -> Waiting:
    """Return the share in which the thread that trains did something else, from looks at it outside of timed calls.

    How long it was outside of these calls is known from the calls. Of looks alone, both would have their error.
    """
    timed = sum(_sum(ranks, kind).seconds for kind in _HOST_CALLS) - _sum(ranks, "compile.within").seconds
    outside = min(room, max(0.0, 1 - _part(timed, seconds)))
    looks = [one for process in ranks for one in process.activities if one.kind != Doing.TIMED]
    count, looked = sum(one.count for one in looks), sum(one.seconds for one in looks)
    if count < LEAST_LOOKS or not looked:
        # Not in these calls, not running, and no other thread computes for it: it waits. For what is not known.
        blocked, used, is_cpu = _blocked(samples), _over(samples, lambda sample: sample.cpus), _on_cpu(ranks)
        idle = blocked is not None and used is not None and used < _IDLE_CPUS and is_cpu
        return Waiting(share=max(0.0, outside - (1 - blocked)) if idle and blocked is not None else 0.0, looks=0)
    places = [
        Place(kind=one.kind, where=one.where, share=outside * one.seconds / looked)
        for one in _joined(looks)
        if one.kind in WAITS
    ]
    return Waiting(share=sum(place.share for place in places), looks=count, places=tuple(places))


def _joined(looks: Iterable[Activity]) -> list[Activity]:
    """Return what several processes did, each once, the most seconds first."""
    every: dict[tuple[str, str], Activity] = {}
    for one in looks:
        before = every.get((one.kind, one.where), Activity(kind=one.kind, where=one.where))
        every[one.kind, one.where] = replace(
            before, count=before.count + one.count, seconds=before.seconds + one.seconds
        )
    return sorted(every.values(), key=lambda one: (-one.seconds, one.kind, one.where))


def _blocked(samples: Sequence[Sample]) -> float | None:
    """Return the share of the time in which the main thread neither ran nor waited for a CPU."""
    return _over(
        samples,
        lambda sample: None if sample.main_queued is None else max(0.0, 1 - sample.main_cpus - sample.main_queued),
    )


def _on_cpu(ranks: Sequence[Process]) -> bool:
    return bool(ranks) and all(process.fact("training", "device") == "cpu" for process in ranks)


def uneven(ranks: Sequence[Process]) -> tuple[float, Process | None]:
    """Return (slowest - fastest) / fastest rank, without the time in collectives, and the slowest; 0 for one rank."""
    if len(ranks) < 2:  # noqa: PLR2004 - one rank alone
        return 0.0, None
    own = [(own_s(process), process) for process in ranks]
    slowest, fastest = max(own, key=lambda one: one[0]), min(own, key=lambda one: one[0])
    # Processes that share nothing, such as two trainings side by side, do not wait for each other.
    shares = all(process.total("collective").count or process.total("ddp").count for process in ranks)
    return (slowest[0] / fastest[0] - 1, slowest[1]) if fastest[0] > 0 and shares else (0.0, None)


def own_s(process: Process) -> float:
    """Return the seconds of a step that a rank takes for its own work: those without collectives."""
    passes = process.total("ddp")
    waits = process.total("collective").seconds + (
        passes.amount / passes.count * process.steps if passes.count else 0.0
    )
    return max(0.0, process.seconds - waits) / process.steps if process.steps else 0.0


def named(process: Process) -> str:
    """Return a rank's name."""
    return f"process {process.pid}" if process.rank is None else f"rank {process.rank}"


def _cards(record: Record, samples: Sequence[Sample]) -> Cards:
    every = [card for sample in samples for card in sample.gpus]
    # On a shared machine other programs use other GPUs, so only those of the ranks count if they are known.
    used = _of_ranks(record) or {card.index for card in every if (card.util or 0) > _IDLE}
    own = [card for card in every if card.index in used] or every
    busy = [card for card in own if (card.util or 0) > _IDLE]
    slowed = [card for card in busy if SLOWING & set(card.events)]
    capped = [card for card in busy if card.events == (POWER_CAP,)]
    facts = dict(enumerate(record.machine.gpus))
    clocks = [_of(card.sm_mhz, facts.get(card.index, {}).get("max_sm_mhz")) for card in busy]
    totals = [_of(card.memory_used, (facts.get(card.index, {}).get("mem_mib") or 0) * 2**20) for card in own]
    limits = (thresholds.load().link_limit(card.gen, card.width) for card in own if card.gen and card.width)
    links = [_COPIES * limit * 1e9 for limit in limits if limit is not None]
    return Cards(
        util=_mean(card.util for card in own),
        memory_util=_mean(card.memory_util for card in own),
        memory_used=_mean(totals),
        slowed=len(slowed) / len(busy) if busy else 0.0,
        capped=len(capped) / len(busy) if busy else 0.0,
        clock=_mean(clocks),
        reasons=tuple(dict.fromkeys(name for card in (*slowed, *capped) for name in card.events)),
        celsius=max((card.celsius for card in busy if card.celsius is not None), default=None),
        watts=_mean(card.watts for card in busy),
        link_bytes_per_s=max(links, default=None),
    )


def _of_ranks(record: Record) -> set[int]:
    """Return the indices of the ranks' GPUs; empty unless all of them are known."""
    names = {card.get("id"): index for index, card in enumerate(record.machine.gpus) if card.get("id")}
    wanted = {process.fact("training", "gpu") for process in record.ranks}
    return {names[gpu] for gpu in wanted} if wanted <= names.keys() else set()


def _shm(record: Record, samples: Sequence[Sample]) -> float | None:
    used = max((sample.shm_used_bytes for sample in samples if sample.shm_used_bytes is not None), default=None)
    return used / record.machine.shm_bytes if used is not None and record.machine.shm_bytes else None


def _sum(processes: Iterable[Process], kind: str) -> Total:
    total = Total()
    for process in processes:
        total = total.plus(process.total(kind))
    return total


def _over(samples: Sequence[Sample], value: Callable[[Sample], float | None]) -> float | None:
    """Return the mean of a value over time, None if no sample has it."""
    known = [(measured, sample.seconds) for sample in samples if (measured := value(sample)) is not None]
    spent = sum(seconds for _, seconds in known)
    return sum(amount * seconds for amount, seconds in known) / spent if spent else None


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _of(value: float | None, whole: float | None) -> float | None:
    return value / whole if value is not None and whole else None


def _part(spent: float, seconds: float) -> float:
    return spent / seconds if seconds > 0 else 0.0
