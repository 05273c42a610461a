"""`envkit verify`: run the smoke benchmark inside an image, judge it outside, show and keep the record."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from envkit.cli.documents import document_options, target_of
from envkit.cli.judging import check_reason, judging_options, keep_baseline, run_self_test
from envkit.cli.limit import Limit, limit_option
from envkit.cli.observing import observing_options, without_running
from envkit.cli.reports import Target, check_reports, report_option
from envkit.cli.tracing import keep_trace, trace_option
from envkit.cli.verify_many import check_single, check_workers, many_options, verify_many
from envkit.ground.settings import RUNNERS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from envkit.plan.model import BuildPlan
    from envkit.verify.compare.launches import Subject

_TIERS = ("quick", "standard", "deep")


@click.command("verify")
@click.argument("images", nargs=-1, metavar="[IMAGE]...")
@click.option("--plan", "plan_file", type=click.Path(path_type=Path), help="Plan the image was built from (plan.json).")
@click.option("--gpus", help="GPUs for the container: all, none, or device numbers. Default: all, where there are any.")
@click.option(
    "--runner",
    type=click.Choice(RUNNERS),
    help="Where the payload runs.",
)
@click.option("--tier", type=click.Choice(_TIERS), help="How much is checked. Default: the plan's tier.")
@click.option("--only", multiple=True, metavar="IDS", help="Run these checks alone: C05,C06.")
@click.option("--skip", multiple=True, metavar="IDS", help="Leave these checks out.")
@click.option("--list", "list_checks", is_flag=True, help="List the checks and stop.")
@document_options("the record (schema envkit.verify/1)")
@report_option
@trace_option
@click.option("--schema", "show_schema", is_flag=True, help="Print the record's JSON Schema and stop.")
@judging_options
@observing_options
@many_options
@click.option("--allow-cpu", is_flag=True, help="Exit 0 although a CUDA image met no GPU; the record says so.")
@click.option("--require-gpu", is_flag=True, help="Exit 5 unless a GPU took part, for CPU images too.")
@limit_option()
@click.option("--memory", metavar="SIZE", help="Memory of the run: 16GB. Default: 3/4 of the machine's.")
@click.option(
    "--progress", type=click.Choice(["auto", "plain", "quiet", "json"]), default="auto", help="Talk on stderr."
)
@click.option("-v", "--verbose", is_flag=True, help="Show the payload's output while it runs.")
def command(
    *,
    images: tuple[str, ...],
    plan_file: Path | None,
    gpus: str | None,
    runner: str | None,
    tier: str | None,
    only: tuple[str, ...],
    skip: tuple[str, ...],
    list_checks: bool,
    as_json: bool,
    out_file: str | None,
    reports: tuple[Target, ...],
    trace_file: Path | None,
    show_schema: bool,
    judge: Path | None,
    thresholds: str,
    baseline: Path | None,
    new_baseline: Path | None,
    reason: str | None,
    self_test: bool,
    observed: str | None,
    questions: Path | None,
    scheduler: str | None,
    workers: str | None,
    allow_cpu: bool,
    require_gpu: bool,
    timeout: float | None,
    memory: str | None,
    progress: str,
    verbose: bool,
) -> int:
    """Prove IMAGE (default: the one built last), or say what is wrong with it.

    IMAGE is a name or id in an engine, a file (oci:DIR[:TAG], docker-archive:FILE[:TAG]), or in a registry
    (registry:HOST/NAME:TAG). Files and registries need no engine. Several images give one table, and with --scheduler
    every image is verified on every GPU machine of a Dask cluster.

    Exit codes: 0 proved, 5 not proved (no GPU, no plan, inconclusive), 6 failed, 9 this machine is at fault,
    124 time limit.
    """
    from envkit.cli import configured
    from envkit.cli.console import reporter
    from envkit.cli.publish import publish
    from envkit.ground import paths
    from envkit.ground.errors import UsageError
    from envkit.pipeline.verification import settings_here, subject_of
    from envkit.pipeline.verification import verify as run_verification
    from envkit.verify.baseline import read_baseline
    from envkit.verify.driver import Options

    if show_schema:
        _schema()
        return 0
    only, skip = _chosen(tier, only, skip)
    if list_checks:
        _list(tier, only, skip)
        return 0
    document = target_of(as_json=as_json, out_file=out_file)
    check_reports(reports, document)
    why = check_reason(new_baseline, reason)
    if judge is not None or observed is not None or questions is not None:
        return without_running(click.get_current_context().params | {"document": document}, thresholds)
    if allow_cpu and require_gpu:
        raise UsageError("--allow-cpu and --require-gpu contradict each other", hint="give one of them")
    check_workers(scheduler, workers)
    if scheduler is not None or len(images) > 1:
        single = {"plan_file": plan_file, "reports": reports, "trace_file": trace_file, "judge": judge}
        check_single(single | {"baseline": baseline, "new_baseline": new_baseline, "self_test": self_test})
        asked = {
            "runner": runner, "gpus": gpus, "tier": tier, "allow_cpu": allow_cpu, "require_gpu": require_gpu,
            "timeout_s": timeout, "memory": memory, "only": only, "skip": skip, "argv": tuple(sys.argv),
        }  # fmt: skip
        talk = reporter(progress, verbose=verbose)
        return verify_many(images, asked, talk, scheduler=scheduler, workers=workers, document=document)
    image = images[0] if images else None
    here, state = configured.noted(settings_here(runner, memory)), paths.state_dir()
    target, engine, plan = _target(state, image, plan_file, here.get("runner") or "auto")
    talk = reporter(progress, verbose=verbose)
    documents: list[Mapping[str, Any] | None] = []
    options = Options(
        allow_cpu=allow_cpu,
        require_gpu=require_gpu,
        timeout_s=timeout,
        only=only,
        skip=skip,
        argv=tuple(sys.argv),
        baseline=None if baseline is None else read_baseline(baseline),
        on_trace=None if trace_file is None else documents.append,
    )
    try:
        limit = Limit(timeout, lambda: f"fetching {target}")
        with limit.holds():
            subject = subject_of(target, here, talk, options, plan=plan, engine=engine, gpus=gpus, tier=tier)
            subject = _fetched(subject, limit)
        if self_test:
            return run_self_test(subject, talk, state, document)
        record = run_verification(subject, talk)
    finally:
        talk.close()
    exit_code = publish(record, state, document, reports)
    if new_baseline is not None:
        keep_baseline(new_baseline, record, why)
    return exit_code if trace_file is None else keep_trace(trace_file, documents, exit_code)


def _fetched(subject: Subject, limit: Limit) -> Subject:
    """Fetch what the cache lacks of a registry's image; the run gets what is left of the limit."""
    from envkit.image.reference import is_remote

    if not is_remote(subject.image):
        return subject
    subject.runner.inspect(subject.image)
    return replace(subject, options=replace(subject.options, timeout_s=limit.left()))


def ids(given: tuple[str, ...]) -> tuple[str, ...]:
    """Check ids from options that may be repeated and may hold several."""
    return tuple(item.strip().upper() for text in given for item in text.split(",") if item.strip())


def _chosen(tier: str | None, only: tuple[str, ...], skip: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The ids of both options, each of which is a check's; said before anything is looked for."""
    found = ids(only), ids(skip)
    if any(found):
        from envkit.verify.catalog import select

        select(tier or "quick", *found)
    return found


def _schema() -> None:
    import json

    from envkit.verify.record import schema

    click.echo(json.dumps(schema(), indent=2))


def _list(tier: str | None, only: tuple[str, ...], skip: tuple[str, ...]) -> None:
    from envkit.verify.catalog import select

    for entry in select(tier or "quick", only, skip):
        click.echo(f"{entry.id}  {entry.tier:<8}  {entry.needs:<5}  {entry.title}")


def _target(
    state: Path, image: str | None, plan_file: Path | None, runner: str
) -> tuple[str, str | None, BuildPlan | None]:
    """The image, the engine that has it where known, and its plan where given or noted."""
    from envkit.ground.state import read_last
    from envkit.plan.store import load_plan, read_plan

    given = read_plan(plan_file) if plan_file else None
    if image is not None:
        return image, None, given
    if runner == "host":
        return "host", None, given
    last = read_last(state)
    return last.image, last.engine, given or load_plan(state, last.plan)
