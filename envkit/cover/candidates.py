"""Determine by the resolver's rules which builds run on which classes of machines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_

from envkit.cover.hosts import HostClass
from envkit.facts.model import Build, Facts
from envkit.ground.versions import key, parse_constraint
from envkit.resolve.choice import choose, python
from envkit.resolve.gpus import Card, find
from envkit.resolve.index import SOURCE_ORDER, Index, unsure
from envkit.resolve.model import Request
from envkit.resolve.rules import Sieve, fits, scoped
from envkit.resolve.wanted import wanted


@dataclass(frozen=True, slots=True)
class Fitting:
    """A build and the mask of the classes that it runs on: bit n stands for class n."""

    build: Build
    mask: int
    doubted: int = 0  # those of them for which its data are incomplete


def request_for(request: Request, hosts: HostClass, index: Index) -> Request:
    """Return the request with the GPUs, driver and platform of one class."""
    return replace(request, gpus=typed(hosts.cards, index.facts), driver=hosts.driver, platform=hosts.platform)


def typed(cards: Sequence[Card], facts: Facts) -> tuple[str, ...]:
    """Return values for `--gpu`: the names from the inventory if the facts have them, else compute capabilities."""
    return tuple(card.typed if find(card.typed, facts.gpus) == card.gpu else card.sm for card in cards)


def sieve_for(request: Request, hosts: HostClass, index: Index) -> Sieve:
    """Return the rules for one class of machines."""
    # Without the GPUs, which are set below: `wanted` may not know their names in the inventory.
    base = wanted(replace(request, gpus=(), driver=hosts.driver, platform=hosts.platform), index.facts)
    return Sieve(scoped(replace(base, cards=hosts.cards), index), index)


def fitting(sieves: Sequence[Sieve], index: Index) -> tuple[Fitting, ...]:
    """Return the builds that run on at least one class, in the order of the facts."""
    return sure_first(
        [
            row_of(build, sum(1 << position for position, sieve in enumerate(sieves) if fits(build, sieve)), sieves)
            for build in index.facts.builds
        ]
    )


def row_of(build: Build, mask: int, sieves: Sequence[Sieve]) -> Fitting:
    """Return the row of a build that runs on the classes in `mask`, with those for which that is only a guess."""
    guessed = sum(
        1 << position for position, sieve in enumerate(sieves) if mask >> position & 1 and sieve.guessed(build)
    )
    return Fitting(build, mask, mask if unsure(build) else guessed)


def sure_first(rows: Sequence[Fitting]) -> tuple[Fitting, ...]:
    """Return the rows with at least one class; where a build's data are incomplete, it counts only if no other runs."""
    sure = reduce(or_, (row.mask & ~row.doubted for row in rows), 0)
    counted = (replace(row, mask=row.mask & ~(row.doubted & sure)) for row in rows)
    return tuple(row for row in counted if row.mask)


def cost(build: Build, mask: int, sieves: Sequence[Sieve]) -> tuple[int, ...]:
    """Return the disadvantages of a build, most important first; they are summed over the images of a cover.

    In order: inferred data, age of torch, classes whose driver does not run it natively, rank of the source, builds
    that upstream does not advertise.
    """
    index = sieves[0].index
    not_native = sum(
        1
        for position, sieve in enumerate(sieves)
        if mask >> position & 1 and sieve.modes.get(build.cuda or "") != "native"
    )
    return (
        int(unsure(build)),
        index.rank[build.torch],
        not_native,
        SOURCE_ORDER.index(build.source),
        int(not build.advertised),
    )


def best(builds: Sequence[Build], classes: Sequence[HostClass], request: Request, index: Index) -> tuple[Build, str]:
    """Return the build that the resolver prefers for several classes, and its Python.

    Args:
        builds: run on every class; at least one.
        classes: machines of one platform; the oldest driver decides what is native.
        request: the constraints.
        index: the facts.
    """
    oldest = min(classes, key=lambda hosts: key(hosts.driver))
    sieve = sieve_for(request, oldest, index)
    build = choose(list(builds), sieve).build
    return build, python(build, sieve)


def pinned(request: Request, build: Build, python: str) -> Request:
    """Return the request with exactly this build and Python."""
    return replace(
        request,
        torch=parse_constraint(f"=={build.torch}", "--torch"),
        cuda=parse_constraint(f"=={build.cuda}", "--cuda") if build.cuda else None,
        python=parse_constraint(f"=={python}", "--python"),
        source=build.source,
        platform=build.platform,
    )


def driver_of(sieve: Sieve, driver: str) -> Sieve:
    """Return the same rules for another driver."""
    return Sieve(replace(sieve.wanted, driver=driver), sieve.index)
