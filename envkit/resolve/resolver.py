"""Resolve a request against the facts. Pure: no files, no network, no clock."""

from __future__ import annotations

from envkit.facts.model import Build, Facts
from envkit.ground.versions import key
from envkit.resolve.choice import COMPANIONS, choose, companion, companion_pythons, companion_version, python
from envkit.resolve.explain import unresolvable
from envkit.resolve.forward import FORWARD, package, packages
from envkit.resolve.index import index
from envkit.resolve.model import Driver, Request, Resolution
from envkit.resolve.pitfalls import Chosen, advice, triton_gone
from envkit.resolve.reasons import download, reasons
from envkit.resolve.rules import Sieve, candidates, first_branch, scoped
from envkit.resolve.support import day_of, support
from envkit.resolve.wanted import DEFAULT_OS, operating_system, wanted


def resolve(request: Request, facts: Facts) -> Resolution:
    """Return the best combination that satisfies a request.

    Raises:
        UsageError: the request names a GPU or an OS that is not in the facts.
        Unresolvable: no build fits; the error carries the Conflict.
    """
    known = index(facts)
    sieve = Sieve(scoped(wanted(request, facts), known), known)
    builds = candidates(sieve)
    if not builds:
        raise unresolvable(request, sieve.wanted, known)
    choice = choose(builds, sieve)
    build = choice.build
    chosen = Chosen(build, facts.releases.get(build.torch), python(build, sieve), sieve)
    careful = advice(chosen)
    driver = _driver(build, sieve)
    system = operating_system(request.os or DEFAULT_OS, facts)
    partners = {name: companion(build, name, chosen.python, known) for name in COMPANIONS}
    return Resolution(
        torch=build.torch,
        cuda=build.cuda,
        cudnn=build.cudnn,
        nccl=build.nccl,
        triton=None if triton_gone(chosen) else build.triton,
        python=chosen.python,
        pythons=_pythons(build, partners),
        torchvision=partners["torchvision"],
        torchaudio=partners["torchaudio"],
        source=build.source,
        index=build.index,
        channels=build.channels,
        selector=build.selector,
        local_version=build.local_version,
        driver=driver,
        gpus=tuple(sorted({card.gpu.capability for card in sieve.wanted.cards}, key=key)),
        gpu_archs=build.archs,
        ptx=build.ptx,
        glibc=build.glibc,
        platform=build.platform,
        os=system.id,
        pins=tuple(careful.pins),
        warnings=careful.warnings,
        reasons=reasons(request, chosen, choice, driver=driver, system=system, careful=careful),
        sources=_sources(chosen, careful.refs, system.refs),
        rejected_count=len(facts.builds) - choice.fitting,
        left_out={
            name: companion_pythons(build, name) or ()
            for name, version in partners.items()
            if version is None and companion_version(build, name, known)
        },
        download=download(build, facts),
        support=support(build.torch, chosen.python, day_of(request.today, facts), known.series, facts),
    )


def _pythons(build: Build, partners: dict[str, str | None]) -> tuple[str, ...] | None:
    """Return the Pythons that torch and its companions all support; None if torch's own are unknown."""
    if build.pythons is None:
        return None
    lists = [companion_pythons(build, name) or () for name, version in partners.items() if version]
    return tuple(name for name in build.pythons if all(name in pythons for pythons in lists))


def _driver(build: Build, sieve: Sieve) -> Driver | None:
    if build.cuda is None:
        return None
    asked, need = sieve.wanted, sieve.index.needs[build.cuda]
    mode = sieve.modes[build.cuda] if asked.driver else None
    # A new GPU raises the minimum to the first driver branch that supports it. Several GPUs stand for several machines,
    # so the GPU with the oldest branch decides: its driver is enough on its own machine. An image does not start on a
    # driver below its minimum, so an inferred branch does not raise it.
    branches = [str(first_branch(card.gpu)) for card in asked.cards]
    minimum = max([need.minimum, *sorted(branches, key=key)[:1]], key=key)
    return Driver(
        native=max(need.native, minimum, key=key),
        minimum=minimum,
        mode=mode,
        given=asked.driver,
        package=package(build.cuda) if mode == FORWARD else None,
    )


def _sources(chosen: Chosen, trap_refs: tuple[str, ...], os_refs: tuple[str, ...]) -> tuple[str, ...]:
    build, known = chosen.build, chosen.sieve.index
    refs = list(build.refs)
    refs += chosen.release.refs if chosen.release else ()
    refs += known.needs[build.cuda].refs if build.cuda else ()
    for card in chosen.sieve.wanted.cards:
        refs += card.gpu.refs
    if build.cuda and chosen.sieve.modes[build.cuda] == FORWARD:
        refs += packages(known.facts)[build.cuda].refs
    floor = known.cudnn_floor(build) if chosen.sieve.wanted.cards else None
    refs += floor[1] if floor else ()
    return tuple(dict.fromkeys([*refs, *os_refs, *trap_refs]))
