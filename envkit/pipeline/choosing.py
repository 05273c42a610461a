"""One solve over hardware and packages: the newest torch that the facts and the packages of an image allow, locked.

The facts give candidates, newest first: torch for the hardware, with one Python after another. The packages' own
requirements limit them (`envkit.lock.limits`); the first candidate whose lock solves is taken.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from envkit.ground.errors import ConflictError, EnvkitError
from envkit.lock import previous
from envkit.lock.limits import Allowed, Probe
from envkit.lock.request import misfit
from envkit.lock.store import read_lock
from envkit.pipeline.asking import shown_packages
from envkit.pipeline.clash import Clash
from envkit.plan.model import BuildPlan
from envkit.resolve.candidates import Candidates, Limit
from envkit.resolve.companions import COMPANION_PACKAGES, mismatch
from envkit.resolve.index import index

if TYPE_CHECKING:
    from envkit.ground.progress import Reporter
    from envkit.lock.model import Lock
    from envkit.pipeline.asking import Asked

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
        plan = like if like is not None and not misfit(lock, like) else plan
    return plan, lock


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
    if old is not None and _TORCHES.isdisjoint(map(canonicalize_name, update)):
        like = plan_like(asked, old)
        if like is not None:
            try:
                return like, lock_of(like)
            except ConflictError as error:
                reporter.note(f"torch {like.resolution.torch} of the old lock is not kept: {error.message}")
    choice = _Choice(asked=asked, first=first, lock_of=lock_of, probe_of=probe_of, reporter=reporter)
    if asked.undecided(first):
        return choice.among(asked.candidates(first))
    try:
        return first, lock_of(first)
    except ConflictError as error:
        choice.failures.append((first.resolution.python, error))
        raise choice.failure() from error


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choice:
    """The search for the first candidate that solves."""

    asked: Asked
    first: BuildPlan  # the newest candidate, which the facts alone would take
    lock_of: LockOf
    probe_of: ProbeOf
    reporter: Reporter
    failures: list[tuple[str, ConflictError]] = field(default_factory=list)  # Python -> why nothing solves with it

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
                allowed = self.probe_of(plan).newest(plan, some)
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
                return chosen, self.lock_of(chosen)
            except ConflictError as error:
                self.failures.append((chosen.resolution.python, error))
                if len(self.failures) > _TRIES:
                    return None
                some = some.without([allowed.torch])
        return None

    def _unfit(self, some: Candidates, allowed: Allowed) -> str:
        """Return why a package that others require does not work beside a torch, which its metadata do not say."""
        build = next(build for build in some.builds if build.torch == allowed.torch)
        for name in COMPANION_PACKAGES:
            version = allowed.versions.get(name, "").partition("+")[0]
            wrong = mismatch(build, name, version, index(self.asked.facts)) if version else None
            if wrong is not None:
                made = f"compiled for CUDA {wrong.cuda}" if wrong.cuda else f"for torch {wrong.torch}"
                beside = f"CUDA {build.cuda}" if build.cuda else "no CUDA"
                return f"{name} {version}, which other packages require, is {made}, and this torch is for {beside}"
        return ""

    def _plan(self, torch: str, python: str) -> BuildPlan:
        resolution = self.first.resolution
        if (torch, python) == (resolution.torch, resolution.python):
            return self.first
        return self.asked.plan(Limit(torch=torch, python=python, reasons=self._reasons(python)))

    def _chosen(self, plan: BuildPlan, some: Candidates, allowed: Allowed, others: dict[str, Candidates]) -> BuildPlan:
        """Return the plan of the allowed torch, with the Python that is best for it if the packages allow that, too."""
        if allowed.torch == plan.resolution.torch:
            return plan
        limiting = self.probe_of(plan).limiting(plan, some, allowed)
        why = f"newest that the other packages allow{f': {limiting}' if limiting else ''}"
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
            return bool(narrow.builds) and self.probe_of(plan).newest(plan, narrow).torch == torch
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
        if not depends(error):
            return error
        self.reporter.step("look for changes that solve")
        clash = Clash(
            first=self.first, request=self.asked.request(), facts=self.asked.facts, probe_of=self.probe_of
        )  # fmt: skip
        return clash.explained(error, ("envkit", "lock", self.asked.definition))
