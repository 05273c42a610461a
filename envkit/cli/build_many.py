"""`envkit build` of several images: by name, from a folder or a matrix; on this machine or on a cluster."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from envkit.cli.console import tell
from envkit.cli.options import STDOUT, load_definition, note
from envkit.cli.output import aligned, write_document
from envkit.cli.record_output import write_pages
from envkit.ground.errors import ConflictError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from envkit.cli.build_flags import BuildFlags
    from envkit.cli.record_output import ReportTarget
    from envkit.engines.model import BuildOptions
    from envkit.fleet.cells import Expanded
    from envkit.fleet.matrix import Matrix
    from envkit.fleet.model import Outcome
    from envkit.fleet.run import FleetRun
    from envkit.ground.settings import Settings

FOLDER = Path("images")


def check_choice(flags: BuildFlags) -> None:
    """Refuse options that contradict each other.

    Raises:
        UsageError: images are named in two ways, or an option for several images is given with one.
    """
    many = flags.many
    selectors = {"names": flags.definitions, "--all": many.every, "--matrix": many.matrix}
    given = [name for name, value in selectors.items() if value]
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)} each select the images to build", hint="give one of them")
    if flags.builds_several:
        return
    several = {"--jobs": many.jobs, "--resume": many.resume, "--skip-impossible": many.skip_impossible}
    for flag, value in several.items():
        if value:
            raise UsageError(f"{flag} is for several images", hint="envkit build a b c, --all, or --matrix FILE")


def check_single(flags: BuildFlags) -> None:
    """Refuse options that several images cannot share.

    Raises:
        UsageError: such an option was given.
    """
    single = {
        "-t": (flags.tags, "--output registry:HOST/NAME gives each image its own tag"),
        "--plan": (flags.plan_file, "name several images by their definitions, or by a matrix"),
        "--locked": (flags.locked, "leave it out: every image's lock is solved, equal ones once"),
        "--offline": (flags.offline, "for each image: envkit lock, then envkit build --locked FILE --offline"),
        "--report": (
            [target for target in flags.reports if target.kind != "html"],
            "-o FILE and --report html=FILE cover all images",
        ),
        "--push": (flags.push, "--output registry:HOST/NAME pushes each image"),
    }
    for flag, (value, hint) in single.items():
        if value:
            raise UsageError(f"{flag} is for one image", hint=hint)


def build_many(flags: BuildFlags, settings: Settings, options: BuildOptions, document: str | None) -> int:
    """Build every image, show the outcome of each, and return the most severe exit code.

    Raises:
        UsageError: options, the matrix or a definition are invalid.
        ConflictError: a cell is impossible and --skip-impossible is not given, or all cells are impossible.
        EnvironmentProblem: no engine, no disk space, no cluster.
    """
    from envkit.cli.cache import keep_within
    from envkit.cli.progress_table import progress_table
    from envkit.fleet import cells, report
    from envkit.fleet.run import FleetRequest, FleetRun, Remarks
    from envkit.pipeline.building import engine_name

    began, many = time.monotonic(), flags.many
    # On a cluster, each worker pushes its image to the registry after the build, so the engine itself needs no support
    # for these options.
    engine_options = replace(options, output=None, replace_tag=False, mount_from=()) if many.scheduler else options
    matrix = named_images(flags)
    request = FleetRequest(
        expanded=cells.Expanded(cells=(), impossible=()),
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
    expanded = cells.expand(
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
            publish(run, document, seconds=seconds, skip=many.skip_impossible, pages=flags.reports)
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


def publish(
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
