"""Solve the lock of a plan: base, conda packages and wheels, for the machine that the image will run on."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from envkit.ground.errors import ConflictError, UsageError
from envkit.ground.progress import Reporter
from envkit.ground.text import similar
from envkit.lock import abi, closure, request, stubs
from envkit.lock.model import CondaPackage, Lock, LockedBase, Source, Wheel
from envkit.lock.places import Places
from envkit.lock.uv import Target
from envkit.plan.model import BuildPlan

ResolveBase = Callable[[BuildPlan], LockedBase]
"""Returns the base of a plan; raises EnvironmentProblem or EngineError if it is not available."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How to solve."""

    glibc: str  # of the image's OS
    base: str  # the base in `request.request_of`
    as_of: str | None = None  # RFC 3339; newer packages are not considered
    update: Collection[str] = ()  # packages to update; the others keep the version of `old` if possible
    old: Lock | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """The wheels that were built from source for a plan."""

    wheels: Mapping[Path, Wheel]  # by file
    rows: tuple[Source, ...]  # sorted by name
    builders: tuple[Lock, ...]  # without duplicates


NO_SOURCES = Sources(wheels={}, rows=(), builders=())


def lock_plan(
    plan: BuildPlan,
    places: Places,
    options: Options,
    *,
    resolve_base: ResolveBase,
    reporter: Reporter,
    sources: Sources = NO_SOURCES,
) -> Lock:
    """Solve everything that a plan needs. Equal plans and equal data give equal locks.

    Args:
        plan: the plan to lock.
        places: where artifacts are downloaded from.
        options: how to solve.
        resolve_base: returns the base; called after everything else is solved.
        reporter: receives the steps.
        sources: the wheels that were built from source for the plan.

    Raises:
        UsageError: a spec is invalid, or `update` names a package that the old lock does not have.
        ConflictError: no packages satisfy the plan, or only a CPU build does.
        EnvironmentProblem: a solver is missing, or a source does not answer.
        TimeLimitError: a solver did not finish in time.
    """
    from envkit.lock import conda, wheels  # noqa: PLC0415 - asyncio and HTTP; a build from a lock solves nothing

    old = _to_keep(options)
    solver_input = request.request_of(plan, glibc=options.glibc, base=options.base)
    specs = request.conda_specs(plan)
    # Conda comes first: wheels are solved for its Python and must be compatible with its packages.
    packages: tuple[CondaPackage, ...] = ()
    if specs:
        reporter.step(f"solve {len(specs)} conda specs")
        virtual = request.virtual_packages(plan, options.glibc)
        keep = [package for package in old.conda if package.name not in options.update] if old else []
        packages = conda.solve(plan, specs, virtual, places, as_of=options.as_of, keep=keep)
    python = next((package.version for package in packages if package.name == "python"), plan.resolution.python)
    torch = request.torch_wheels(plan)
    solved_wheels: tuple[Wheel, ...] = ()
    if torch or plan.pip or plan.allow_source:
        reporter.step(f"solve {len(torch) + len(plan.pip) + len(plan.allow_source)} wheels")
        solved_wheels = wheels.solve(
            plan,
            Target(platform=plan.resolution.platform, glibc=options.glibc, python=python),
            places,
            torch=torch,
            chosen=stubs.of_conda(packages),
            as_of=options.as_of,
            keep=[wheel for wheel in old.wheels if wheel.name not in options.update] if old else [],
            built=sources.wheels,
        )
    reporter.step("look up the base image")
    # With --update, the base stays as it is in the old lock: its tag may mean another image today.
    same_base = old is not None and dict(old.request).get("base") == options.base
    base = old.base if old and same_base else resolve_base(plan)
    lock = Lock(
        plan=plan.digest,
        request=solver_input,
        platform=plan.resolution.platform,
        python=plan.resolution.python,
        as_of=options.as_of,
        base=base,
        conda=packages,
        wheels=solved_wheels,
        sources=sources.rows,
        builders=sources.builders,
    )
    # The specs that rattler gets have constraints only for packages that the plan names, so a dependency may break one.
    beyond = closure.beyond_constraints(lock)
    if beyond:
        name, *_ = beyond
        line, *others = beyond.values()
        raise ConflictError(
            line,
            details=tuple(others),
            hint=f"remove the constraint, or list {name} with a version that it allows under conda in the definition",
        )
    clash = abi.faults(lock)
    if clash:
        raise ConflictError(
            clash[0], details=clash[1:], hint="use the wheel that was built for this torch, or allow_source: [NAME]"
        )
    return lock


def _to_keep(options: Options) -> Lock | None:
    """Return the old lock if only some of its packages are updated, otherwise None."""
    if not options.update or options.old is None:
        return None
    names = {*(package.name for package in options.old.conda), *(wheel.name for wheel in options.old.wheels)}
    for name in options.update:
        if name not in names:
            near = similar(name, names)
            raise UsageError(
                f"--update {name!r:.80}: the lock has no such package",
                hint=f"--update {near[0]}" if near else "envkit lock --json lists its packages",
            )
    return options.old
