"""Locks of many plans: equal requests are solved once, and every base is looked up once.

What conda and pip solve depends on neither the base nor the system's packages, so plans that differ in these alone
share one answer. Their locks differ in the base and in what they were solved for.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from envkit.assemble.builders import choose, meant
from envkit.build.model import BuildOptions
from envkit.facts.load import load
from envkit.ground.errors import EnvkitError
from envkit.ground.paths import state_dir
from envkit.lock import clientconf
from envkit.lock.base import nothing
from envkit.lock.request import request_of
from envkit.lock.solve import Options, lock_plan
from envkit.plan.bases import os_row
from envkit.render.locked import lock_places

if TYPE_CHECKING:
    from envkit.build.model import Builder
    from envkit.facts.model import Facts
    from envkit.ground.progress import Reporter
    from envkit.ground.settings import Settings
    from envkit.lock.model import Asked, Lock, LockedBase
    from envkit.plan.model import BuildPlan

_NOT_SOLVED = frozenset({"os", "base", "system"})  # of a request: what no solver sees; glibc stands for the OS
_Key = tuple[tuple[str, "Asked"], ...]


class Locks:
    """Solves and remembers.

    Args:
        here: mirrors and places.
        engine: which engine will build; it chooses the base.
        talk: hears the steps.
    """

    def __init__(self, here: Settings, engine: str, talk: Reporter) -> None:
        self._here, self._engine, self._talk = here, engine, talk
        self._facts: Facts | None = None
        self._builder: Builder | None = None
        self._solved: dict[_Key, Lock | EnvkitError] = {}
        self._bases: dict[tuple[object, ...], LockedBase] = {}
        self.solves = self.lookups = 0

    def of(self, plan: BuildPlan, asked_base: str = "auto") -> Lock:
        """The lock of a plan on what `--base` names, or on what the engine chooses.

        Raises:
            UsageError: a spec or the base is at fault.
            ConflictError: nothing satisfies the plan.
            EngineError: the registry has no such base, or refuses.
            SurroundingsError: a source does not answer.
            TimeLimitError: a solver found no end.
        """
        glibc = os_row(plan.resolution.os, self._all_facts()).glibc
        base = plan.base if asked_base == "auto" else asked_base
        asked = request_of(plan, glibc=glibc, base=base)
        key = tuple(row for row in asked if row[0] not in _NOT_SOLVED)
        if key not in self._solved:
            self.solves += 1
            self._solved[key] = self._solve(plan, glibc, base)
        solved = self._solved[key]
        if isinstance(solved, EnvkitError):  # what cannot be solved once cannot be solved for another base either
            raise solved
        return replace(solved, plan=plan.digest, request=asked, base=self._base_of(plan, asked_base))

    def _solve(self, plan: BuildPlan, glibc: str, base: str) -> Lock | EnvkitError:
        try:
            return lock_plan(
                plan,
                lock_places(plan, self._here.mirrors(), python_index=clientconf.python_index(os.environ)),
                Options(glibc=glibc, base=base),
                resolve_base=lambda _: nothing(),  # looked up for each plan
                reporter=self._talk,
            )
        except EnvkitError as error:
            return error

    def _base_of(self, plan: BuildPlan, asked: str) -> LockedBase:
        found = plan.resolution
        key = (asked, plan.base, plan.system, plan.flavor, found.os, found.platform)
        if key not in self._bases:
            self.lookups += 1
            options = BuildOptions(base=asked, mirrors=self._here.mirrors())
            self._bases[key] = self._engine_builder().locked_base(plan, options, self._talk)
        return self._bases[key]

    def _engine_builder(self) -> Builder:
        if self._builder is None:
            choice = choose if self._engine == "auto" else meant
            docker_cli = self._here.get("docker_cli") or "docker"
            self._builder = choice(self._engine, self._talk, docker_cli=docker_cli, state=state_dir())
        return self._builder

    def _all_facts(self) -> Facts:
        if self._facts is None:
            path = self._here.get("facts")
            self._facts = load(Path(path) if path else None)
        return self._facts
