"""The numbers for a judgment, computed from a record: shares of a step, rates and means. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from envkit.watch.model import Process, Record, Sample, Total

# GB/s by generation that copies reach on a PCIe lane: 80 % of its rate, as from page-locked memory.
_LANE_GB_PER_S = {1: 0.2, 2: 0.4, 3: 0.8, 4: 1.6, 5: 3.2, 6: 6.4}
# Clock events that slow a GPU down. A power cap alone is the normal state of a 70 W card.
SLOWING = ("hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake")
POWER_CAP = "sw_power_cap"
_LEAST_SAMPLES = 15  # a third of fewer samples is not significant
_WHOLE = 0.9  # share of the step from which on a copy counts as taking the whole step
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
    bytes_reduced: float
    imbalance: float  # (slowest - fastest) / fastest rank, without the time in collectives
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
    main_cpus: float | None
    queued: float | None
    throttled: float | None
    pressure_memory: float | None
    faults: float
    read_mb_per_s: float | None
    shm: float | None  # share of /dev/shm in use
    cards: Cards

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
        """The share that is left when nothing waits."""
        return max(0.0, 1 - self.loading.share - self.copying.share - self.communication)

    @property
    def parts(self) -> tuple[tuple[str, float], ...]:
        """The parts of a step with their shares, which add up to 1."""
        optimizer = min(self.optimizer, self.computing)
        named = [
            ("waiting for data", self.loading.share),
            ("copies to the GPU", self.copying.share),
            ("communication", self.communication),
            ("optimizer", optimizer),
            ("computing", self.computing - optimizer),
        ]
        return tuple((name, share) for name, share in named if share > 0 or name == "computing")


def measure(record: Record) -> Measures:
    """Return the numbers of a record; shares are means over its ranks."""
    ranks = record.ranks
    steps, seconds = sum(process.steps for process in ranks), sum(process.seconds for process in ranks)
    samples = steady(record)
    loading = _loading(record, ranks, steps, seconds, _late(samples))
    room = max(0.0, 1 - loading.share)
    copying = _copying(ranks, steps, seconds, room)
    first = ranks[0] if ranks else None
    known = _sum(ranks, "step.known").count
    return Measures(
        unit=first.unit if first else "step",
        ranks=max(len(ranks), 1),
        steps=steps // max(len(ranks), 1),
        seconds=seconds / max(len(ranks), 1),
        step_s=seconds / steps if steps else 0.0,
        loading=loading,
        copying=copying,
        communication=min(_communication(ranks, seconds), max(0.0, room - copying.share)),
        bytes_reduced=float(first.fact("training", "parameter_bytes") or 0) if first else 0.0,
        imbalance=_imbalance(ranks),
        optimizer=_part(_sum(ranks, "optimizer").seconds, seconds),
        backward=_part(_sum(ranks, "backward").seconds, seconds),
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
        main_cpus=_over(samples, lambda sample: sample.main_cpus if sample.processes else None),
        queued=_over(samples, lambda sample: sample.main_queued),
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


def _imbalance(ranks: Sequence[Process]) -> float:
    """Return (slowest - fastest) / fastest rank, without the time in collectives; 0 for a single rank."""
    own = []
    for process in ranks:
        passes = process.total("ddp")
        waits = process.total("collective").seconds + (
            passes.amount / passes.count * process.steps if passes.count else 0.0
        )
        own.append((process.seconds - waits) / process.steps)
    return max(own) / min(own) - 1 if len(own) > 1 and min(own) > 0 else 0.0


def _cards(record: Record, samples: Sequence[Sample]) -> Cards:
    every = [card for sample in samples for card in sample.gpus]
    # On a shared machine other programs use other GPUs, so only those of the ranks count if they are known.
    used = _of_ranks(record) or {card.index for card in every if (card.util or 0) > _IDLE}
    own = [card for card in every if card.index in used] or every
    busy = [card for card in own if (card.util or 0) > _IDLE]
    slowed = [card for card in busy if set(card.events) & set(SLOWING)]
    capped = [card for card in busy if card.events == (POWER_CAP,)]
    facts = dict(enumerate(record.machine.gpus))
    clocks = [_of(card.sm_mhz, facts.get(card.index, {}).get("max_sm_mhz")) for card in busy]
    totals = [_of(card.memory_used, (facts.get(card.index, {}).get("mem_mib") or 0) * 2**20) for card in own]
    links = [card.width * _LANE_GB_PER_S[card.gen] * 1e9 for card in own if card.gen in _LANE_GB_PER_S and card.width]
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
