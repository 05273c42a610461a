"""Find single changes of the machines that save an image, by solving the changed fleet again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from envkit.cover.candidates import Fitting, driver_of, fitting, row_of, sure_first
from envkit.cover.explain import thresholds
from envkit.cover.hosts import HostClass
from envkit.cover.model import Saving
from envkit.cover.solve import size_of_cover
from envkit.facts.model import Build
from envkit.ground.versions import key
from envkit.resolve.rules import Sieve, fits


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Classes of machines with the builds that run on each. In bit masks, bit n stands for class n."""

    classes: tuple[HostClass, ...]
    sieves: tuple[Sieve, ...]
    rows: tuple[Fitting, ...]
    universe: int  # mask of the classes that at least one build runs on

    @property
    def masks(self) -> tuple[int, ...]:
        """The distinct masks of the builds."""
        return tuple(dict.fromkeys(row.mask for row in self.rows))

    def mask(self, build: Build) -> int:
        """Return the mask of a build's classes."""
        return next((row.mask for row in self.rows if row.build is build), 0)


def savings(fleet: Fleet, size: int, together: Sequence[tuple[int, ...]]) -> tuple[Saving, ...]:
    """Return the changes after which fewer than `size` images are enough: newer drivers first, then removals.

    Args:
        fleet: the machines.
        size: the number of images now.
        together: for each image, the positions of the classes that only it serves; if there are several, a newer driver
            on all of them is tried, too.
    """
    single: list[Saving] = []
    removals: list[Saving] = []
    for position in _positions(fleet.universe):
        images = size_of_cover(fleet.masks, fleet.universe & ~(1 << position))
        if images is None or images >= size:  # a newer driver cannot save more than removing the machines
            continue
        single += _driver(fleet, (position,), size)
        removals.append(Saving(hosts=(fleet.classes[position],), driver=None, images=images))
    tried = [saving.hosts for saving in single]
    joint = [
        saving
        for positions in dict.fromkeys(together)
        if len(positions) > 1
        for saving in _driver(fleet, positions, size)
        if saving.hosts not in tried
    ]
    return (*_sorted(single), *_sorted(joint), *_sorted(removals))


def _driver(fleet: Fleet, positions: tuple[int, ...], size: int) -> Iterator[Saving]:
    """Yield the oldest driver version that saves an image when the given classes with older drivers get it."""
    for version in thresholds([fleet.classes[position] for position in positions], fleet.sieves[0].index):
        raised = tuple(position for position in positions if key(fleet.classes[position].driver) < key(version))
        images = size_of_cover(_masks(fleet, raised, version), fleet.universe)
        if images is not None and images < size:
            yield Saving(hosts=tuple(fleet.classes[position] for position in raised), driver=version, images=images)
            return


def _masks(fleet: Fleet, raised: tuple[int, ...], version: str) -> tuple[int, ...]:
    """Return the distinct masks of the builds when some classes have another driver."""
    sieves = {position: driver_of(fleet.sieves[position], version) for position in raised}
    keep = ~sum(1 << position for position in raised)
    # By identity, because the hash of a Build goes through all of its fields.
    before = {id(row.build): row.mask & keep for row in fleet.rows}
    rows = [
        row_of(
            build,
            before.get(id(build), 0) | sum(1 << position for position, sieve in sieves.items() if fits(build, sieve)),
            fleet.sieves,
        )
        for build in fleet.sieves[0].index.facts.builds
    ]
    return tuple(dict.fromkeys(row.mask for row in sure_first(rows)))


def _positions(mask: int) -> list[int]:
    return [position for position in range(mask.bit_length()) if mask >> position & 1]


def _sorted(changes: Sequence[Saving]) -> list[Saving]:
    return sorted(changes, key=lambda change: (change.images, sum(row.count for row in change.hosts)))


def fleet_of(classes: tuple[HostClass, ...], sieves: tuple[Sieve, ...]) -> Fleet:
    """Return the fleet with the builds that run on each class."""
    rows = fitting(sieves, sieves[0].index)
    universe = 0
    for row in rows:
        universe |= row.mask
    return Fleet(classes=classes, sieves=sieves, rows=rows, universe=universe)
