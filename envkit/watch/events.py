"""Totals of the events of a training's processes, collected while it runs, so that a long training stays small."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from envkit.ground.errors import EnvkitError
from envkit.watch.doing import Thread
from envkit.watch.family import Family
from envkit.watch.files import Event, Folder, Name
from envkit.watch.injected import envkit_watch_stream as stream
from envkit.watch.model import WARM_UP, Activity, Process, Total, gpu_id
from envkit.watch.stacks import Layout

_WAIT = "wait."  # prefix of names; the number of a loader follows
_AT = "at."  # the same; what a thread was doing and where follow
_MOST_PLACES = 100  # of one process; others have no name
_ASKED = 50  # looks for a layout that a process did not write
_HIDDEN = stream.PINNED | stream.NON_BLOCKING | stream.SIDE
_READ_AHEAD = 1  # batches
_NAMED = 20  # files that are named because they were not read
_DIGITS = 6  # of a rank
_KINDS = {
    stream.NEXT: "next",
    stream.ITER: "iter",
    stream.FETCH: "fetch",
    stream.COPY: "copy",
    stream.COPY_DEVICE: "copy_device",
    stream.BACKWARD: "backward",
    stream.STEP: "optimizer",
    stream.COLLECTIVE: "collective",
    stream.COLLECTIVE_DEVICE: "collective_device",
    stream.DDP: "ddp",
    stream.COMPILE: "compile",
    stream.ALLOCATOR: "allocator",
    stream.SYNC: "sync",
}


@dataclass(slots=True)
class Steady:
    """Totals between the end of the warm-up and the last step. Events after that step are in `since`."""

    totals: dict[str, Total] = field(default_factory=dict)
    since: dict[str, Total] = field(default_factory=dict)
    steps: int = 0
    begin: float | None = None
    end: float | None = None
    aside: float = 0.0  # seconds of this time that are left out: evaluation
    aside_since: float = 0.0

    def add(self, names: Iterable[str], event: Total) -> None:
        """Count an event."""
        for name in names:
            self.since[name] = self.since.get(name, Total()).plus(event)

    def step(self, at: float) -> None:
        """End a step."""
        self.steps += 1
        if self.steps > WARM_UP:
            for name, total in self.since.items():
                self.totals[name] = self.totals.get(name, Total()).plus(total)
            self.end = at
            self.aside += self.aside_since
        else:
            self.begin = at
        self.since, self.aside_since = {}, 0.0


@dataclass(slots=True)
class Pass:
    """Batches of one loader without training in between, and the state before the first of them."""

    since: dict[str, Total]
    aside_since: float
    begin: float
    trained: int
    batches: int


@dataclass(slots=True)
class Source:
    """The files of one process."""

    pid: int
    ring: Name | None = None  # None: its process is gone and all events are read, it is damaged, or there never was one
    number: int = 1
    is_cut: bool = False  # at the last look, its ring was not whole
    lost: int = 0
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    by_step: Steady = field(default_factory=Steady)
    by_batch: Steady = field(default_factory=Steady)
    passes: dict[int, Pass] = field(default_factory=dict)  # by loader
    trained: int = 0  # backward passes and optimizer steps
    whole: dict[str, Total] = field(default_factory=dict)
    retries: float | None = None
    waited: float = 0.0  # seconds in `next` since the last call of `Collector.since_last`
    stepped: int = 0
    thread: Thread | None = None
    asked: int = 0
    places: set[str] = field(default_factory=set)


class Collector:
    """Reader of the streams in a folder; `collect` has to be called before a ring is full.

    Args:
        folder: the folder, opened before the training began: its processes could remove it at once.
        start: when the training began, on the clock.
        family: the processes of the training.
        clock: a monotonic clock in seconds.
    """

    def __init__(
        self, folder: Folder, start: float, family: Family, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._folder, self._start, self._family, self._clock = folder, start, family, clock
        self._sources: dict[str, Source] = {}  # by the stem of their files

    @property
    def unread(self) -> tuple[tuple[str, str], ...]:
        """Files that were not read, or not to their end, with the reason; how many more there are is the last."""
        every = sorted(self._folder.lost.items())
        more = [("others", f"{len(every) - _NAMED} files")] if len(every) > _NAMED else []
        return (*every[:_NAMED], *more)

    def finish(self, seconds: float) -> None:
        """Read what is left after the training's end, for at most `seconds`; what that leaves out is lost."""
        for ring in self.collect(seconds):
            self._folder.lose(ring.text, "there was no time to read its end")

    def collect(self, seconds: float | None = None) -> list[Name]:
        """Read new events, for at most `seconds`; return the rings that are left, which come first in the next call."""
        until = None if seconds is None else self._clock() + seconds
        for name in self._folder.names("ring"):
            self._sources.setdefault(name.stem, Source(name.pid, name))
        self._family.update()  # after the streams were listed, so that every writer that still runs is known
        left = []
        for stem, source in list(self._sources.items()):
            if source.ring is None:
                continue
            if until is not None and self._clock() >= until:
                left.append(source.ring)
                continue
            self._read(source, source.ring)
            self._sources[stem] = self._sources.pop(stem)
        return left

    def look(self) -> None:
        """Look at the threads that train: what they do, and where in the program."""
        for stem, source in self._sources.items():
            if source.ring is None or not (source.by_step.steps or source.by_batch.steps):
                continue
            if source.thread is None and source.asked < _ASKED:
                source.asked += 1
                source.thread = self._thread(stem, source.pid)
            look = None if source.thread is None else source.thread.look()
            if look is None:
                continue
            kind, where, seconds = look
            if where not in source.places and len(source.places) >= _MOST_PLACES:
                where = ""
            source.places.add(where)
            name, total = f"{_AT}{kind}.{where}", Total(count=1, seconds=seconds)
            source.whole[name] = source.whole.get(name, Total()).plus(total)
            for steady in (source.by_step, source.by_batch):
                steady.add((name,), total)

    def _thread(self, stem: str, pid: int) -> Thread | None:
        """Return the thread of a process that trains, None if the process did not say where its frames are."""
        here = self._family.here(pid)
        try:
            facts = self._folder.facts(Name(f"{stem}.facts", pid, "facts"))
        except (EnvkitError, OSError):  # reported when the facts are read at the end
            return None
        layout = Layout.of(facts.get("stack", {}))
        return None if here is None or layout is None else Thread(here, layout, self._clock)

    def since_last(self, seconds: float) -> tuple[float | None, float | None]:
        """Return means over the ranks since the last call: share of the time waiting for batches, and steps."""
        alive = [source for source in self._sources.values() if source.ring is not None]
        ranks = [source for source in alive if source.by_step.steps or source.by_batch.steps]
        if not ranks:
            return None, None
        waiting = sum(min(source.waited / seconds, 1.0) for source in ranks) / len(ranks)
        steps = sum(source.stepped for source in ranks) / len(ranks)
        for rank in ranks:
            rank.waited, rank.stepped = 0.0, 0
        return waiting, steps

    def ranks(self) -> list[int]:
        """Return the process IDs, on this machine, of the processes that train."""
        return self._here(source for source in self._sources.values() if source.by_step.steps)

    def pids(self) -> list[int]:
        """Return the process IDs, on this machine, of the processes that wrote events."""
        return self._here(self._sources.values())

    def processes(self, seconds: float | None = None) -> tuple[Process, ...]:
        """Return the totals and facts of every process, in the order of their streams.

        Args:
            seconds: the limit for reading facts; files that are left are not read.
        """
        until = None if seconds is None else self._clock() + seconds
        for source in self._sources.values():
            if source.ring is not None and source.is_cut:
                self._cut(source, source.ring)
        for kind in ("facts", "crash"):
            for name in self._folder.names(kind):
                if until is not None and self._clock() >= until:
                    self._folder.lose(name.text, "there was no time to read it")
                else:
                    self._note(name)
        return tuple(self._process(source) for _, source in sorted(self._sources.items()))

    def close(self) -> None:
        """Close the folder."""
        self._folder.close()

    def _read(self, source: Source, ring: Name) -> None:
        is_gone = self._family.is_gone(source.pid)  # checked before the last read, which then gets all events
        try:
            read = self._folder.events(ring, source.number)
        except (EnvkitError, OSError) as error:
            self._lose(ring, error)
            source.ring = None
            return
        source.is_cut, (events, lost) = read is None, read or ([], 0)
        source.number += lost + len(events)
        source.lost += lost
        for event in events:
            _count(source, event)
        if is_gone:  # freed early: loaders may start workers in every epoch, thousands in total
            if source.is_cut:
                self._cut(source, ring)
            source.ring = None
            self._folder.remove(ring)

    def _note(self, name: Name) -> None:
        """Read the facts or the traceback of a process."""
        try:
            if name.kind == "facts":
                found = self._folder.facts(name)
                self._sources.setdefault(name.stem, Source(name.pid)).facts = found
            elif died := self._folder.crash(name):
                own = (source for source in self._sources.values() if source.pid == name.pid)
                source = next(own, None) or self._sources.setdefault(name.stem, Source(name.pid))
                source.facts["crash"] = died
        except (EnvkitError, OSError) as error:
            self._lose(name, error)

    def _lose(self, name: Name, error: EnvkitError | OSError) -> None:
        reason = error.message if isinstance(error, EnvkitError) else (error.strerror or "cannot be read").lower()
        # The path is that of a private folder, which is gone when this is read.
        for place in (f"{self._folder.path / name.text}", name.text):
            reason = reason.removeprefix(place).lstrip(": ")
        self._folder.lose(name.text, reason)

    def _cut(self, source: Source, ring: Name) -> None:
        self._folder.lose(ring.text, f"its end is missing; {source.number - 1} events were read before")

    def _here(self, sources: Iterable[Source]) -> list[int]:
        pids = (self._family.here(source.pid) for source in sources if source.ring is not None)
        return [pid for pid in pids if pid is not None]

    def _process(self, source: Source) -> Process:
        own = source.facts.get("process", {})
        # Without optimizer steps, a batch is the unit. A worker has neither.
        steady, unit = (source.by_step, "step") if source.by_step.steps else (source.by_batch, "batch")
        # A training that ends within the warm-up has no steps to judge.
        counted = steady.steps - WARM_UP if steady.end is not None else 0
        seconds = (
            steady.end - steady.begin - steady.aside if steady.end is not None and steady.begin is not None else 0.0
        )
        totals, activities = _split(steady.totals if counted else source.whole)
        after, after_activities = _split(steady.since if counted else {})
        facts = {name: fields for name, fields in source.facts.items() if name not in ("process", "stack")}
        facts["process"] = {name: own.get(name) for name in ("omp_num_threads", "loader")}
        if "training" in facts:
            facts["training"] = facts["training"] | {"gpu": gpu_id(facts["training"].get("gpu"))}
        slowest = facts.get(f"loader.{_slowest(totals)}")
        return Process(
            pid=own.get("pid") or source.pid,
            parent=own.get("ppid") or 0,
            program=own.get("program") or "",
            rank=_whole(own.get("RANK")),
            world_size=_whole(own.get("WORLD_SIZE")) or _whole(source.facts.get("ddp", {}).get("world_size")) or 1,
            facts=facts | ({} if slowest is None else {"loader": slowest | {"number": _slowest(totals)}}),
            steps=counted,
            seconds=max(0.0, seconds),
            begin_s=None if not counted or steady.begin is None else steady.begin - self._start,
            end_s=None if not counted or steady.end is None else steady.end - self._start,
            unit=unit,
            totals=totals,
            lost=source.lost,
            ddp_passes=totals.get("ddp", Total()).count,
            aside_s=steady.aside,
            activities=activities,
            after=after,
            after_activities=after_activities,
        )


def _split(totals: Mapping[str, Total]) -> tuple[dict[str, Total], tuple[Activity, ...]]:
    """Return the totals of events, and what a thread was doing, the most seconds first."""
    events = {name: total for name, total in totals.items() if not name.startswith(_AT)}
    looks = [(name.removeprefix(_AT), total) for name, total in totals.items() if name.startswith(_AT)]
    found = [
        Activity(kind=kind, where=where, count=total.count, seconds=total.seconds)
        for name, total in looks
        for kind, _, where in [name.partition(".")]
    ]
    return events, tuple(sorted(found, key=lambda one: (-one.seconds, one.kind, one.where)))


def _count(source: Source, event: Event) -> None:
    kind, flags, begin, seconds, amount, which = event
    name = _KINDS.get(kind)
    if name is None:
        return
    names = _names(name, kind, flags)
    if kind in (stream.NEXT, stream.ITER) and which:
        names.append(f"{_WAIT}{which}")
    if kind == stream.ALLOCATOR:  # a counter since the start, of which the growth is used
        grown = 0.0 if source.retries is None else amount - source.retries
        source.retries, amount = amount, grown
    total = Total(count=1, seconds=seconds, amount=amount, longest_s=seconds)
    if kind in (stream.BACKWARD, stream.STEP):
        source.trained += 1
    is_aside = kind in (stream.NEXT, stream.ITER) and _set_aside(source, event)
    for steady in (source.by_batch,) if is_aside else (source.by_step, source.by_batch):
        steady.add(names, total)
    for key in names:
        source.whole[key] = source.whole.get(key, Total()).plus(total)
    if kind in (stream.NEXT, stream.ITER):
        source.waited += seconds
    if kind == stream.STEP:
        source.stepped += 1
        source.by_step.step(begin + seconds)
    elif kind == stream.NEXT:
        source.by_batch.step(begin + seconds)


def _set_aside(source: Source, event: Event) -> bool:
    """Leave batches that are not for training (an evaluation) out of the step; return whether the event is left out.

    These are batches of one loader without a backward pass between them. A training may read one batch ahead, so
    only the third batch in a row shows an evaluation; the time since the first one is then left out.
    """
    kind, flags, begin, seconds, _, which = event
    steady, current_pass = source.by_step, source.passes.get(which)
    if kind == stream.ITER or current_pass is None or current_pass.trained != source.trained:
        source.passes[which] = Pass(
            since=dict(steady.since),
            aside_since=steady.aside_since,
            begin=begin,
            trained=source.trained,
            batches=int(kind == stream.NEXT),
        )
        return False
    current_pass.batches += 1
    # If no backward pass was ever seen, the probes do not see this training's, so every batch counts.
    if current_pass.batches <= _READ_AHEAD + 1 or "backward" not in source.whole:
        return False
    steady.since, steady.aside_since = dict(current_pass.since), current_pass.aside_since + begin - current_pass.begin
    # The state of a pass that began later includes events that are left out now.
    source.passes = {loader: other for loader, other in source.passes.items() if other.begin <= current_pass.begin}
    if flags & stream.END:
        steady.aside_since += seconds
        return True
    return False


def _slowest(totals: Mapping[str, Total]) -> int:
    """Return the number of the loader with the longest total wait, 0 if no loader has a number."""
    waits = {name: total.seconds for name, total in totals.items() if name.startswith(_WAIT)}
    return int(max(waits, key=lambda name: waits[name]).removeprefix(_WAIT)) if waits else 0


def _names(name: str, kind: int, flags: int) -> list[str]:
    """Return the names of the totals for an event, from its kind and its flags."""
    names = [name]
    if kind == stream.NEXT:
        names += ["next.edge"] if flags & stream.EDGE else []
    if kind in (stream.COPY, stream.COPY_DEVICE):
        if flags & _HIDDEN == _HIDDEN:  # it overlaps with the default stream
            return [f"{name}.side"]
        names.append(f"{name}.{'pinned' if flags & stream.PINNED else 'pageable'}")
        names += [f"{name}.blocking"] if not flags & stream.NON_BLOCKING else []
    if kind == stream.COMPILE and flags & stream.WITHIN:
        names.append("compile.within")
    if kind == stream.STEP:
        names += ["step.autocast"] if flags & stream.AUTOCAST else []
        names += ["step.known"] if flags & stream.DRAIN_KNOWN else []
        names += ["step.drained"] if flags & stream.DRAINED else []
    return names


def _whole(value: str | int | None) -> int | None:
    """Return a rank or a number of ranks, None if it is none."""
    text = str(value)
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _DIGITS else None
