"""The lock of a build: the named one, the one in this folder if it fits, or one that is solved now.

`solve_lock` makes every lock. `Locks` solves equal requests once and looks up each base once: what conda and pip solve
depends neither on the base nor on the system packages, so plans that differ only there share one solution. Their locks
differ in the base and in the request that they record.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from envkit.assemble.builders import EMBEDDED, builder_of
from envkit.engines.builder import check_base
from envkit.engines.model import BuildOptions
from envkit.ground import settings as known_settings
from envkit.ground.errors import EnvironmentProblem, EnvkitError, LockError
from envkit.ground.paths import state_dir
from envkit.ground.progress import Within
from envkit.lock import base as bases
from envkit.lock.index_locations import python_index
from envkit.lock.request import request_of, require_fit
from envkit.lock.solve import NO_SOURCES, Options, lock_plan
from envkit.lock.store import read_lock, store_lock
from envkit.pipeline import choosing
from envkit.pipeline.resolving import facts_of
from envkit.plan.bases import os_row
from envkit.render.locked import index_locations

if TYPE_CHECKING:
    from envkit.engines.model import Builder
    from envkit.facts.model import Facts
    from envkit.ground.progress import Reporter
    from envkit.ground.settings import Settings
    from envkit.lock.index_locations import IndexLocations
    from envkit.lock.limits import Probe
    from envkit.lock.model import Lock, LockedBase, RequestValue
    from envkit.pipeline.resolving import Asked
    from envkit.pipeline.sources import SourceContext
    from envkit.plan.model import BuildPlan

_NOT_SOLVED = frozenset({"os", "base", "system"})  # fields that no solver sees; of the OS they see only glibc
_Key = tuple[tuple[str, "RequestValue"], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LockRequest:
    """One plan to lock, with all options."""

    plan: BuildPlan
    settings: Settings  # mirrors, facts, engine
    base: str = "auto"  # the value of --base
    as_of: str | None = None  # RFC 3339; nothing newer is considered
    update: tuple[str, ...] = ()  # packages to update, with what must move with them
    old: Lock | None = None  # the current lock; its versions are kept where that is possible

    @property
    def recorded_base(self) -> str:
        """The base in the lock's request: independent of the engine, so the lock fits every engine."""
        return self.plan.base if self.base == "auto" else self.base

    def check(self) -> None:
        """Check the base before minutes of solving.

        Raises:
            UsageError: the base is invalid, or is of another OS than the plan.
        """
        bases.check(self.recorded_base, self.plan)

    def asked(self, facts: Facts) -> tuple[tuple[str, RequestValue], ...]:
        """Return the request in the form that a lock records."""
        return request_of(self.plan, glibc=glibc_of(self.plan, facts), base=self.recorded_base)


def glibc_of(plan: BuildPlan, facts: Facts) -> str:
    """Return the version of glibc in the plan's OS."""
    return os_row(plan.resolution.os, facts).glibc


def indexes_of(plan: BuildPlan, settings: Settings) -> IndexLocations:
    """Return the indexes and mirrors from which a plan's artifacts are downloaded.

    Raises:
        UsageError: a mirror is not a URL, or the CA bundle cannot be read.
    """
    # Only a check: a bundle that cannot be read is reported here, not as a failed connection of a solver.
    known_settings.ca_file(settings.get("ca_bundle"))
    return index_locations(plan, settings.mirrors(), python_index=python_index(os.environ))


def existing_lock(
    plan: BuildPlan, path: Path, base: str, command: str, reporter: Reporter, *, named: bool
) -> Lock | None:
    """Return the named lock, or the `envkit.lock` of a folder if it fits; None if a new one has to be solved.

    Args:
        plan: the plan to build.
        path: the lock.
        base: the value of `--base`.
        command: the `envkit lock` command of this request, for hints.
        reporter: receives which lock is used, or why one is not.
        named: the user named the file.

    Raises:
        LockError: the named file is missing or is for another request.
        UsageError: a lock cannot be read.
        IntegrityError: an artifact in it has no SHA-256.
    """
    if not named and not path.is_file():
        return None
    try:
        lock = read_lock(path)
    except LockError as error:
        raise LockError(error.message, hint=command) from error
    try:
        require_fit(lock, plan, where=str(path), hint=command)
        check_base(lock, base)
    except LockError as error:
        # An `envkit.lock` that was not named may be for another image. A damaged one is an error all the same.
        if named:
            raise
        reporter.note(f"lock: {error.message}; solving a new one that keeps its versions ({command} writes it)")
        return None
    reporter.note(f"lock: {path}")
    return lock


def solve_lock(request: LockRequest, resolve_base: Callable[[BuildPlan], LockedBase], reporter: Reporter) -> Lock:
    """Solve a lock.

    Args:
        request: what to lock.
        resolve_base: returns the locked base; called after everything else is solved.
        reporter: receives the steps.

    Raises:
        As `envkit.lock.solve.lock_plan` and `resolve_base`.
    """
    plan = request.plan
    facts = facts_of(request.settings)
    glibc, built_sources = glibc_of(plan, facts), NO_SOURCES
    if plan.allow_source:
        from envkit.pipeline import sources  # noqa: PLC0415 - imports runners and registries, which only these definitions need

        built_sources = sources.build_sources(
            _source_context(request, facts, reporter),
            glibc=glibc,
            as_of=request.as_of,
            preferred=_preferred_sources(request),
        )
    return lock_plan(
        plan,
        indexes_of(plan, request.settings),
        Options(
            glibc=glibc,
            base=request.recorded_base,
            as_of=request.as_of,
            update=request.update,
            old=request.old,
            needs=facts.package_needs,
        ),
        resolve_base=resolve_base,
        reporter=reporter,
        sources=built_sources,
    )


def _preferred_sources(request: LockRequest) -> dict[str, str]:
    """Return the old lock's versions of packages that are not to be updated, whether built from source or not."""
    if request.old is None:
        return {}
    # The version of a built wheel may have a local part that its source does not have.
    versions = {row.name: row.version for rows in (request.old.wheels, request.old.sources) for row in rows}
    update = {canonicalize_name(name) for name in request.update}
    return {name: version for name, version in versions.items() if name not in update}


def provide_sources(plan: BuildPlan, lock: Lock, settings: Settings, reporter: Reporter) -> None:
    """Make sure that the cache has the wheels that a lock has from source, before an engine installs them.

    Raises:
        As `envkit.pipeline.sources.provide`.
    """
    if lock.sources:
        from envkit.pipeline import sources  # noqa: PLC0415 - as above

        request = LockRequest(plan=plan, settings=settings)
        sources.provide(_source_context(request, facts_of(settings), reporter), lock)


def _source_context(request: LockRequest, facts: Facts, reporter: Reporter) -> SourceContext:
    from envkit.pipeline.sources import SourceContext  # noqa: PLC0415 - as above

    # The plan of a builder image allows no source, so this solves no further builder image.
    def lock_builder(plan: BuildPlan, builder: Builder, base: str) -> Lock:
        builders = request.old.builders if request.old else ()
        old = next((lock for lock in builders if lock.plan == plan.digest), None)
        builder_request = LockRequest(plan=plan, settings=request.settings, base=base, as_of=request.as_of, old=old)
        return solve_lock(builder_request, base_from(builder, builder_request, reporter), reporter)

    return SourceContext(
        plan=request.plan,
        facts=facts,
        settings=request.settings,
        indexes=indexes_of(request.plan, request.settings),
        lock_builder=lock_builder,
        reporter=reporter,
    )


def probe_of(settings: Settings, plan: BuildPlan, as_of: str | None = None) -> Probe:
    """Return what finds the newest torch that the packages of a plan allow, with the plan's indexes and mirrors."""
    from envkit.lock.known_pages import KnownPages  # noqa: PLC0415 - a build from a lock solves nothing
    from envkit.lock.limits import Probe  # noqa: PLC0415 - as above

    facts = facts_of(settings)
    pages = KnownPages(facts.package_needs)
    return Probe(indexes=indexes_of(plan, settings), glibc=glibc_of(plan, facts), as_of=as_of, pages=pages)


def base_from(builder: Builder, request: LockRequest, reporter: Reporter) -> Callable[[BuildPlan], LockedBase]:
    """Return a function that asks the given engine for the base of a plan."""
    options = BuildOptions(base=request.base, mirrors=request.settings.mirrors())
    return lambda plan: builder.locked_base(plan, options, reporter)


def lock_alone(request: LockRequest, reporter: Reporter) -> Lock:
    """Solve a lock without a build; the engine in the settings chooses the base.

    Raises:
        As `solve_lock`.
    """

    def resolve_base(plan: BuildPlan) -> LockedBase:
        name = request.settings.get("engine") or "auto"
        if name == "auto" and (request.base == bases.NONE or request.base.startswith(bases.PREFIX)):
            name = EMBEDDED  # such a base does not depend on an engine, so none has to be found
        builder = builder_of(name, reporter, docker_cli=request.settings.get("docker_cli") or "docker")
        return base_from(builder, request, reporter)(plan)

    request.check()
    return solve_lock(request, resolve_base, reporter)


def lock_for_build(request: LockRequest, builder: Builder, reporter: Reporter) -> Lock:
    """Solve the lock of a build that is about to begin.

    Raises:
        As `solve_lock`; if no source answers, the hint names --no-lock.
    """
    request.check()
    within = Within(reporter, "lock")
    try:
        return solve_lock(request, base_from(builder, request, within), within)
    except EnvironmentProblem as error:
        if builder.name == EMBEDDED:  # it cannot build without a lock
            raise
        alternative = "envkit build --no-lock lets conda and pip solve during the build"
        raise EnvironmentProblem(
            f"the lock cannot be solved: {error.message}",
            hint=f"{error.hint}; {alternative}" if error.hint else alternative,
            details=error.details,
        ) from error


def keep_lock(state: Path, lock: Lock, reporter: Reporter) -> None:
    """Save the lock in the state folder under its digest."""
    try:
        path = store_lock(state, lock)
    except OSError as error:
        reporter.note(f"the lock was not saved: {error.filename}: {error.strerror}")
        return
    reporter.note(f"lock: saved as {path}")


class Locks:
    """Solves and caches the locks of many plans.

    Args:
        settings: mirrors and facts.
        engine: the engine that will build; it chooses the base.
        reporter: receives the steps.
    """

    def __init__(self, settings: Settings, engine: str, reporter: Reporter) -> None:
        self._settings, self._engine, self._reporter = settings, engine, reporter
        self._facts: Facts | None = None
        self._builder: Builder | None = None
        self._solved: dict[_Key, Lock | EnvkitError] = {}
        self._bases: dict[tuple[object, ...], LockedBase] = {}

    def of(self, plan: BuildPlan, base: str = "auto") -> Lock:
        """Return the lock of a plan with the base of `--base`, or the one that the engine chooses.

        Raises:
            UsageError: a spec or the base is invalid.
            ConflictError: nothing satisfies the plan.
            EngineError: the registry has no such base, or refuses.
            EnvironmentProblem: a source does not answer.
            TimeLimitError: a solver did not finish in time.
        """
        request = LockRequest(plan=plan, settings=self._settings, base=base)
        request.check()
        if self._facts is None:
            self._facts = facts_of(self._settings)
        recorded = request.asked(self._facts)
        key = tuple(row for row in recorded if row[0] not in _NOT_SOLVED)
        if key not in self._solved:
            self._solved[key] = self._solve(request)
        solved = self._solved[key]
        if isinstance(solved, EnvkitError):  # a request without a solution has none with another base either
            raise solved
        return replace(solved, plan=plan.digest, request=recorded, base=self._base_of(request))

    def chosen(self, asked: Asked | BuildPlan, base: str = "auto") -> tuple[BuildPlan, Lock]:
        """Return the plan of a request with the newest torch that its packages allow, and its lock (`choosing.solve`).

        Raises:
            As `of`.
        """
        return choosing.solve(
            asked, lambda plan: self.of(plan, base), lambda plan: probe_of(self._settings, plan), self._reporter
        )

    def _solve(self, request: LockRequest) -> Lock | EnvkitError:
        try:
            return solve_lock(request, lambda _: bases.nothing(), self._reporter)  # the base is looked up per plan
        except EnvkitError as error:
            return error

    def _base_of(self, request: LockRequest) -> LockedBase:
        plan, resolution = request.plan, request.plan.resolution
        # Everything that an engine chooses a base by.
        key = (request.base, plan.base, plan.system, plan.flavor, resolution.os, resolution.platform)
        if key not in self._bases:
            self._bases[key] = base_from(self._engine_builder(), request, self._reporter)(plan)
        return self._bases[key]

    def _engine_builder(self) -> Builder:
        if self._builder is None:
            docker_cli = self._settings.get("docker_cli") or "docker"
            self._builder = builder_of(self._engine, self._reporter, docker_cli=docker_cli, state=state_dir())
        return self._builder
