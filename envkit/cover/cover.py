"""Machines and constraints in, the fewest images out, each explained. Pure: no files, no network, no clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from envkit.cover.candidates import best, cost, pinned, request_for, sieve_for, typed
from envkit.cover.explain import forces, machine_fault
from envkit.cover.hosts import DEFAULT_PLATFORM, HostClass
from envkit.cover.model import Cover, Force, Image, Served, Unserved
from envkit.cover.savings import Fleet, fleet_of, savings
from envkit.cover.solve import Candidate, minimum_cover
from envkit.facts.model import Build, Facts
from envkit.ground.versions import key
from envkit.resolve.choice import choose
from envkit.resolve.explain import Unresolvable
from envkit.resolve.gpus import Card
from envkit.resolve.index import Index, index
from envkit.resolve.model import Request
from envkit.resolve.resolver import resolve
from envkit.resolve.rules import code


@dataclass(frozen=True, slots=True)
class _Asked:
    """What every step needs."""

    request: Request
    fleet: Fleet
    index: Index

    def classes(self, places: Sequence[int]) -> list[HostClass]:
        return [self.fleet.classes[position] for position in places]

    def runs(self, build: Build, position: int) -> bool:
        return bool(self.fleet.mask(build) >> position & 1)

    def alone(self, position: int) -> str:
        """The torch of the build that the resolver prefers for one class."""
        builds = [row.build for row in self.fleet.rows if row.mask >> position & 1]
        return choose(builds, self.fleet.sieves[position]).build.torch

    def native(self, position: int) -> str | None:
        """The build that a class's driver runs natively, as the resolver names it; None when there is none."""
        builds = [row.build for row in self.fleet.rows if row.mask >> position & 1]
        choice = choose(builds, self.fleet.sieves[position])
        build = choice.native or choice.build
        native = self.fleet.sieves[position].modes.get(build.cuda or "") == "native"
        return f"torch {build.torch} with CUDA {build.cuda}" if native else None

    def choices(self, position: int) -> int:
        """How many builds run on a class."""
        return sum(row.mask >> position & 1 for row in self.fleet.rows)


@dataclass(frozen=True, slots=True)
class _Part:
    """One image in the making: its build and Python, and the places of the classes that it is for."""

    build: Build
    python: str
    places: tuple[int, ...]


def cover(request: Request, classes: tuple[HostClass, ...], facts: Facts) -> Cover:
    """The fewest images that serve all machines; among those, the newest torch, then drivers that run it natively.

    Args:
        request: what every image has to satisfy; its GPU, driver and platform are those of the machines.
        classes: of the machines; at least one.
        facts: what is known.

    Raises:
        UsageError: the request names an OS that the facts do not know.
    """
    known = index(facts)
    fleet = fleet_of(classes, tuple(sieve_for(request, hosts, known) for hosts in classes))
    asked = _Asked(request, fleet, known)
    candidates = [Candidate(row.mask, cost(row.build, row.mask, fleet.sieves)) for row in fleet.rows]
    chosen = minimum_cover(candidates, fleet.universe) or ()
    parts = _parts(asked, [fleet.rows[position].build for position in chosen])
    only = [_only(asked, part, parts) for part in parts]
    names = _names(parts)
    return Cover(
        images=tuple(_image(asked, part, parts, name) for part, name in zip(parts, names, strict=True)),
        savings=savings(fleet, len(parts), only) if len(parts) > 1 else (),
        unserved=tuple(
            _unserved(asked, hosts) for position, hosts in enumerate(classes) if not fleet.universe >> position & 1
        ),
        classes=len(classes),
        machines=sum(hosts.count for hosts in classes),
    )  # fmt: skip


def _parts(asked: _Asked, builds: Sequence[Build]) -> list[_Part]:
    """The images of a smallest cover, newest torch first.

    Every class goes to the image that the resolver prefers for it; then each image becomes what the resolver prefers
    for all of its classes together. Two images of one torch get one CUDA where that costs nothing.
    """
    fleet = asked.fleet
    groups: dict[int, list[int]] = {id(build): [] for build in builds}
    for position, sieve in enumerate(fleet.sieves):
        able = [build for build in builds if asked.runs(build, position)]
        if able:
            groups[id(choose(able, sieve).build)].append(position)
    parts: list[_Part] = []
    for build in builds:
        places = tuple(groups[id(build)])
        wanted = sum(1 << number for number in places)
        runnable = [row.build for row in fleet.rows if row.mask & wanted == wanted]
        own, used = asked.classes(places), {part.build.cuda for part in parts}
        settled, python = best(_alike(asked, runnable, own, used), own, asked.request, asked.index)
        parts.append(_Part(settled, python, places))
    return sorted(parts, key=lambda part: (asked.index.rank[part.build.torch], part.build.platform, part.places))


def _alike(asked: _Asked, builds: list[Build], own: list[HostClass], used: set[str | None]) -> list[Build]:
    """The builds whose CUDA another image has, if one of them is as good as the best; else all of them."""
    first, _ = best(builds, own, asked.request, asked.index)

    def worth(build: Build) -> tuple[object, ...]:
        need = asked.index.needs[build.cuda or ""]
        native = all(need.mode(hosts.driver) == "native" for hosts in own)
        return build.torch, build.source, build.advertised, native

    return [build for build in builds if build.cuda in used and worth(build) == worth(first)] or builds


def _only(asked: _Asked, part: _Part, parts: Sequence[_Part]) -> tuple[int, ...]:
    """The places of the classes that no other image runs on."""
    others = [other.build for other in parts if other is not part]
    return tuple(position for position in part.places if not any(asked.runs(build, position) for build in others))


def _served(asked: _Asked, build: Build, position: int) -> Served:
    mode = asked.fleet.sieves[position].modes[build.cuda or ""] or "native"
    native = None if mode == "native" else asked.native(position)
    return Served(hosts=asked.fleet.classes[position], mode=mode, alone=asked.alone(position), native=native)


def _image(asked: _Asked, part: _Part, parts: Sequence[_Part], name: str) -> Image:
    own = asked.classes(part.places)
    request = replace(
        pinned(asked.request, part.build, part.python),
        gpus=typed(_named_cards(asked, part.build, own), asked.index.facts),
        driver=None,
    )
    others = [other.build for other in parts if other is not part]
    sieves, classes = asked.fleet.sieves, asked.fleet.classes
    return Image(
        name=name,
        resolution=resolve(request, asked.index.facts),
        serves=tuple(_served(asked, part.build, position) for position in part.places),
        forced_by=tuple(
            Force(hosts=classes[position], because=forces(part.build, others, classes[position], sieves[position]))
            for position in sorted(_only(asked, part, parts), key=asked.choices)
            if others
        ),
    )


def _named_cards(asked: _Asked, build: Build, own: Sequence[HostClass]) -> list[Card]:
    """The GPUs that an image may name, lowest capability first.

    A GPU for which only a native driver can compile makes an image ask for that on every machine
    (`envkit.plan.variables.require_cuda`), so it goes unnamed where another machine would be turned away for it.
    """
    need = asked.index.needs[build.cuda or ""]
    native = all(need.mode(hosts.driver) == "native" for hosts in own)
    cards = {card.gpu.capability: card for hosts in own for card in hosts.cards}
    return [cards[name] for name in sorted(cards, key=key) if native or code(build, cards[name].gpu) == "cubin"]


def _names(parts: Sequence[_Part]) -> list[str]:
    """A name for each image that says what is in it: `torch2.14.1-cu126`."""
    names: list[str] = []
    for part in parts:
        build = part.build
        name = f"torch{build.torch}-cu{(build.cuda or '').replace('.', '')}"
        name += "" if build.platform == DEFAULT_PLATFORM else f"-{build.platform.removeprefix('linux-')}"
        taken = sum(other == name or other.startswith(f"{name}-v") for other in names)
        names.append(f"{name}-v{taken + 1}" if taken else name)
    return names


def _unserved(asked: _Asked, hosts: HostClass) -> Unserved:
    """Why nothing runs on some machines: they contradict themselves, or the resolver says it."""
    fault = machine_fault(hosts)
    if fault is not None:
        return Unserved(
            hosts=hosts, because=(fault,), hint="check the driver version with nvidia-smi on these machines"
        )
    try:
        resolve(request_for(asked.request, hosts, asked.index), asked.index.facts)
    except Unresolvable as error:
        return Unserved(hosts=hosts, because=error.conflict.because, hint=error.hint)
    raise AssertionError(f"{hosts.title}: the resolver finds a combination that no build has")
