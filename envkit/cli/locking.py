"""The lock of a build: the one that was named, the one that lies here and fits, or one that is solved now."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from envkit.cli.request_options import FLAGS, load_facts

if TYPE_CHECKING:
    from envkit.build.model import Builder, BuildOptions
    from envkit.facts.model import Facts
    from envkit.ground.progress import Reporter
    from envkit.ground.settings import Settings
    from envkit.lock.model import Lock
    from envkit.plan.model import BuildPlan


def given(plan: BuildPlan, file: str | None, base: str, command: str, talk: Reporter) -> Lock | None:
    """The lock in a file, or the `envkit.lock` of this folder where it fits; None = there is none to take.

    Args:
        plan: what is about to be built.
        file: what `--locked` names.
        base: what `--base` names.
        command: the `envkit lock` command of this request, for hints.
        talk: hears which lock is taken, and why one is not.

    Raises:
        LockError: the named file is missing, or made for another request.
        UsageError: a lock cannot be read.
        IntegrityError: an artefact in it has no SHA-256.
    """
    from envkit.build.builder import check_base
    from envkit.ground.errors import LockError
    from envkit.lock.model import FILE, UNSEALED
    from envkit.lock.request import require_fit
    from envkit.lock.store import read_lock

    path = Path(file or FILE)
    if file is None and not path.is_file():
        return None
    try:
        lock = read_lock(path)
    except LockError as error:
        raise LockError(error.message, hint=command) from error
    try:
        require_fit(lock, plan, where=str(path), hint=command)
        check_base(lock, base)
    except LockError as error:
        if file is not None:
            raise
        talk.note(f"lock: {error.message}; a new one is solved for this build ({command} writes it)")
        return None
    talk.note(f"lock: {path}")
    if lock.schema == UNSEALED:
        talk.note(f"lock: {UNSEALED} has no seal, so a changed row can go unseen; {command} writes one")
    return lock


def lock_for(
    plan: BuildPlan,
    builder: Callable[[], Builder],
    base: str,
    talk: Reporter,
    *,
    settings: Settings,
    glibc: str,
    as_of: str | None = None,
    update: tuple[str, ...] = (),
    old: Lock | None = None,
) -> Lock:
    """Solve the lock of a plan for the engine that will build it: the one way to a lock, for every verb.

    Args:
        plan: what to lock.
        builder: gives the engine's builder, which chooses the base; called when everything else is solved.
        base: what `--base` names, or `auto`.
        talk: hears the steps.
        settings: mirrors and places.
        glibc: of the image's OS.
        as_of: RFC 3339; nothing newer is considered.
        update: packages that may move away from `old`.
        old: the lock that is there.

    Raises:
        As `envkit.lock.solve.lock_plan` and `Builder.locked_base`.
    """
    from envkit.build.model import BuildOptions
    from envkit.cli.lock import places
    from envkit.lock import base as bases
    from envkit.lock.solve import Options, lock_plan

    bases.check(base_asked(plan, base), plan)  # before minutes of solving
    options = BuildOptions(base=base, mirrors=settings.mirrors())
    return lock_plan(
        plan,
        places(plan, settings),
        Options(glibc=glibc, base=base_asked(plan, base), as_of=as_of, update=update, old=old),
        resolve_base=lambda made: builder().locked_base(made, options, talk),
        reporter=talk,
    )


def solve(
    plan: BuildPlan,
    builder: Builder,
    options: BuildOptions,
    talk: Reporter,
    *,
    settings: Settings,
    facts_file: str | None,
) -> Lock:
    """Solve the lock of a build now.

    Raises:
        As `lock_for`; where no source answers, the hint names --no-lock.
    """
    from envkit.ground.errors import SurroundingsError

    try:
        return lock_for(
            plan,
            lambda: builder,
            options.base,
            _Within(talk, "lock"),
            settings=settings,
            glibc=glibc(plan, load_facts(facts_file)),
        )
    except SurroundingsError as error:
        way = "envkit build --no-lock leaves the solving to conda and pip inside the build"
        raise SurroundingsError(
            f"the lock cannot be solved: {error.message}",
            hint=f"{error.hint}; {way}" if error.hint else way,
            details=error.details,
        ) from error


def base_asked(plan: BuildPlan, base: str) -> str:
    """The base as a lock notes the request: the same for every engine, so that a lock fits whichever builds."""
    return plan.base if base == "auto" else base


def glibc(plan: BuildPlan, facts: Facts) -> str:
    """Version of glibc in the plan's OS."""
    from envkit.plan.bases import os_row

    return os_row(plan.resolution.os, facts).glibc


def take(state: Path, lock: Lock, talk: Reporter, *, shown: bool) -> None:
    """Keep the lock that is about to be installed, and show what it costs."""
    keep(state, lock, talk)
    if shown:
        show(lock, talk)


def keep(state: Path, lock: Lock, talk: Reporter) -> None:
    """Keep the lock in the state folder under its digest."""
    from envkit.lock.store import store_lock

    try:
        path = store_lock(state, lock)
    except OSError as error:
        talk.note(f"the lock is not kept: {error.filename}: {error.strerror}")
        return
    talk.note(f"lock: kept as {path}")


def show(lock: Lock, talk: Reporter) -> None:
    """What the lock will cost, on stderr, before anything is downloaded."""
    from envkit.cli.lock import COLUMNS, size_rows
    from envkit.cli.table import aligned

    talk.close()  # a bar in the middle of the table
    for line in aligned([COLUMNS, *size_rows(lock)]):
        click.echo(f"  {line}", err=True)


def command_line(definition: str | None, typed: Mapping[str, Any], file: str | None) -> str:
    """The `envkit lock` command that solves the same request into a file."""
    words = ["envkit", "lock", *([definition] if definition else [])]
    for name in (*FLAGS, "template", "base", "engine"):
        value = typed.get(name)
        if not value or (name, value) == ("base", "auto"):
            continue
        for one in value if isinstance(value, tuple) else (value,):
            words += [f"--{name}"] if one is True else [f"--{name}", str(one)]
    words += ["--facts", typed["facts_file"]] if typed.get("facts_file") else []
    return shlex.join([*words, "-o", file or "envkit.lock"])


class _Within:
    """A reporter whose steps are parts of a larger one."""

    def __init__(self, talk: Reporter, step: str) -> None:
        self._talk, self._step = talk, step
        self.log, self.advance, self.note, self.close = talk.log, talk.advance, talk.note, talk.close

    def step(self, text: str) -> None:
        """`lock: solve 4 conda specs`."""
        self._talk.step(f"{self._step}: {text}")
