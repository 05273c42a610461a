"""Build a plan's packages that exist only as source into wheels, before the lock is solved.

    source -> builder image (locked: its packages have hashes) -> sandbox without network -> wheel in the cache

`build_sources` is for a new lock. `provide` is for an existing one: wheels that are missing in the cache are built
again with exactly the builder image in the lock.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from packaging.utils import parse_wheel_filename

from envkit.assemble.builders import EMBEDDED, builder_of
from envkit.engines.model import BuildOptions
from envkit.ground.cache import DOWNLOADS
from envkit.ground.engine_names import has_store
from envkit.ground.errors import ConflictError, EnvironmentProblem, IntegrityError, UsageError
from envkit.ground.paths import cache_dir, scratch, state_dir
from envkit.lock import base as bases
from envkit.lock import built, sdists
from envkit.lock.built import Outcome
from envkit.lock.model import BUILT, Lock, Source, Wheel
from envkit.lock.sdists import Sdist
from envkit.lock.solve import Sources
from envkit.lock.uv import Target
from envkit.pipeline.machine import memory_of, name_and_engine, runner_of
from envkit.plan.source_spec import SourceSpec, parse
from envkit.plan.toolchain import Needs, builder_plan
from envkit.registry.transport import Transport
from envkit.run import remedies, runners
from envkit.source import fetch, sandbox
from envkit.source.look import look, plain
from envkit.source.sandbox import Job

if TYPE_CHECKING:
    from pathlib import Path

    from envkit.engines.model import Builder
    from envkit.facts.model import Facts
    from envkit.ground.progress import Reporter
    from envkit.ground.settings import Settings
    from envkit.lock.index_locations import IndexLocations
    from envkit.plan.model import BuildPlan
    from envkit.source.fetch import Archive

_ROUNDS = 3  # a backend may request more packages after the first look, and again once it has those
_PREFIX = f"{bases.PREFIX}debian/"

LockBuilder = Callable[["BuildPlan", "Builder", str], Lock]
"""Solves the lock of a builder image from its plan, the engine that builds it, and a value of `--base`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceContext:
    """The context of source builds: the plan, settings and callbacks."""

    plan: BuildPlan
    facts: Facts
    settings: Settings
    indexes: IndexLocations
    lock_builder: LockBuilder
    reporter: Reporter

    @property
    def cache(self) -> Path:
        """The cache folder."""
        return cache_dir()


@dataclass(frozen=True, slots=True, kw_only=True)
class _ImageBuilder:
    """The engine that makes the builder image, and the image's base."""

    builder: Builder
    base: str


def build_sources(context: SourceContext, *, glibc: str, preferred: Mapping[str, str], as_of: str | None) -> Sources:
    """Build the packages that a plan allows from source and that have no wheel, or find them in the cache.

    Args:
        context: the plan and its context.
        glibc: of the image's OS.
        preferred: name -> version of an sdist that is chosen if it is possible.
        as_of: RFC 3339; newer sdists are not considered.

    Raises:
        ConflictError: no version fits, or a source cannot be built here.
        EngineError: a server refuses, or a build script failed.
        EnvironmentProblem: there is no sandbox, no Docker for a package that needs nvcc, or a source is unreachable.
        IntegrityError: a source differs from the index's hash, or its build gave an invalid wheel.
        TimeLimitError: a server does not respond, or a build took too long.
    """
    plan = context.plan
    specs = [parse(text) for text in plan.allow_source]
    names = [spec.name for spec in specs]
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise ConflictError(f"allow_source lists {repeated} twice", hint="list each package once")
    target = Target(platform=plan.resolution.platform, glibc=glibc, python=plan.resolution.python)
    context.reporter.step("look for packages without a wheel")
    others = (*plan.pip, *plan.constraints)
    offered = sdists.choose(specs, others, target, context.indexes, preferred=preferred, as_of=as_of)
    chosen = {sdist.name: sdist for sdist in offered}
    wheels: dict[Path, Wheel] = {}
    rows: list[Source] = []
    builders: dict[str, Lock] = {}
    # Sorted: the lock must not depend on the order in the definition.
    for spec in sorted(specs, key=lambda spec: spec.name):
        source = spec if spec.commit is not None else chosen.get(spec.name)
        if source is None:
            context.reporter.note(f"{spec.name} has a wheel, so it is not built from source")
            continue
        archive = _fetched(context, source)
        job, outcome = _built(context, archive, partial(_locked_builder, context, archive.name))
        path, wheel, row = _rows(job, outcome)
        wheels[path], builders[row.builder] = wheel, job.builder
        rows.append(row)
    kept = tuple(builders[seal] for seal in sorted(builders))
    return Sources(wheels=wheels, rows=tuple(rows), builders=kept)


def provide(context: SourceContext, lock: Lock) -> None:
    """Make sure that the cache has the wheels that a lock has from source.

    Raises:
        As `build_sources`; also IntegrityError if a build gives another SHA-256 than the lock has.
    """
    wheels = {wheel.name: wheel for wheel in lock.wheels if wheel.source == BUILT}
    builders = {builder.seal: builder for builder in lock.builders}
    for row in lock.sources:
        wheel = wheels[row.name]
        if built.path_of(wheel, row.key, context.cache) is not None:
            continue
        context.reporter.note(f"{wheel.file} is not in the cache; building it again from {row.url}")
        archive = fetch.same_bytes(_fetched(context, row), row.sha256)
        job, outcome = _built(context, archive, lambda _, row=row: builders[row.builder])  # type: ignore[misc]
        path, rebuilt, _ = _rows(job, outcome)
        if rebuilt.sha256 != wheel.sha256 or job.key != row.key:
            raise IntegrityError(
                f"{wheel.file} was rebuilt with SHA-256 {rebuilt.sha256}, but the lock has {wheel.sha256}",
                hint="the build is not reproducible, or another envkit made it; envkit lock records the new wheel",
                details=(str(path),),
            )


def _fetched(context: SourceContext, source: Sdist | SourceSpec | Source) -> Archive:
    folder, ca_bundle = DOWNLOADS.at(context.cache), context.indexes.ca_bundle
    if source.url is not None and not isinstance(source, Sdist) and source.commit is not None:
        return fetch.commit(source.name, source.url, source.commit, folder, context.reporter, ca_bundle=ca_bundle)
    assert not isinstance(source, SourceSpec)
    offered = Sdist(name=source.name, version=source.version, url=source.url, sha256=source.sha256, size=source.size)
    with Transport(ca_bundle=ca_bundle) as transport:
        return fetch.sdist(offered, context.indexes, transport, folder, context.reporter)


def _built(context: SourceContext, archive: Archive, builder_of: Callable[[BuildPlan], Lock]) -> tuple[Job, Outcome]:
    """Build a source; if its backend requests further packages, build again with those."""
    project = look(archive.path, archive.name, commit=archive.commit is not None)
    nvcc = project.cuda and context.plan.resolution.cuda is not None
    requires = project.requires
    for _ in range(_ROUNDS):
        needs = Needs(requires=requires, torch=project.torch, nvcc=nvcc)
        plan = _builder_plan(context, needs, archive.name)
        job = Job(
            archive=archive,
            project=replace(project, requires=requires),
            builder=builder_of(plan),
            nvcc=nvcc,
            gpu_archs=context.plan.resolution.gpus,
        )
        outcome = built.find(context.cache, job.key)
        if outcome is None:
            with scratch() as folder:
                outcome = built.keep(context.cache, job.key, _run(context, plan, job, folder))
        if outcome.wheel is not None:
            return job, outcome
        more, _ = plain(list(outcome.requires), archive.name)
        requires = tuple(sorted({*requires, *more}))
    raise ConflictError(
        f"the build backend of {archive.name} requests more packages each time: {', '.join(requires):.300}",
        hint="use another version of it",
    )


def _builder_plan(context: SourceContext, needs: Needs, name: str) -> BuildPlan:
    try:
        return builder_plan(context.plan, needs, context.facts)
    except UsageError as error:
        raise UsageError(f"building {name} needs nvcc: {error.message}", hint=error.hint) from error


def _run(context: SourceContext, plan: BuildPlan, job: Job, folder: Path) -> Outcome:
    """Build the builder image, then the source inside it."""
    tool = _image_builder(context, plan, job.archive.name, locked=job.builder)
    options = BuildOptions(
        tags=(f"envkit/{plan.name}:{job.builder.seal[7:19]}",),  # without `sha256:`
        mirrors=context.settings.mirrors(),
        network=context.settings.get("build_network") or "auto",
        output=f"oci:{folder / 'image'}" if tool.builder.name == EMBEDDED else None,
    )
    image = tool.builder.build(plan, job.builder, options, context.reporter)
    with ExitStack() as cleanup:
        cleanup.callback(shutil.rmtree, folder / "image", ignore_errors=True)
        settings = context.settings
        # Not `built`: the image may be trusted, but the build scripts that run in it need strong isolation.
        runner, name = runner_of(
            name_and_engine(image)[0], settings, context.reporter, engine=tool.builder.name, built=False, until=cleanup
        )
        return sandbox.build(job, runner, name, folder, context.reporter, memory_mb=memory_of(settings))


def _image_builder(context: SourceContext, plan: BuildPlan, name: str, *, locked: Lock | None = None) -> _ImageBuilder:
    """Choose how to make the builder image: from Debian packages without an engine, else by an engine with a daemon.

    `locked` is the image's lock, if there is one: only an engine can install system packages on a registry's base.

    Raises:
        EnvironmentProblem: neither works here; the message says what is missing.
    """
    devel = plan.flavor == "devel"
    why = f"{name} needs nvcc" if devel else _no_root(plan, locked)
    if why is None:
        return _ImageBuilder(builder=_builder(context, EMBEDDED), base=f"{_PREFIX}{bases.SUITES[plan.resolution.os]}")
    engine = context.settings.get("engine") or "auto"
    builder = _builder(context, engine if has_store(engine) else "docker")
    probe = builder.probe()
    if probe.available:
        return _ImageBuilder(builder=builder, base="auto")
    if devel:
        raise EnvironmentProblem(
            f"building {name} needs nvcc, which requires an image of the devel flavor and {builder.name}; "
            f"{builder.name} is not available: {probe.detail}",
            hint=probe.hint,
        )
    raise EnvironmentProblem(
        f"{name} must be built in a sandbox, and none works here: {why}",
        details=(probe.detail,),
        hint=remedies.hint(building=False),
    )


def _builder(context: SourceContext, name: str) -> Builder:
    docker_cli = context.settings.get("docker_cli") or "docker"
    return builder_of(name, context.reporter, docker_cli=docker_cli, state=state_dir())


def _no_root(plan: BuildPlan, locked: Lock | None) -> str | None:
    """Return why the builder image cannot be made here without an engine; None if it can."""
    if locked is not None and locked.base.kind != "bootstrap":
        return f"its builder image is based on {locked.base.reference}, which needs Docker"
    if plan.resolution.os not in bases.SUITES:
        return f"without Docker, builder images exist only for {', '.join(bases.SUITES)}, not for {plan.resolution.os}"
    missing = [program for program in ("mmdebstrap", "apt-get") if shutil.which(program) is None]
    if missing:
        return f"{missing[0]} is not installed"
    return runners.make("bubblewrap").probe()


def _locked_builder(context: SourceContext, name: str, plan: BuildPlan) -> Lock:
    tool = _image_builder(context, plan, name)
    context.reporter.step(f"lock the builder image of {name} ({', '.join(plan.pip) or 'no requirements'})")
    return context.lock_builder(plan, tool.builder, tool.base)


def _rows(job: Job, outcome: Outcome) -> tuple[Path, Wheel, Source]:
    assert outcome.wheel is not None
    path, archive = outcome.wheel, job.archive
    version = str(parse_wheel_filename(path.name)[1])
    data = path.read_bytes()
    wheel = Wheel(
        name=archive.name,
        version=version,
        file=path.name,
        url=archive.url,
        sha256=hashlib.sha256(data).hexdigest(),
        size=len(data),
        source=BUILT,
    )
    versions = {row.name: row.version for row in job.builder.conda} | {
        row.name: row.version for row in job.builder.wheels
    }
    torch = versions.get("torch", versions.get("pytorch"))  # the wheel, else the conda package
    cuda = dict(job.builder.request).get("cuda")
    row = Source(
        name=archive.name,
        version=version,
        url=archive.url,
        commit=archive.commit,
        sha256=archive.sha256,
        size=archive.size,
        builder=job.builder.seal,
        key=job.key,
        torch=torch if job.project.torch else None,
        cuda=cuda if job.project.torch and isinstance(cuda, str) else None,
        cxx11_abi=outcome.cxx11_abi,
    )
    return path, wheel, row
