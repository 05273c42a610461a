"""Solve the lock of a plan: base, conda packages and wheels, for the machine that the image will run on."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from envkit.facts.model import PackageNeeds
from envkit.ground.errors import ConflictError
from envkit.ground.progress import Reporter
from envkit.lock import abi, closure, previous, request, stubs, together
from envkit.lock.base import nothing
from envkit.lock.index_locations import IndexLocations
from envkit.lock.model import CondaPackage, Lock, LockedBase, Source, Wheel
from envkit.lock.previous import NOTHING, Previous
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
    update: Collection[str] = ()  # packages to update, with what must move with them
    old: Lock | None = None  # its versions are kept where that is possible
    needs: tuple[PackageNeeds, ...] = ()  # of the facts: which packages have pages with prebuilt wheels


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """The wheels that were built from source for a plan."""

    wheels: Mapping[Path, Wheel]  # by file
    rows: tuple[Source, ...]  # sorted by name
    builders: tuple[Lock, ...]  # without duplicates


NO_SOURCES = Sources(wheels={}, rows=(), builders=())


def lock_plan(
    plan: BuildPlan,
    indexes: IndexLocations,
    options: Options,
    *,
    resolve_base: ResolveBase,
    reporter: Reporter,
    sources: Sources = NO_SOURCES,
) -> Lock:
    """Solve everything that a plan needs. Equal plans, old locks and data give equal locks.

    Args:
        plan: the plan to lock.
        indexes: where artifacts are downloaded from.
        options: how to solve.
        resolve_base: returns the base; called after everything else is solved.
        reporter: receives the steps.
        sources: the wheels that were built from source for the plan.

    Raises:
        UsageError: a spec is invalid, or `update` names a package that the old lock does not have.
        LockError: `update` has names, and the old lock is of another image.
        ConflictError: no packages satisfy the plan, or only a CPU build does.
        EnvironmentProblem: a solver is missing, or a source does not answer.
        TimeLimitError: a solver did not finish in time.
    """
    old, keep = options.old, previous.previous_of(plan, options.old, options.update)
    solver_input = request.request_of(plan, glibc=options.glibc, base=options.base)
    # A lock of another image is seen here, before its versions are.
    for line in request.differences(old, solver_input) if old else ():
        reporter.note(f"changed since the old lock: {line}")
    solved = _Solver(plan=plan, indexes=indexes, options=options, sources=sources, keep=keep, reporter=reporter)
    try:
        _, lock = together.solve(partial(solved.conda, keep), solved.lock)
    except ConflictError:
        # conda's solver does not know what the wheels and the constraints require of the packages that it kept.
        if not keep.conda or solved.conda(keep) == solved.conda(free := replace(keep, conda=())):
            raise
        reporter.note("the conda packages of the old lock do not fit the wheels, so all of them are solved again")
        _, lock = together.solve(partial(solved.conda, free), solved.lock)
    solved.tell_held_back(lock)
    reporter.step("look up the base image")
    # With --update, the base stays as it is in the old lock: its tag may mean another image today.
    same_base = old is not None and options.update and previous.keeps_base(old, dict(solver_input))
    return replace(lock, base=old.base if old and same_base else resolve_base(plan))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Solver:
    """The steps of one lock."""

    plan: BuildPlan
    indexes: IndexLocations
    options: Options
    sources: Sources
    keep: Previous
    reporter: Reporter

    def conda(self, keep: Previous, more: Sequence[str] = ()) -> tuple[CondaPackage, ...]:
        """Return the conda packages. They come first: wheels are solved for their Python and must fit them.

        Args:
            keep: the packages of the old lock.
            more: specs of what the wheels need of them.
        """
        from envkit.lock import conda  # noqa: PLC0415 - a build from a lock solves nothing

        plan, options = self.plan, self.options
        specs = request.conda_specs(plan)
        if not specs:
            return ()
        if more:
            self.reporter.note(f"conda packages are solved again, because the wheels need {', '.join(more):.300}")
        self.reporter.step(f"solve {len(specs)} conda specs")
        virtual = request.virtual_packages(plan, options.glibc)
        return conda.solve(plan, (*specs, *more), virtual, self.indexes, as_of=options.as_of, previous=keep)

    def lock(self, packages: tuple[CondaPackage, ...]) -> Lock:
        """Return the lock with these conda packages and the wheels for them, still without a base."""
        plan, options = self.plan, self.options
        lock = Lock(
            plan=plan.digest,
            request=request.request_of(plan, glibc=options.glibc, base=options.base),
            platform=plan.resolution.platform,
            python=plan.resolution.python,
            as_of=options.as_of,
            base=nothing(),
            conda=packages,
            wheels=self._wheels(packages),
            sources=self.sources.rows,
            builders=self.sources.builders,
        )
        # The specs that rattler gets have constraints only for packages that the plan names, so a dependency may break
        # one.
        beyond = closure.beyond_constraints(lock)
        if beyond:
            name, *_ = beyond
            line, *others = beyond.values()
            raise ConflictError(
                line,
                details=tuple(others),
                hint=f"remove the constraint, or list {name} under conda in the definition with a version it allows",
            )
        clash = abi.faults(lock)
        if clash:
            raise ConflictError(
                clash[0], details=clash[1:], hint="use the wheel that was built for this torch, or --allow-source NAME"
            )
        return lock

    def _wheels(self, packages: tuple[CondaPackage, ...]) -> tuple[Wheel, ...]:
        plan = self.plan
        torch = request.torch_wheels(plan)
        if not torch and not plan.pip and not plan.allow_source:
            return ()
        self.reporter.step(f"solve {len(torch) + len(plan.pip) + len(plan.allow_source)} wheels")
        return self._wheels_of(plan, packages, self.keep)

    def _wheels_of(self, plan: BuildPlan, packages: tuple[CondaPackage, ...], keep: Previous) -> tuple[Wheel, ...]:
        from envkit.lock import wheels  # noqa: PLC0415 - asyncio and HTTP; a build from a lock solves nothing
        from envkit.lock.known_pages import KnownPages  # noqa: PLC0415 - as above

        return wheels.solve(
            plan,
            self._target(packages),
            self.indexes,
            torch=request.torch_wheels(plan),
            chosen=stubs.of_conda(packages),
            as_of=self.options.as_of,
            previous=keep,
            built=self.sources.wheels,
            known=KnownPages(self.options.needs),
        )

    def _target(self, packages: tuple[CondaPackage, ...]) -> Target:
        resolution = self.plan.resolution
        python = next((package.version for package in packages if package.name == "python"), resolution.python)
        return Target(platform=resolution.platform, glibc=self.options.glibc, python=python)

    def tell_held_back(self, lock: Lock) -> None:
        """Report the packages that are locked in an older release because a newer one needs a source."""
        if not self.plan.pip:
            return
        from envkit.lock import held_back  # noqa: PLC0415 - as above

        for line in held_back.by_source(
            self.plan,
            self._target(lock.conda),
            self.indexes,
            {wheel.name: wheel.version for wheel in lock.wheels},
            as_of=self.options.as_of,
            solve=lambda plan: self._wheels_of(plan, lock.conda, NOTHING),
        ):
            self.reporter.note(line)
