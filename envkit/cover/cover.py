"""Find the fewest images for a set of machines and explain each. Pure: no files, no network, no clock."""

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
from envkit.resolve.conflict import Unresolvable
from envkit.resolve.gpus import Card
from envkit.resolve.index import Index, index
from envkit.resolve.model import Request
from envkit.resolve.resolver import resolve
from envkit.resolve.rules import code


@dataclass(frozen=True, slots=True)
class _Problem:
    """The request and the fleet. Classes are identified by their positions in the fleet."""

    request: Request
    fleet: Fleet
    index: Index

    def classes(self, positions: Sequence[int]) -> list[HostClass]:
        return [self.fleet.classes[position] for position in positions]

    def runs(self, build: Build, position: int) -> bool:
        return bool(self.fleet.mask(build) >> position & 1)

    def alone(self, position: int) -> str:
        """Return the torch version that the resolver prefers for one class."""
        builds = [row.build for row in self.fleet.rows if row.mask >> position & 1]
        return choose(builds, self.fleet.sieves[position]).build.torch

    def native(self, position: int) -> str | None:
        """Return the best build that a class's driver runs natively, in words; None if there is none."""
        builds = [row.build for row in self.fleet.rows if row.mask >> position & 1]
        choice = choose(builds, self.fleet.sieves[position])
        build = choice.native or choice.build
        native = self.fleet.sieves[position].modes.get(build.cuda or "") == "native"
        return f"torch {build.torch} with CUDA {build.cuda}" if native else None

    def choices(self, position: int) -> int:
        """Return the number of builds that run on a class."""
        return sum(row.mask >> position & 1 for row in self.fleet.rows)


@dataclass(frozen=True, slots=True)
class _Part:
    """One image of the cover: its build and Python, and the positions of its classes."""

    build: Build
    python: str
    positions: tuple[int, ...]


def cover(request: Request, classes: tuple[HostClass, ...], facts: Facts) -> Cover:
    """Return the fewest images that serve all machines; among those, prefer the newest torch, then native drivers.

    Args:
        request: the constraints on every image; GPU, driver and platform come from the machines.
        classes: of the machines; at least one.
        facts: the compatibility data.

    Raises:
        UsageError: the request has an unknown OS.
    """
    known = index(facts)
    fleet = fleet_of(classes, tuple(sieve_for(request, hosts, known) for hosts in classes))
    problem = _Problem(request, fleet, known)
    candidates = [Candidate(row.mask, cost(row.build, row.mask, fleet.sieves)) for row in fleet.rows]
    chosen = minimum_cover(candidates, fleet.universe) or ()
    parts = _parts(problem, [fleet.rows[position].build for position in chosen])
    only = [_only(problem, part, parts) for part in parts]
    names = _names(parts)
    return Cover(
        images=tuple(_image(problem, part, parts, name) for part, name in zip(parts, names, strict=True)),
        savings=savings(fleet, len(parts), only) if len(parts) > 1 else (),
        unserved=tuple(
            _unserved(problem, hosts) for position, hosts in enumerate(classes) if not fleet.universe >> position & 1
        ),
        classes=len(classes),
        machines=sum(hosts.count for hosts in classes),
    )  # fmt: skip


def _parts(problem: _Problem, builds: Sequence[Build]) -> list[_Part]:
    """Return the images of a smallest cover, newest torch first.

    Each class is assigned to the image that the resolver prefers for it; then each image gets the build that the
    resolver prefers for all of its classes. Two images with the same torch get the same CUDA if that costs nothing.
    """
    fleet = problem.fleet
    groups: dict[int, list[int]] = {id(build): [] for build in builds}
    for position, sieve in enumerate(fleet.sieves):
        able = [build for build in builds if problem.runs(build, position)]
        if able:
            groups[id(choose(able, sieve).build)].append(position)
    parts: list[_Part] = []
    for build in builds:
        positions = tuple(groups[id(build)])
        mask = sum(1 << number for number in positions)
        runnable = [row.build for row in fleet.rows if row.mask & mask == mask]
        own, used = problem.classes(positions), {part.build.cuda for part in parts}
        final, python = best(_alike(problem, runnable, own, used), own, problem.request, problem.index)
        parts.append(_Part(final, python, positions))
    return sorted(parts, key=lambda part: (problem.index.rank[part.build.torch], part.build.platform, part.positions))


def _alike(problem: _Problem, builds: list[Build], own: list[HostClass], used: set[str | None]) -> list[Build]:
    """Return the builds with the CUDA of another image if one of them is as good as the best; else all builds."""
    first, _ = best(builds, own, problem.request, problem.index)

    def worth(build: Build) -> tuple[object, ...]:
        need = problem.index.needs[build.cuda or ""]
        native = all(need.mode(hosts.driver) == "native" for hosts in own)
        return build.torch, build.source, build.advertised, native

    return [build for build in builds if build.cuda in used and worth(build) == worth(first)] or builds


def _only(problem: _Problem, part: _Part, parts: Sequence[_Part]) -> tuple[int, ...]:
    """Return the positions of the classes that no other image runs on."""
    others = [other.build for other in parts if other is not part]
    return tuple(position for position in part.positions if not any(problem.runs(build, position) for build in others))


def _served(problem: _Problem, build: Build, position: int) -> Served:
    mode = problem.fleet.sieves[position].modes[build.cuda or ""] or "native"
    native = None if mode == "native" else problem.native(position)
    return Served(hosts=problem.fleet.classes[position], mode=mode, alone=problem.alone(position), native=native)


def _image(problem: _Problem, part: _Part, parts: Sequence[_Part], name: str) -> Image:
    own = problem.classes(part.positions)
    request = replace(
        pinned(problem.request, part.build, part.python),
        gpus=typed(_named_cards(problem, part.build, own), problem.index.facts),
        # Its machines have several drivers; `serves` tells how each of them runs the image.
        driver=None,
    )
    others = [other.build for other in parts if other is not part]
    sieves, classes = problem.fleet.sieves, problem.fleet.classes
    return Image(
        name=name,
        resolution=resolve(request, problem.index.facts),
        serves=tuple(_served(problem, part.build, position) for position in part.positions),
        forced_by=tuple(
            Force(hosts=classes[position], because=forces(part.build, others, classes[position], sieves[position]))
            for position in sorted(_only(problem, part, parts), key=problem.choices)
            if others
        ),
    )


def _named_cards(problem: _Problem, build: Build, own: Sequence[HostClass]) -> list[Card]:
    """Return the GPUs that an image may name, lowest compute capability first.

    A GPU that needs PTX requires a native driver, because only that can compile it, and the image then requires one on
    every machine (`envkit.plan.variables.require_cuda`). Such a GPU is left out if another machine lacks that driver.
    """
    need = problem.index.needs[build.cuda or ""]
    native = all(need.mode(hosts.driver) == "native" for hosts in own)
    cards = {card.gpu.capability: card for hosts in own for card in hosts.cards}
    return [cards[name] for name in sorted(cards, key=key) if native or code(build, cards[name].gpu) == "cubin"]


def _names(parts: Sequence[_Part]) -> list[str]:
    """Return a name such as `torch2.14.1-cu126` for each image."""
    names: list[str] = []
    for part in parts:
        build = part.build
        name = f"torch{build.torch}-cu{(build.cuda or '').replace('.', '')}"
        name += "" if build.platform == DEFAULT_PLATFORM else f"-{build.platform.removeprefix('linux-')}"
        taken = sum(other == name or other.startswith(f"{name}-v") for other in names)
        names.append(f"{name}-v{taken + 1}" if taken else name)
    return names


def _unserved(problem: _Problem, hosts: HostClass) -> Unserved:
    """Return why a class cannot run any image: its own data contradict each other, or the resolver finds a conflict."""
    fault = machine_fault(hosts)
    if fault is not None:
        return Unserved(
            hosts=hosts, because=(fault,), hint="check the driver version with nvidia-smi on these machines"
        )
    try:
        resolve(request_for(problem.request, hosts, problem.index), problem.index.facts)
    except Unresolvable as error:
        return Unserved(hosts=hosts, because=error.conflict.because, hint=error.hint)
    raise AssertionError(f"{hosts.title}: the resolver finds a combination that no build has")
