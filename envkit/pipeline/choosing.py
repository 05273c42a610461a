"""One solve over hardware and packages: the newest torch that the facts and the packages of an image allow, locked.

The facts give candidates, newest first: torch for the hardware, with one Python after another. The packages' own
requirements limit them (`envkit.lock.limits`); the first candidate whose lock solves is taken.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from envkit.ground.errors import ConflictError, EnvkitError
from envkit.lock import previous
from envkit.lock.known_pages import KnownPages
from envkit.lock.limits import Allowed, Probe
from envkit.lock.request import misfit
from envkit.lock.store import read_lock
from envkit.pipeline.clash import Clash
from envkit.pipeline.resolving import shown_packages
from envkit.plan.model import BuildPlan
from envkit.plan.planner import completed
from envkit.resolve.candidates import Candidates, Limit, candidates_of
from envkit.resolve.companions import COMPANION_PACKAGES, mismatch
from envkit.resolve.index import index
from envkit.resolve.resolver import resolve

if TYPE_CHECKING:
    from envkit.facts.model import Build, Facts
    from envkit.ground.progress import Reporter
    from envkit.lock.model import Lock
    from envkit.pipeline.resolving import Asked
    from envkit.resolve.model import Resolution

LockOf = Callable[[BuildPlan], "Lock"]
ProbeOf = Callable[[BuildPlan], Probe]

_TRIES = 3  # candidates whose lock failed although the packages allow them, for one Python
_TORCHES = frozenset({"torch", "pytorch"})  # as a distribution and as a conda package
# What a solver's explanation names if another Python or another torch could help.
_DEPENDS = re.compile(r"torch|python|wheel|abi", re.IGNORECASE)


def depends(error: ConflictError) -> bool:
    """Return whether another torch or Python could help, and not, for example, if a package does not exist."""
    return _DEPENDS.search(" ".join(error.details)) is not None


def torch_of(lock: Lock) -> str | None:
    """Return the torch of a lock without its local version; None without one."""
    versions = [wheel.version for wheel in lock.wheels if wheel.name == "torch"]
    versions += [package.version for package in lock.conda if package.name == "pytorch"]
    return versions[0].partition("+")[0] if versions else None


def plan_like(asked: Asked, lock: Lock) -> BuildPlan | None:
    """Return the plan of a request with the torch and the Python of a lock; None if the request allows others only."""
    torch = torch_of(lock)
    if torch is None:
        return None
    limit = Limit(torch=torch, python=lock.python, reasons={"torch": "as in the lock", "python": "as in the lock"})
    try:
        # The request itself, too: with another Python, a project's file may have another constraint on it.
        return asked.plan(limit) if limit.fits(asked.request()) and limit.fits(asked.request(lock.python)) else None
    except EnvkitError:
        return None


def plan_for(asked: Asked | BuildPlan, file: Path) -> tuple[BuildPlan, Lock | None]:
    """Return the plan of a request, and the lock in a file if it can be read; a plan that is given stays as it is.

    A lock decides torch and Python if it fits the request with them: it stays valid when newer releases appear, and
    what `envkit lock` chose by the packages' requirements is not known without a network.

    Raises:
        UsageError, ConflictError: as `Asked.plan`.
    """
    plan = asked if isinstance(asked, BuildPlan) else asked.plan()
    try:
        lock = read_lock(file)
    except EnvkitError:
        return plan, None  # its error is reported where the lock is needed
    if not isinstance(asked, BuildPlan) and misfit(lock, plan):
        like = plan_like(asked, lock)
        plans = [plan, *([like] if like is not None else [])]
        # A lock also decides the system packages of the wheels that only others require.
        plans += [completed(one, _wheels_of(lock), asked.facts)[0] for one in plans]
        plan = next((one for one in plans if not misfit(lock, one)), plan)
    return plan, lock


def _wheels_of(lock: Lock) -> frozenset[str]:
    return frozenset(wheel.name for wheel in lock.wheels)


def tell_unchosen(asked: Asked, plan: BuildPlan, reporter: Reporter) -> None:
    """Say that a build without a lock takes the newest torch of the facts, if packages may allow another one only.

    Without a lock this machine asks no index, so what the packages require is first seen inside the build.
    """
    packages = asked.undecided(plan)
    if packages:
        reporter.note(
            f"--no-lock: torch {plan.resolution.torch} and Python {plan.resolution.python} are those of the facts; "
            f"only a build with a lock chooses them by the requirements of {shown_packages(packages)}"
        )


def solve(
    asked: Asked | BuildPlan,
    lock_of: LockOf,
    probe_of: ProbeOf,
    reporter: Reporter,
    *,
    old: Lock | None = None,
    update: Collection[str] = (),
) -> tuple[BuildPlan, Lock]:
    """Return the plan with the newest torch that the request and the packages allow, and its lock.

    Args:
        asked: the request; a plan that is given is locked as it is.
        lock_of: solves the lock of a plan.
        probe_of: returns what finds the newest torch that the packages of a plan allow.
        reporter: receives the steps.
        old: the current lock: its torch and Python are kept where they are possible.
        update: packages to update; with torch among them, torch is chosen again.

    Raises:
        ConflictError: no combination satisfies the request, or no candidate solves.
        EnvkitError: as `lock_of` raises.
    """
    if isinstance(asked, BuildPlan):
        return asked, lock_of(asked)
    first = asked.plan()
    if update:
        previous.previous_of(first, old, update)  # a wrong name is refused before a request is sent
    choice = _Choice(asked=asked, first=first, lock_of=lock_of, probe_of=probe_of, reporter=reporter)
    if old is not None and _TORCHES.isdisjoint(map(canonicalize_name, update)):
        like = plan_like(asked, old)
        if like is not None:
            try:
                return choice.locked(like, old)
            except ConflictError as error:
                reporter.note(f"torch {like.resolution.torch} of the old lock is not kept: {error.message}")
    if asked.undecided(first):
        return choice.among(asked.candidates(first))
    try:
        return choice.locked(first, old)
    except ConflictError as error:
        choice.failures.append((first.resolution.python, error))
        raise choice.failure() from error


class UnfitError(ConflictError):
    """A companion of torch in a lock does not work beside its torch."""


def unfit(build: Build, versions: Mapping[str, str], facts: Facts) -> str:
    """Return why a companion of torch does not work beside a build, which its metadata do not say; empty if all do.

    Args:
        build: of torch.
        versions: distribution -> version of all packages.
        facts: which files of the companions exist, and for which torch and CUDA.
    """
    for name in COMPANION_PACKAGES:
        version = versions.get(name, "").partition("+")[0]
        wrong = mismatch(build, name, version, index(facts)) if version else None
        if wrong is not None:
            made = f"compiled for CUDA {wrong.cuda}" if wrong.cuda else f"for torch {wrong.torch}"
            beside = f"CUDA {build.cuda}" if build.cuda else "no CUDA"
            return f"{name} {version}, which other packages require, is {made}, and this torch is for {beside}"
    return ""


def _is_of(build: Build, resolution: Resolution) -> bool:
    """Return whether a build is that of a resolution."""
    keys = ("torch", "cuda", "source", "platform")
    return all(getattr(build, key) == getattr(resolution, key) for key in keys)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choice:
    """The search for the first candidate that solves."""

    asked: Asked
    first: BuildPlan  # the newest candidate, which the facts alone would take
    lock_of: LockOf
    probe_of: ProbeOf
    reporter: Reporter
    failures: list[tuple[str, ConflictError]] = field(default_factory=list)  # Python -> why nothing solves with it
    pages: KnownPages = field(init=False)  # each page is read once for all candidates

    def __post_init__(self) -> None:
        object.__setattr__(self, "pages", KnownPages(self.asked.facts.package_needs))

    def _probe(self, plan: BuildPlan) -> Probe:
        return replace(self.probe_of(plan), pages=self.pages)

    def among(self, pythons: tuple[Candidates, ...]) -> tuple[BuildPlan, Lock]:
        """Return the plan and lock of the first candidate that solves.

        Raises:
            ConflictError: none does.
        """
        self.reporter.step("choose torch by the packages' requirements")
        for some in pythons:
            found = self._with(some, {other.python: other for other in pythons})
            if found is not None:
                return found
            if not depends(self.failures[-1][1]):
                break
        raise self.failure()

    def _with(self, some: Candidates, others: dict[str, Candidates]) -> tuple[BuildPlan, Lock] | None:
        """Return the first candidate with one Python that solves; None if none does."""
        while some.builds:
            plan = self._plan(some.torches[0], some.python)
            try:
                allowed = self._probe(plan).newest(plan, some)
            except ConflictError as error:
                self.failures.append((some.python, error))
                return None
            rest, unfit = some.without([allowed.torch]), self._unfit(some, allowed)
            if unfit and rest.builds:
                self.reporter.note(f"torch {allowed.torch} is not taken: {unfit}")
                some = rest
                continue
            chosen = self._chosen(plan, some, allowed, others)
            if chosen.resolution.torch != self.first.resolution.torch:
                self.reporter.note(f"torch {chosen.resolution.torch}: {chosen.resolution.reasons['torch']}")
            try:
                return self.locked(chosen)
            except ConflictError as error:
                self.failures.append((chosen.resolution.python, error))
                if len(self.failures) > _TRIES:
                    return None
                some = some.without([allowed.torch])
        return None

    def _unfit(self, some: Candidates, allowed: Allowed) -> str:
        """Return why a package that others require does not work beside a torch, which its metadata do not say."""
        build = next(build for build in some.builds if build.torch == allowed.torch)
        return unfit(build, allowed.versions, self.asked.facts)

    def locked(self, plan: BuildPlan, old: Lock | None = None) -> tuple[BuildPlan, Lock]:
        """Return a plan with the system packages of all wheels of its lock, and this lock.

        Raises:
            ConflictError: the plan has no lock, or a companion of torch in it does not work beside its torch.
        """
        facts = self.asked.facts
        # With those of the old lock, which mostly needs the same, one solve is enough.
        start = completed(plan, _wheels_of(old), facts)[0] if old else plan
        lock = self.fitting(start, self.lock_of(start))
        whole, added = completed(plan, _wheels_of(lock), facts)
        if whole.system != start.system:
            lock = self.lock_of(whole)
        for name, packages in added.items():
            pronoun = "them" if packages[1:] else "it"
            self.reporter.note(
                f"the image gets {', '.join(packages)}: {name}, which other packages require, needs {pronoun}"
            )
        return whole, lock

    def fitting(self, plan: BuildPlan, lock: Lock) -> Lock:
        """Return a lock whose companions of torch work beside its torch.

        The probe does not see those that only a package built from source requires, and a request that allows one torch
        has no other candidate.

        Raises:
            ConflictError: one does not.
        """
        resolution = plan.resolution
        build = next((row for row in self.asked.facts.builds if _is_of(row, resolution)), None)
        why = unfit(build, {wheel.name: wheel.version for wheel in lock.wheels}, self.asked.facts) if build else ""
        if why:
            raise UnfitError(f"torch {resolution.torch}: {why}")
        return lock

    def _other_torch(self) -> str | None:
        """Return the newest torch with whose build the companions that packages require work; None if none is known."""
        try:
            request = self.asked.request()
            found = candidates_of(replace(request, torch=None), self.asked.facts, self.first.resolution.python)
            some = next((some for some in found if some.python == self.first.resolution.python), None)
            while some is not None and some.builds:
                resolution = resolve(Limit(torch=some.torches[0], python=some.python).of(
                    replace(request, torch=None)), self.asked.facts)  # fmt: skip
                plan = replace(self.first, resolution=resolution)
                allowed = self._probe(plan).newest(plan, some)
                if not self._unfit(some, allowed):
                    return allowed.torch
                some = some.without([allowed.torch])
        except EnvkitError:  # the packages allow no other
            return None
        return None

    def _plan(self, torch: str, python: str) -> BuildPlan:
        resolution = self.first.resolution
        if (torch, python) == (resolution.torch, resolution.python):
            return self.first
        return self.asked.plan(Limit(torch=torch, python=python, reasons=self._reasons(python)))

    def _chosen(self, plan: BuildPlan, some: Candidates, allowed: Allowed, others: dict[str, Candidates]) -> BuildPlan:
        """Return the plan of the allowed torch, with the Python that is best for it if the packages allow that, too."""
        if allowed.torch == plan.resolution.torch:
            return plan
        limiting = None if allowed.why else self._probe(plan).limiting(plan, some, allowed)
        why = allowed.why or f"newest that the other packages allow{f': {limiting}' if limiting else ''}"
        reasons = {"torch": why, **self._reasons(some.python)}
        if some.python == self.first.resolution.python:
            best = self.asked.plan(Limit(torch=allowed.torch, reasons={"torch": why}))
            other = others.get(best.resolution.python)
            if best.resolution.python != some.python and other is not None and self._allows(best, other, allowed.torch):
                return best
        return self.asked.plan(Limit(torch=allowed.torch, python=some.python, reasons=reasons))

    def _allows(self, plan: BuildPlan, some: Candidates, torch: str) -> bool:
        narrow = some.without(other for other in some.torches if other != torch)
        try:
            return bool(narrow.builds) and self._probe(plan).newest(plan, narrow).torch == torch
        except ConflictError:
            return False

    def _reasons(self, python: str) -> dict[str, str]:
        if python == self.first.resolution.python:
            return {}
        return {"python": f"the packages do not solve with Python {self.first.resolution.python}"}

    def failure(self) -> ConflictError:
        """Return the error of the newest candidate, with what clashes, changes that solve and the Pythons tried."""
        error = self.failures[0][1]
        tried = list(dict.fromkeys(python for python, _ in self.failures))
        if tried[1:]:
            error.details = (*error.details, f"tried with Python {', '.join(tried)}: none solves")
        if isinstance(error, UnfitError):
            torch = self._other_torch()
            command = shlex.join(("envkit", "lock", self.asked.definition, "--torch", torch or ""))
            error.hint = command if torch else "remove the package that requires it, or name another version of it"
            return error
        if not depends(error):
            return error
        self.reporter.step("look for changes that solve")
        clash = Clash(
            first=self.first,
            request=self.asked.request(),
            facts=self.asked.facts,
            probe_of=self._probe,
            pages=self.pages,
        )
        return clash.explained(error, ("envkit", "lock", self.asked.definition))
