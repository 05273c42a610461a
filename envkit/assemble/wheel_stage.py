"""The wheels of a lock into layers: from the cache, else transcoded as soon as their downloads are there."""

from __future__ import annotations

import contextlib
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

from envkit.assemble import cache as layer_cache
from envkit.assemble import clobbers, pool
from envkit.assemble.compression import GZIP, recipe, writer
from envkit.assemble.crew import Crew, Tally
from envkit.assemble.groups import Package, groups
from envkit.assemble.model import Scheme
from envkit.assemble.stack import write_trees
from envkit.assemble.wheel import open_wheel
from envkit.assemble.wheelhouse import Wheelhouse, item
from envkit.ground.errors import TimeLimitError
from envkit.ground.progress import counted
from envkit.image.spec import MTIME, LayerDigest
from envkit.registry.download import fetch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from envkit.assemble.cache import Cached, LayerCache
    from envkit.assemble.model import Tree
    from envkit.ground.progress import Reporter
    from envkit.lock.model import Wheel
    from envkit.lock.places import Places
    from envkit.registry.transport import Transport

_THREADED_FROM = 64 << 20  # bytes; a smaller layer is done before a second core helps
_USUAL_RATIO = 2  # of unpacked to packed; a guess for the bar, until a wheel is opened

Group = tuple["Wheel", ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A layer of wheels, with its name in the cache."""

    wheels: Group
    key: str
    cached: Cached


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelStage:
    """What the work on wheels needs to know."""

    cache: LayerCache
    downloads: Path  # folder of files by SHA-256
    own: Path | None  # folder of wheels of the user's
    places: Places
    transport: Transport
    reporter: Reporter
    scheme: Scheme
    deadline: float | None = None  # on the monotonic clock
    watch: Callable[[], None] | None = None  # raises when other work has failed
    offline: bool = False
    anew: bool = False  # take nothing from the cache
    compression: str = GZIP
    below: Callable[[], Sequence[tuple[str, tuple[str, ...]]]] = tuple  # packages below, and the paths that they hold

    def layers(self, wheels: Sequence[Wheel], budget: int) -> tuple[Made, ...]:
        """The layers from the bottom up, at most `budget`.

        Raises:
            IntegrityError: a wheel is not the lock's, or is not sound.
            EngineError: an index refuses.
            EnvironmentProblem: the disk is full, or an index is away.
            TimeLimitError: the deadline is over, or an index is silent.
        """
        if not wheels:
            return ()
        by_name = {wheel.name: wheel for wheel in wheels}
        packages = [Package(name=wheel.name, size=wheel.size) for wheel in wheels]
        jobs: list[Group] = [tuple(by_name[one.name] for one in group) for group in groups(packages, budget)]
        kept = self._kept(jobs)
        found = kept | self._all([job for job in jobs if job not in kept])
        self._tell([wheel for job in jobs for wheel in job])
        return tuple(Made(wheels=job, key=self.key(job), cached=found[job]) for job in jobs)

    def key(self, job: Group) -> str:
        """The name of a layer in the cache."""
        return layer_cache.key(
            tuple(wheel.sha256 for wheel in job), self.scheme, mtime=MTIME, recipe=recipe(self.compression)
        )

    def note(self, wheel: Wheel, tree: Tree) -> None:
        """Keep in mind what a wheel holds, for builds that find its layer in the cache."""
        clobbers.write(self._listings, self.key((wheel,)), tree)

    @property
    def _listings(self) -> Path:
        return self.downloads.parent / "listings"

    def _tell(self, wheels: Sequence[Wheel]) -> None:
        """Name the packages that hold the same files."""
        found: list[tuple[str, clobbers.Contents]] = [(name, dict.fromkeys(paths)) for name, paths in self.below()]
        for wheel in wheels:
            listing = clobbers.read(self._listings, self.key((wheel,)))
            if listing is not None:
                found.append((f"{wheel.name} {wheel.version}", listing))
        clobbers.tell(found, self.reporter)

    def _kept(self, jobs: Sequence[Group]) -> dict[Group, Cached]:
        if self.anew:
            return {}
        with ThreadPoolExecutor(pool.cores(), thread_name_prefix="envkit-cache") as looking:
            found = looking.map(lambda job: self.cache.get(self.key(job)), jobs)
            return {job: cached for job, cached in zip(jobs, found, strict=True) if cached is not None}

    def _all(self, jobs: Sequence[Group]) -> dict[Group, Cached]:
        """Make what no other build is making, then take over what others made meanwhile."""
        done: dict[Group, Cached] = {}
        left = list(jobs)
        while left:
            with self.cache.flights.free(map(self.key, left)) as free:
                mine = [job for job in left if self.key(job) in free]
                done |= self._kept(mine)
                done |= self._make([job for job in mine if job not in done])
            left = [job for job in left if job not in done]
            if left:
                self.reporter.step(f"wait for {counted(len(left), 'layer')} of wheels that another build makes")
                self.cache.flights.wait(self.key(left[0]), self._check)
                done |= self._kept(left)
                left = [job for job in left if job not in done]
        return done

    def _check(self) -> None:
        """Raise what ends work that is in vain."""
        if self.watch is not None:
            self.watch()
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise TimeLimitError("the build reached its time limit", hint="--timeout SECONDS gives it more")

    def _make(self, jobs: Sequence[Group]) -> dict[Group, Cached]:
        if not jobs:
            return {}
        tally = Tally(self.reporter, self.deadline, self.watch)
        wheels = [wheel for job in jobs for wheel in job]
        with Wheelhouse(self.downloads, self.own) as house:
            if self.own is not None:
                self.reporter.step(f"look for wheels in {self.own}")
            house.look(wheels)
            lacking = [wheel for wheel in wheels if not house.has(wheel)]
            tally.expect(sum(wheel.size * _USUAL_RATIO for wheel in wheels))
            work = _Work(self, house, tally)
            with Crew(work.layer, tally) as crew:
                waiting = sorted(jobs, key=lambda job: -_size(job))
                for job in waiting:
                    if all(map(house.has, job)):
                        crew.give(job)
                if lacking:
                    self._download(lacking, house, crew, [job for job in waiting if not all(map(house.has, job))])
                self.reporter.step(f"assemble {counted(len(jobs), 'layer')} of {counted(len(wheels), 'wheel')}")
                tally.speak()
                return crew.results()

    def _download(
        self, wheels: Sequence[Wheel], house: Wheelhouse, crew: Crew[Group, Cached], waiting: list[Group]
    ) -> None:
        """Fetch wheels, and give each layer to the crew once all of its wheels are there."""
        by_digest = {wheel.sha256: wheel for wheel in wheels}
        total = sum(wheel.size for wheel in wheels)
        self.reporter.step(f"download {counted(len(wheels), 'wheel')} ({total / 1e6:.0f} MB)")

        def heard(done: int, total: int) -> None:
            crew.check()
            self.reporter.advance(done, total)

        def arrived(sha256: str) -> None:
            house.arrived(by_digest[sha256])
            for job in [one for one in waiting if all(map(house.has, one))]:
                waiting.remove(job)
                crew.give(job)

        items = [item(wheel, self.places, self.transport) for wheel in wheels]
        policy = self.transport.policy
        fetch(items, self.downloads, policy, heard, offline=self.offline, on_file=arrived, check=crew.check)


@dataclass(frozen=True, slots=True)
class _Work:
    stage: WheelStage
    house: Wheelhouse
    tally: Tally

    def layer(self, job: Group) -> Cached:
        """Make the layer of some wheels and drop their downloads."""
        stage = self.stage

        def write(sink: IO[bytes]) -> LayerDigest:
            threaded = pool.cores() > 1 and _size(job) >= _THREADED_FROM
            with (
                contextlib.ExitStack() as opened,
                ThreadPoolExecutor(pool.cores(), thread_name_prefix="envkit-pack") as packers,
                writer(stage.compression)(
                    sink, mtime=MTIME, threaded=threaded, on_bytes=self.tally.add, pool=packers if threaded else None
                ) as layer,
            ):
                files = [self.house.file(wheel) for wheel in job]
                trees = [opened.enter_context(open_wheel(file.path, stage.scheme)) for file in files]
                for wheel, tree in zip(job, trees, strict=True):
                    stage.note(wheel, tree)
                unpacked = sum(file.size for tree in trees for file in tree.files)
                self.tally.expect(unpacked - _size(job) * _USUAL_RATIO)
                write_trees(trees, layer)
                return layer.close()

        made = stage.cache.make(stage.key(job), write)
        for wheel in job:
            self.house.forget(wheel)
        return made


def _size(job: Group) -> int:
    return sum(wheel.size for wheel in job)
