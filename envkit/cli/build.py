"""`envkit build`: build and verify one image or several."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from envkit.cli.build_flags import SCHEMA, BuildFlags
from envkit.cli.console import tell
from envkit.cli.declare import new_command, verbosity
from envkit.cli.options import STDOUT, deadline_of, exclude, load_definition, note
from envkit.cli.output import FailureDocument, write_document
from envkit.cli.record_output import ReportTarget, check_reports, publish, write_pages, write_reports
from envkit.ground.errors import ConflictError, EnvironmentProblem, InterruptedRun
from envkit.ground.text import aligned

if TYPE_CHECKING:
    from collections.abc import Sequence

    from envkit.cli.console import StepTimer
    from envkit.engines.model import BuildOptions, BuiltImage
    from envkit.fleet.expand import Expanded
    from envkit.fleet.matrix import Matrix
    from envkit.fleet.model import Outcome
    from envkit.fleet.run import FleetRun
    from envkit.ground.progress import Reporter
    from envkit.ground.settings import Settings
    from envkit.lock.model import Lock
    from envkit.pipeline.building import BuildResult
    from envkit.plan.model import BuildPlan

_SHOWN = ("torch", "cuda", "cudnn", "python", "source", "driver", "os")
_LONGEST = 4  # steps in the line on the time; -v shows all
FOLDER = Path("images")
_AGAIN = "run the same command again; finished downloads and layers are reused"


@new_command("build", BuildFlags)
def command(flags: BuildFlags) -> int:
    """Build images and verify them. The exit code is that of verification (see `envkit verify --help`).

    Packages are installed by hash from a lock: --locked FILE, envkit.lock in this folder if it fits, or a lock that is
    solved now.

    DEFINITION is a shipped image (envkit render --list-images), a YAML file, or a project file or folder that envkit
    init can read. Flags override it. With several images, all are built even if some fail; the exit code is the most
    severe one.

    \b
    envkit build                                  the default image
    envkit build --cuda 12.6 -t train:cu126       from flags only
    envkit build images/train.yaml --engine podman
    envkit build --output registry:registry.example.com/team/train:1   tagged after verification
    envkit build --matrix matrix.yaml --output registry:registry.example.com/team/train   every combination
    """  # noqa: D301 - click reads "\b" as "do not join these lines"
    from envkit.pipeline.verification import check_runner

    flags.check()
    document = flags.document.target()
    with FailureDocument(document, SCHEMA) as failure:
        check_reports(flags.reports, document, verified=not flags.no_verify)
        exclude(locked=flags.locked, no_lock=flags.no_lock)
        exclude(offline=flags.offline, no_cache=flags.no_cache)
        settings = flags.settings()
        if not flags.no_verify:
            check_runner(settings)
        options = flags.options(settings)
        if flags.builds_several:
            flags.check_several()
            failure.settled = True
            return _build_several(flags, settings, options, document)
        return _build_one(flags, settings, options, failure)


def _build_one(flags: BuildFlags, settings: Settings, options: BuildOptions, failure: FailureDocument) -> int:
    from envkit.cli.cache import keep_within
    from envkit.cli.push import report_tags
    from envkit.engines.builder import with_default_tag
    from envkit.pipeline.building import BuildRequest, Watcher, build, engine_name, options_here

    reporter = flags.progress.reporter()
    deadline = deadline_of(flags.timeout, reporter)
    engine = engine_name(settings, options)  # first, because it refuses options that the engine does not have
    asked = flags.asked()
    plan = flags.plan(asked)
    request = BuildRequest(
        plan=plan,
        asked=asked,
        options=with_default_tag(plan, options_here(options, settings, plan.name)),
        settings=settings,
        engine=engine,
        locked=flags.locked,
        no_lock=flags.no_lock,
        lock_command=flags.request.lock_command(
            flags.definition, flags.locked, base=flags.base, engine=flags.engine, allow_source=flags.allow_source
        ),
        verify=not flags.no_verify,
        allow_cpu=flags.allow_cpu,
    )
    push = flags.push_after(settings)
    failure.known |= {"name": plan.name, "plan": plan.digest, "image": None, "log": str(request.options.log_file)}

    def built(image: BuiltImage) -> None:
        failure.known.update(image=image.id, place=image.place, digest=image.digest)

    def locked(lock: Lock) -> None:
        _show_cost(lock, reporter)

    quiet = flags.progress.mode == "quiet"
    with closing(reporter):
        if not quiet:
            _show(plan)
        watcher = Watcher(built=built) if quiet else Watcher(built=built, locked=locked)
        try:
            result = build(request, push, reporter, deadline, watcher)
        except InterruptedRun as error:
            error.hint = _AGAIN
            raise
        keep_within(settings.get("cache_limit"), reporter)
    failure.settled = True
    code = _publish(result, flags.document.target(), flags.reports, _closing(result.image, reporter))
    if not quiet and verbosity().verbose:
        _show_times(reporter)
    elif not quiet and result.record is None:
        for label, text in _closing(result.image, reporter):
            tell(f"  {label}  {text}")
    report_tags(result.tags)
    return code


def _show(plan: BuildPlan) -> None:
    """Show the resolved versions with their reasons before the build starts."""
    from envkit.ground.text import neutral

    resolution = plan.resolution
    driver = resolution.driver
    values = {name: getattr(resolution, name) for name in _SHOWN} | {
        "driver": f">={driver.minimum}" if driver else None
    }
    rows = [(name, str(value), resolution.reasons.get(name, "")) for name, value in values.items() if value is not None]
    tell(f"{plan.title} (plan {plan.digest[:19]})")
    for line in aligned([[neutral(cell) for cell in row] for row in rows]):
        tell(f"  {line}")
    for warning in resolution.warnings:
        tell(f"warning: {neutral(warning)}")


def _show_cost(lock: Lock, reporter: Reporter) -> None:
    """Show the download sizes of the lock before anything is downloaded."""
    from envkit.cli.lock import COLUMNS, size_rows

    reporter.close()  # otherwise a progress bar would be drawn into the table
    for line in aligned([COLUMNS, *size_rows(lock)]):
        tell(f"  {line}")


def _publish(
    result: BuildResult, target: str | None, reports: tuple[ReportTarget, ...], rows: Sequence[tuple[str, str]] = ()
) -> int:
    """Write the record, the reports and the document; return the exit code of the verification.

    Raises:
        EnvironmentProblem: one of them cannot be written; the others are written first.
    """
    from envkit.ground.paths import state_dir
    from envkit.pipeline.verification import keep_record

    code, unwritten = 0, None
    built, record = result.image, result.record
    # stdout is for the document, which contains the record, so no report is printed.
    if record is not None and target == STDOUT:
        keep_record(record, state_dir())
        code, unwritten = record.exit_code, write_reports(record, reports)
    elif record is not None:
        try:
            code = publish(record, state_dir(), reports=reports, rows=rows)
        except EnvironmentProblem as error:  # raised below, after the document of the build is written
            unwritten = error
    if target is None and record is None:
        click.echo(built.pushed or built.place or built.id)
    write_document(document(result), target, done=f"the image was built: {built.id}")
    if unwritten is not None:
        raise unwritten
    return code


def document(result: BuildResult) -> dict[str, Any]:
    """Return the JSON document of a build (`envkit.build/1`)."""
    plan, built, record = result.plan, result.image, result.record
    return {
        "schema": SCHEMA,
        "image": built.id,
        "place": built.place,
        "digest": built.digest,
        "push": result.tags[0].to_json() if result.tags else None,
        "pushes": [tagging.to_json() for tagging in result.tags],
        "tags": list(built.tags),
        "engine": built.engine,
        "size_bytes": built.size,
        "name": plan.name,
        "plan": plan.digest,
        "lock": built.lock,
        "base": {
            "name": built.base.name,
            "reference": built.base.reference,
            "digest": built.base.digest,
            "origin": built.base.origin,
        },
        "labels": dict(built.labels),
        "duration_s": round(built.duration_s, 3),
        "failure": None,
        "log": str(built.log_file) if built.log_file else None,
        "resolution": plan.resolution.to_json(),
        "verification": None
        if record is None
        else {"verdict": record.verdict, "exit_code": record.exit_code, "record": dict(record.tree)},
    }


def _show_times(timer: StepTimer) -> None:
    tell(f"time by step ({timer.total():.0f} s in total):")
    for line in aligned([[f"{seconds:6.1f} s", text] for text, seconds in timer.rows()]):
        tell(f"  {line}")


def _closing(built: BuiltImage, timer: StepTimer) -> list[tuple[str, str]]:
    """Return labels and texts on what to do with an image, and on the time that it took."""
    from envkit.image.name import InLayout
    from envkit.pipeline.machine import name_and_engine

    rows = []
    if built.pushed is None:
        rows.append(("run it", "envkit run -- COMMAND"))
    if built.pushed is None and isinstance(name_and_engine(built)[0], InLayout):
        # Building it again with another --output is fast, because all of its layers are cached.
        rows.append(
            ("send it", "the same command with --output docker-daemon, registry:HOST/NAME:TAG or docker-archive:FILE")
        )
    longest = sorted(timer.rows(), key=lambda row: -row[1])[:_LONGEST]
    rows.append(
        ("time", f"{timer.total():.0f} s: " + ", ".join(f"{text} {seconds:.0f} s" for text, seconds in longest))
    )
    return rows


# Several images: by name, from a folder or a matrix; on this machine or on a cluster.


def _build_several(flags: BuildFlags, settings: Settings, options: BuildOptions, document: str | None) -> int:
    """Build every image, show the outcome of each, and return the most severe exit code.

    Raises:
        UsageError: options, the matrix or a definition are invalid.
        ConflictError: a cell is impossible and --skip-impossible is not given, or all cells are impossible.
        EnvironmentProblem: no engine, no disk space, no cluster.
    """
    from envkit.cli.cache import keep_within
    from envkit.cli.progress_table import progress_table
    from envkit.fleet import expand, report
    from envkit.fleet.run import FleetRequest, FleetRun, Remarks
    from envkit.pipeline.building import engine_name

    began, many = time.monotonic(), flags.many
    # On a cluster, each worker pushes its image to the registry after the build, so the engine itself needs no support
    # for these options.
    engine_options = replace(options, output=None, replace_tag=False, mount_from=()) if many.scheduler else options
    matrix = named_images(flags)
    request = FleetRequest(
        expanded=expand.Expanded(cells=(), impossible=()),
        where=matrix.where,
        settings=settings,
        options=options,
        engine=engine_name(settings, engine_options),
        verify=not flags.no_verify,
        no_lock=flags.no_lock,
        allow_cpu=flags.allow_cpu,
        jobs=many.jobs,
        resume=many.resume,
        scheduler=many.scheduler,
    )
    request.check()
    facts = flags.request.facts()
    load = partial(load_definition, facts=facts)
    expanded = expand.expand(
        matrix,
        flags.request.fields(facts),
        facts,
        load,
        base=options.base,
        allow_source=flags.allow_source,
        note=note,
    )
    _refuse_impossible(expanded, skip=many.skip_impossible)
    table = progress_table(flags.progress.mode, [cell.name for cell in expanded.cells])
    run = FleetRun(request=replace(request, expanded=expanded), listener=table)
    try:
        with closing(table):
            run.build()
            keep_within(settings.get("cache_limit"), Remarks(table))
    finally:
        # Also after an interruption, so that the document lists the images that were built.
        if run.outcomes:
            seconds = time.monotonic() - began
            publish_several(run, document, seconds=seconds, skip=many.skip_impossible, pages=flags.reports)
    return report.exit_code(run.outcomes, expanded.impossible, skip=many.skip_impossible)


def named_images(flags: BuildFlags) -> Matrix:
    """Return the matrix file, or a matrix without axes of the images that were named.

    Raises:
        UsageError: the matrix file is invalid.
    """
    from envkit.fleet.matrix import Matrix, read_matrix
    from envkit.plan.definition import shipped

    if flags.many.matrix is not None:
        return read_matrix(flags.many.matrix)
    if not flags.many.every:
        return Matrix(where="the command line", images=tuple(dict.fromkeys(flags.definitions or ("default",))))
    own = sorted(str(path) for ending in ("*.yaml", "*.yml") for path in FOLDER.glob(ending))
    if own:
        return Matrix(where=f"./{FOLDER}", images=tuple(own))
    return Matrix(where="the shipped images", images=tuple(shipped()))


def _refuse_impossible(expanded: Expanded, *, skip: bool) -> None:
    if not expanded.impossible or (skip and expanded.cells):
        for cell in expanded.impossible:
            tell(f"skipped: {cell.name}: {cell.reason}")
        return
    first, *others = expanded.impossible
    hint = f"--skip-impossible builds the other {len(expanded.cells)}" if expanded.cells else first.hint
    raise ConflictError(
        f"{first.name} is impossible: {first.reason}",
        details=tuple(f"{other.name}: {other.reason}" for other in others),
        hint=hint or "envkit matrix list",
    )


def publish_several(
    run: FleetRun, target: str | None, *, seconds: float, skip: bool, pages: Sequence[ReportTarget] = ()
) -> None:
    """Print the table and the failures, and write the document and the pages.

    Raises:
        EnvironmentProblem: the document cannot be written.
    """
    from envkit.fleet import report
    from envkit.ground.text import neutral

    expanded = run.request.expanded
    cells = run.cells
    order = {cell.name: at for at, cell in enumerate(cells)}
    outcomes = sorted(run.outcomes, key=lambda outcome: order.get(outcome.name, len(order)))
    rows = [report.COLUMNS, *report.rows(outcomes, expanded.impossible, cells)]
    for line in aligned([[neutral(cell) for cell in row] for row in rows]):
        # A document or a page on stdout must be the only output there.
        click.echo(line, err=STDOUT in (target, *(page.file for page in pages)))
    tell(f"{report.counts(outcomes, expanded.impossible)}, in {seconds:.0f} s")
    _show_failures(outcomes)
    if target is None and not pages:
        return
    tree = report.document(
        cells,
        outcomes,
        expanded.impossible,
        where=run.request.where,
        duration_s=seconds,
        jobs=run.jobs,
        skip=skip,
    )
    write_document(tree, target, done="the images were built")
    write_pages(tree, pages, done="the images were built")


def _show_failures(outcomes: Sequence[Outcome]) -> None:
    from envkit.ground.text import neutral

    for outcome in outcomes:
        if outcome.error is None or outcome.status == "stopped":
            continue
        click.echo(f"\n{outcome.name}: {neutral(outcome.error)}", err=True)
        for line in outcome.details:
            click.echo(f"  {neutral(line)}", err=True)
        if outcome.log:
            click.echo(f"  log: {outcome.log}", err=True)
        if outcome.hint:
            click.echo(f"  hint: {neutral(outcome.hint)}", err=True)
