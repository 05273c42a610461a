"""Resolve a request against the facts. Pure: no files, no network, no clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from envkit.facts.model import Build, Companion, Facts
from envkit.ground.versions import Constraint, key
from envkit.resolve.choice import choose, python
from envkit.resolve.companions import COMPANIONS, companion, companions, conda_version
from envkit.resolve.forward import FORWARD, package, packages
from envkit.resolve.index import WHEEL_SOURCES, Index, index
from envkit.resolve.model import Driver, Request, Resolution, WantedPackage
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
        from envkit.resolve.explain import unresolvable  # noqa: PLC0415 - most requests resolve

        raise unresolvable(request, sieve.wanted, known)
    choice = choose(builds, sieve)
    build = choice.build
    chosen = Chosen(build, facts.releases.get(build.torch), python(build, sieve), sieve)
    careful = advice(chosen)
    driver = _driver(build, sieve)
    system = operating_system(request.os or DEFAULT_OS, facts)
    wheels = {name: companion(build, name, chosen.python, known, version) for name, version in _named(request).items()}
    versions = {name: row.version if row else conda_version(build, name) for name, row in wheels.items()}
    return Resolution(
        torch=build.torch,
        cuda=build.cuda,
        cudnn=build.cudnn,
        nccl=build.nccl,
        triton=None if triton_gone(chosen) else build.triton,
        python=chosen.python,
        pythons=_pythons(build, wheels),
        torchvision=versions["torchvision"],
        torchaudio=versions["torchaudio"],
        files=_files(build, wheels, sieve.wanted.packages),
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
        left_out={name: _pythons_with(build, name, known) for name, version in versions.items() if version is None},
        download=download(build, facts),
        support=support(build.torch, chosen.python, day_of(request.today, facts), known.series, facts),
    )


def _named(request: Request) -> dict[str, Constraint | None]:
    """Return the packages that the answer names beside torch, with the versions that the request allows."""
    return dict.fromkeys(COMPANIONS) | {wanted.package: wanted.version for wanted in request.packages}


def _files(build: Build, wheels: Mapping[str, Companion | None], packages: Sequence[WantedPackage]) -> dict[str, str]:
    """Return the version of each wheel as a pin has to name it; for conda, what its solver has to choose."""
    if build.source not in WHEEL_SOURCES:
        return {
            wanted.package: wanted.version.text if wanted.version else ""
            for wanted in packages
            if conda_version(build, wanted.package) is None
        }
    # On the Python index a file name has no local version; on others it names the variant, where the file has one.
    own = {"torch": f"{build.torch}{build.local_version or ''}"}
    return own | {name: row.pinned for name, row in wheels.items() if row is not None}


def _pythons(build: Build, wheels: Mapping[str, Companion | None]) -> tuple[str, ...] | None:
    """Return the Pythons that torch and its companions all support; None if torch's own are unknown."""
    if build.pythons is None:
        return None
    lists = [row.pythons for row in wheels.values() if row is not None]
    return tuple(name for name in build.pythons if all(name in pythons for pythons in lists))


def _pythons_with(build: Build, name: str, known: Index) -> tuple[str, ...]:
    """Return the Pythons of a build for which a companion that is left out has a file."""
    listed = {python for row in companions(build, name, None, known) for python in row.pythons}
    return tuple(python for python in build.pythons or () if python in listed)


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
