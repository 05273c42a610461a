"""Build an image from a plan on any engine: find the base, render the files, pack the context, label and tag."""

from __future__ import annotations

import os
import re
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from envkit.engines import host_environment, journal
from envkit.engines.base import Bases
from envkit.engines.context import pack
from envkit.engines.labels import image_labels
from envkit.engines.log import BuildLog, hash_mismatch
from envkit.engines.model import BaseImage, BuildOptions, BuiltImage, Engine, Job, LocalImage, Probe
from envkit.ground.errors import (
    RAISE_TIMEOUT,
    EngineError,
    EnvironmentProblem,
    IntegrityError,
    LockError,
    TimeLimitError,
    UsageError,
)
from envkit.ground.paths import cache_dir, state_dir
from envkit.lock.base import NONE
from envkit.lock.built import context_files
from envkit.lock.request import require_fit
from envkit.lock.store import digest_of
from envkit.plan.definition import kind_of
from envkit.plan.names import repository
from envkit.render.packages import CA_FILE

if TYPE_CHECKING:
    from pathlib import Path

    from envkit.ground.progress import Reporter
    from envkit.lock.model import Lock, LockedBase
    from envkit.plan.model import BuildPlan

_TAG = re.compile(
    r"(?:[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?(?::[0-9]+)?/)?[a-z0-9]+(?:(?:\.|_{1,2}|-+|/)[a-z0-9]+)*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?"
)


class EngineBuilder:
    """Implements `Builder` on one engine."""

    def __init__(self, engine: Engine, *, state: Path | None = None) -> None:
        self.engine = engine
        self.name = engine.name
        self._state = state_dir() if state is None else state

    def probe(self) -> Probe:
        """Return whether the engine answers; see `Builder`."""
        return self.engine.probe()

    def build(self, plan: BuildPlan, lock: Lock | None, options: BuildOptions, reporter: Reporter) -> BuiltImage:
        """Build the plan; see `Builder`. Leftovers of dead runs are removed first."""
        check_tags(options.tags)
        if lock is not None:
            require_fit(lock, plan)
            check_base(lock, options.base)
        began = time.monotonic()
        for leftovers in journal.abandoned(self._state, self.name):
            # First of all: a client that still runs would create more containers.
            journal.end_processes(leftovers)
        removed = self.engine.sweep(self._state)
        if removed:
            reporter.note(f"removed {removed} containers of runs that were killed")
        with BuildLog(options.log_file, reporter) as log:
            mirrors, bundle = host_environment.certificates(options.mirrors, os.environ, reporter)
            network = host_environment.network(options.network, mirrors, self.engine, reporter)
            deadline = began + options.timeout_s if options.timeout_s else None
            base, build_base = self._bases(plan, lock, options, log, reporter=reporter, deadline=deadline)
            from envkit.render.render import render  # noqa: PLC0415 - Jinja; the embedded engine renders nothing

            rendered = render(
                plan,
                lock=lock,
                syntax=self.engine.syntax,
                mirrors=mirrors,
                template_dirs=options.template_dirs,
                base=base.reference,
                build_base=build_base.reference,
            )
            files = rendered.files | ({CA_FILE: bundle} if bundle is not None else {})
            if lock is not None:
                files |= context_files(lock, cache_dir())
            labels = image_labels(plan, base, options.labels, os.environ, lock)
            job = Job(
                name=plan.name,
                labels=labels,
                network=network,
                no_cache=options.no_cache,
                timeout_s=_left(options.timeout_s, began, plan.name),
                secrets=options.secrets,
                state=self._state,
            )
            reporter.step(f"build {plan.name} with {self.name}")
            image = self._make(pack(files, executable=rendered.executable), job, log, reporter, locked=lock is not None)
            for tag in options.tags:
                self.engine.tag(image, tag)
        built = self.engine.local(image)
        if built is None:
            raise EngineError(
                f"the {self.name} engine built {image}, but another process has removed it",
                hint="run envkit build again, with no cleanup job running at the same time",
            )
        return BuiltImage(
            id=image,
            tags=options.tags,
            engine=self.name,
            size=built.size,
            base=base,
            plan_digest=plan.digest,
            labels=tuple(labels.items()),
            duration_s=time.monotonic() - began,
            log_file=log.path,
            lock=digest_of(lock) if lock else None,
        )

    def locked_base(self, plan: BuildPlan, options: BuildOptions, reporter: Reporter) -> LockedBase:
        """Return the base for a lock; see `Builder`. The engine is asked only for local images and need not answer."""
        from envkit.engines import locked_base  # noqa: PLC0415 - requests takes 0.1 s to import
        from envkit.registry.transport import Transport  # noqa: PLC0415

        bundle = host_environment.ca_file(options.mirrors)
        mirrors = replace(options.mirrors, ca_bundle=bundle)
        with Transport(ca_bundle=bundle) as transport:
            return locked_base.to_lock(
                plan, options.base, mirrors=mirrors, transport=transport, reporter=reporter, local=self._local
            )

    def _local(self, reference: str) -> LocalImage | None:
        try:
            return self.engine.local(reference)
        except EnvironmentProblem:
            return None

    def _make(self, context: bytes, job: Job, log: BuildLog, reporter: Reporter, *, locked: bool) -> str:
        try:
            return self.engine.make(context, job, log, reporter)
        except EngineError as error:
            # Without a lock, pip's expected hash comes from the index.
            mismatch = hash_mismatch(log.tail()) if locked else None
            if mismatch is None:
                raise
            raise IntegrityError(
                f"the build of {job.name}: a download does not match the lock: {mismatch}",
                hint="run it again; if the error repeats, check the mirror (envkit config) or run envkit lock again",
                details=log.details(),
            ) from error

    def _bases(
        self,
        plan: BuildPlan,
        lock: Lock | None,
        options: BuildOptions,
        log: BuildLog,
        *,
        reporter: Reporter,
        deadline: float | None,
    ) -> tuple[BaseImage, BaseImage]:
        """Return the bases of the final and the build stage; the plan or a mirror may name different ones."""
        bases = Bases(self.engine, options, log, reporter, self._state, deadline=deadline)
        system = plan.resolution.os
        if lock is not None and lock.base.kind != NONE:
            if lock.base.kind == "bootstrap":
                from envkit.engines.locked_base import check_platform  # noqa: PLC0415 - as above

                check_platform(lock, os.uname().machine)
            base = bases.locked(lock.base)
        else:
            base = bases.find(plan.base, requested=options.base, system=system)
        conda_image = options.mirrors.miniconda_image
        if conda_image and kind_of(plan.template) == "miniconda":
            return base, bases.find(conda_image, requested=conda_image, system=system)
        if plan.build_base == plan.base:
            return base, base
        # With different bases in the plan, `--base` replaces only the final stage's.
        return base, bases.find(plan.build_base, requested="auto", system=system)


def check_tags(tags: tuple[str, ...]) -> None:
    """Check that every engine accepts these tags, before anything is built.

    Raises:
        UsageError: a tag is invalid.
    """
    for tag in tags:
        if not _TAG.fullmatch(tag):
            raise UsageError(
                f"--tag {tag!r:.200} is not an image's name", hint="--tag registry.example.com/team/train:1"
            )


def check_base(lock: Lock, requested: str) -> None:
    """Check that the requested base is the lock's. `auto` always is, and a lock without a base allows any.

    Raises:
        LockError: `requested` is another base.
    """
    names = (lock.base.reference, f"{lock.base.reference}@{lock.base.digest}")
    if requested != "auto" and lock.base.kind != NONE and requested not in names:
        raise LockError(
            f"--base {requested:.200} is not the base of the lock, {lock.base.reference}",
            hint=f"remove --base, or run envkit lock --base {requested:.200}",
        )


def with_default_tag(plan: BuildPlan, options: BuildOptions) -> BuildOptions:
    """Return the options, with the tag `envkit/<plan>:<torch>-<cuda or cpu>` if they have none.

    Raises:
        UsageError: a tag is invalid.
    """
    check_tags(options.tags)
    if options.tags:
        return options
    resolution = plan.resolution
    runtime = f"cu{resolution.cuda.replace('.', '')}" if resolution.cuda else "cpu"
    return replace(options, tags=(f"envkit/{repository(plan.name)}:{resolution.torch.partition('+')[0]}-{runtime}",))


def _left(timeout_s: float | None, began: float, name: str) -> float | None:
    """Return the rest of the time limit, for the build itself."""
    if timeout_s is None:
        return None
    left = timeout_s - (time.monotonic() - began)
    if left <= 0:
        raise TimeLimitError(
            f"the build of {name} reached its time limit of {timeout_s:g} s while looking for its base image",
            hint=RAISE_TIMEOUT,
        )
    return max(round(left, 1), 0.1)
