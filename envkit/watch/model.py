"""The record of an observed training (`envkit.watch/1`): measurements without a verdict."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from envkit.ground import canonical, foreign
from envkit.ground.errors import UsageError

SCHEMA = "envkit.watch/1"
WARM_UP = 5  # steps, for lazy modules, the search for algorithms and the workers' first batches
_LARGEST = 256 << 20  # limit in bytes for reading; the record of a week has a few MB


@dataclass(frozen=True, slots=True, kw_only=True)
class Total:
    """All events of one kind: their number, their seconds, and the sum of their amounts (bytes or CPU seconds)."""

    count: int = 0
    seconds: float = 0.0
    amount: float = 0.0
    longest_s: float = 0.0

    def plus(self, other: Total) -> Total:
        """Return the sum of both."""
        return Total(
            count=self.count + other.count,
            seconds=self.seconds + other.seconds,
            amount=self.amount + other.amount,
            longest_s=max(self.longest_s, other.longest_s),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """What the thread that trains was doing, at one place of the program; from looks at it, a few each second."""

    kind: str  # one of `doing.Doing`
    where: str  # file, line and function; "" if unknown
    count: int = 0  # looks
    seconds: float = 0.0  # that these looks stand for


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One process of the training, with its events between the end of the warm-up and its last step.

    A process without steps is a loader's worker (`totals` has its batches), or does not train.
    """

    pid: int
    parent: int
    program: str
    rank: int | None = None
    world_size: int = 1
    facts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    steps: int = 0  # after the warm-up
    seconds: float = 0.0  # duration of these steps
    begin_s: float | None = None  # of these steps, since the start of the training
    end_s: float | None = None
    unit: str = "step"  # or "batch", without optimizer steps
    totals: Mapping[str, Total] = field(default_factory=dict)
    lost: int = 0  # events that were overwritten before they were read
    ddp_passes: int = 0
    aside_s: float = 0.0  # seconds between these steps that are left out: batches without training (evaluation)
    activities: tuple[Activity, ...] = ()  # within these steps; without steps, all
    after: Mapping[str, Total] = field(default_factory=dict)  # events since the last step
    after_activities: tuple[Activity, ...] = ()

    def total(self, kind: str) -> Total:
        """Return the total of a kind, such as `next` or `copy.pinned`; all zero without events."""
        return self.totals.get(kind, Total())

    def fact(self, group: str, name: str) -> Any:
        """Return a fact that the process recorded, None if it did not."""
        return self.facts.get(group, {}).get(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One GPU at one moment; values that the driver does not report are None."""

    index: int
    util: float | None = None  # percent of the time in which any kernel ran
    memory_util: float | None = None  # percent of the time in which its memory was read or written
    memory_used: int | None = None  # bytes
    sm_mhz: int | None = None
    watts: float | None = None
    celsius: int | None = None
    events: tuple[str, ...] = ()  # reasons for a lower clock
    rx_mb_per_s: float | None = None  # over PCIe, to the GPU
    gen: int | None = None
    width: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The machine in the `seconds` up to `at_s` since the start; values that the kernel does not report are None."""

    at_s: float
    seconds: float
    processes: int = 0
    cpus: float = 0.0  # CPUs that the training kept busy
    main_cpus: float = 0.0  # the same for the main threads of its ranks, mean
    allowed: int | None = None  # CPUs on which at least one process of the training may run
    queued: float | None = None  # processes whose main thread waited for a CPU, mean
    main_queued: float | None = None  # share of the time in which these waited for a CPU, mean
    throttled: float | None = None  # share of the time in which a quota stopped the training
    pressure_cpu: float | None = None  # share of the time in which any process of the machine waited for a CPU
    pressure_io: float | None = None
    pressure_memory: float | None = None
    read_mb_per_s: float | None = None  # from disks
    major_faults_per_s: float = 0.0
    resident_bytes: int = 0
    cached_bytes: int | None = None  # page cache of the machine
    available_bytes: int | None = None
    shm_used_bytes: int | None = None
    gpus: tuple[Card, ...] = ()
    waiting: float | None = None  # share of the time in which ranks waited for batches, from their events
    steps: float | None = None  # of one rank, in these seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The machine of the training."""

    cpus: float  # CPUs that the training may use at once
    logical_cpus: int
    memory_bytes: int | None = None
    shm_bytes: int | None = None
    numa_nodes: int = 1
    bf16_cpu: bool = False  # the processor multiplies bf16 in hardware
    gpus: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One observed training."""

    command: tuple[str, ...]
    started: str  # UTC
    seconds: float
    exit_code: int | None  # None: it was observed from outside and may still be running
    injected: bool
    machine: Machine
    processes: tuple[Process, ...] = ()
    samples: tuple[Sample, ...] = ()
    version: str = ""
    image: str | None = None  # the image that it ran in; process IDs are then those of the container
    unread: tuple[tuple[str, str], ...] = ()  # files of the job that were not read, or not to their end, and why

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready tree."""
        return {"schema": SCHEMA, **asdict(self)}

    @property
    def ranks(self) -> tuple[Process, ...]:
        """The processes that train, by rank."""
        training = [process for process in self.processes if process.steps > 0]
        return tuple(sorted(training, key=lambda process: (process.rank or 0, process.pid)))

    def workers_of(self, process: Process) -> tuple[Process, ...]:
        """Return the workers of a process, of the loader that it waits for longest."""
        loader = process.fact("loader", "number")
        below = (worker for worker in self.processes if worker.parent == process.pid and worker.steps == 0)
        # Workers without a loader's number (0: beyond the most that a process numbers) count for every loader.
        return tuple(worker for worker in below if (worker.fact("process", "loader") or loader) == loader)


def gpu_id(uuid: str | None) -> str | None:
    """Return an ID for a GPU in records: a hash of its UUID, which itself is not recorded.

    torch omits the prefix `GPU-` that the driver writes.
    """
    plain = (uuid or "").lower().removeprefix("gpu-")
    return hashlib.sha256(plain.encode()).hexdigest()[:12] if plain else None


def read(path: Path) -> Record:
    """Read the record that `envkit watch -o FILE` wrote.

    Raises:
        UsageError: the file cannot be read or is not a record.
    """
    raw = foreign.read(path, _LARGEST)
    hint = "envkit watch -o FILE -- COMMAND writes a record"
    try:
        tree = canonical.parse(raw)
        if not isinstance(tree, dict) or tree.get("schema") != SCHEMA:
            raise UsageError(f"{path} is not a record of `envkit watch` (schema {SCHEMA})", hint=hint)
        return _record(tree)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise UsageError(f"{path} is not a record of `envkit watch`: {error}", hint=hint) from error


def _record(tree: Mapping[str, Any]) -> Record:
    machine = dict(tree["machine"])
    return Record(
        command=tuple(map(str, tree["command"])),
        started=str(tree["started"]),
        seconds=float(tree["seconds"]),
        exit_code=tree["exit_code"],
        injected=bool(tree["injected"]),
        machine=Machine(**(machine | {"gpus": tuple(machine.get("gpus", ()))})),
        processes=tuple(map(_process, tree["processes"])),
        samples=tuple(map(_sample, tree["samples"])),
        version=str(tree["version"]),
        image=tree.get("image"),
        unread=tuple((str(file), str(reason)) for file, reason in tree.get("unread", ())),
    )


def _process(tree: Mapping[str, Any]) -> Process:
    # Records of earlier versions do not have all of these.
    totals = {
        name: {str(kind): Total(**total) for kind, total in tree.get(name, {}).items()} for name in ("totals", "after")
    }
    activities = {
        name: tuple(Activity(**one) for one in tree.get(name, ())) for name in ("activities", "after_activities")
    }
    return Process(**{**tree, **totals, **activities})


def _sample(tree: Mapping[str, Any]) -> Sample:
    cards = tuple(Card(**{**card, "events": tuple(card["events"])}) for card in tree["gpus"])
    return Sample(**{**tree, "gpus": cards})
