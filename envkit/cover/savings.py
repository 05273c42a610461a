"""Single changes of the machines that save an image; each is found by solving the changed fleet again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from envkit.cover.candidates import Fitting, driver_of, fitting, sure_first
from envkit.cover.explain import thresholds
from envkit.cover.hosts import HostClass
from envkit.cover.model import Saving
from envkit.cover.solve import size_of_cover
from envkit.facts.model import Build
from envkit.ground.versions import key
from envkit.resolve.rules import Sieve, fits


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Machines that something runs on, and what runs on each."""

    classes: tuple[HostClass, ...]
    sieves: tuple[Sieve, ...]
    rows: tuple[Fitting, ...]
    universe: int  # of the classes that are to be served

    @property
    def masks(self) -> tuple[int, ...]:
        """What builds cover, each set once."""
        return tuple(dict.fromkeys(row.mask for row in self.rows))

    def mask(self, build: Build) -> int:
        """The classes that a build is counted for."""
        return next((row.mask for row in self.rows if row.build is build), 0)


def savings(fleet: Fleet, size: int, together: Sequence[tuple[int, ...]]) -> tuple[Saving, ...]:
    """Changes that leave fewer than `size` images: newer drivers first, then machines to take away.

    Args:
        fleet: the machines.
        size: of their smallest cover.
        together: places of classes that only one image serves, for each image; where there are several, a newer driver
            on all of them is tried too.
    """
    single: list[Saving] = []
    removals: list[Saving] = []
    for position in _places(fleet.universe):
        left = size_of_cover(fleet.masks, fleet.universe & ~(1 << position))
        if left is None or left >= size:  # a newer driver can do no more than the machine's absence
            continue
        single += _driver(fleet, (position,), size)
        removals.append(Saving(hosts=(fleet.classes[position],), driver=None, images=left))
    tried = [saving.hosts for saving in single]
    joint = [
        saving
        for places in dict.fromkeys(together)
        if len(places) > 1
        for saving in _driver(fleet, places, size)
        if saving.hosts not in tried
    ]
    return (*_sorted(single), *_sorted(joint), *_sorted(removals))


def _driver(fleet: Fleet, places: tuple[int, ...], size: int) -> Iterator[Saving]:
    """The oldest driver that saves an image when it is put on every class of `places` that has an older one."""
    for version in thresholds([fleet.classes[position] for position in places], fleet.sieves[0].index):
        raised = tuple(position for position in places if key(fleet.classes[position].driver) < key(version))
        left = size_of_cover(_masks(fleet, raised, version), fleet.universe)
        if left is not None and left < size:
            yield Saving(hosts=tuple(fleet.classes[position] for position in raised), driver=version, images=left)
            return


def _masks(fleet: Fleet, raised: tuple[int, ...], version: str) -> tuple[int, ...]:
    """What builds cover when some classes have another driver."""
    sieves = {position: driver_of(fleet.sieves[position], version) for position in raised}
    keep = ~sum(1 << position for position in raised)
    before = {id(row.build): row.mask & keep for row in fleet.rows}
    rows = [
        Fitting(
            build,
            before.get(id(build), 0) | sum(1 << position for position, sieve in sieves.items() if fits(build, sieve)),
        )
        for build in fleet.sieves[0].index.facts.builds
    ]
    return tuple(dict.fromkeys(row.mask for row in sure_first(rows)))


def _places(mask: int) -> list[int]:
    return [position for position in range(mask.bit_length()) if mask >> position & 1]


def _sorted(changes: Sequence[Saving]) -> list[Saving]:
    return sorted(changes, key=lambda change: (change.images, sum(row.count for row in change.hosts)))


def fleet_of(classes: tuple[HostClass, ...], sieves: tuple[Sieve, ...]) -> Fleet:
    """The fleet, with what runs on each class worked out."""
    rows = fitting(sieves, sieves[0].index)
    universe = 0
    for row in rows:
        universe |= row.mask
    return Fleet(classes=classes, sieves=sieves, rows=rows, universe=universe)
