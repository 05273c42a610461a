"""`envkit verify`: run the smoke benchmark inside an image, judge it outside, show and keep the record."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from envkit.plan.model import BuildPlan
    from envkit.run.model import Runner

_TIERS = ("quick", "standard", "deep")


@click.command("verify")
@click.argument("image", required=False)
@click.option("--plan", "plan_file", type=click.Path(path_type=Path), help="Plan the image was built from (plan.json).")
@click.option("--gpus", help="GPUs for the container: all, none, or device numbers. Default: all, where there are any.")
@click.option(
    "--runner",
    type=click.Choice(["auto", "docker", "podman", "bubblewrap", "host"]),
    help="Where the payload runs.",
)
@click.option("--tier", type=click.Choice(_TIERS), help="How much is checked. Default: the plan's tier.")
@click.option("--only", multiple=True, metavar="IDS", help="Run these checks alone: C05,C06.")
@click.option("--skip", multiple=True, metavar="IDS", help="Leave these checks out.")
@click.option("--list", "list_checks", is_flag=True, help="List the checks and stop.")
@click.option(
    "--json", "json_file", metavar="FILE", help="Write the record (schema envkit.verify/1) here; - is stdout."
)
@click.option("--allow-cpu", is_flag=True, help="Exit 0 although a CUDA image met no GPU; the record says so.")
@click.option("--require-gpu", is_flag=True, help="Exit 5 unless a GPU took part, for CPU images too.")
@click.option("--timeout", type=click.FloatRange(min=1), metavar="SECONDS", help="Time limit of the whole run.")
@click.option(
    "--progress", type=click.Choice(["auto", "plain", "quiet", "json"]), default="auto", help="Talk on stderr."
)
@click.option("-v", "--verbose", is_flag=True, help="Show the payload's output while it runs.")
def command(
    *,
    image: str | None,
    plan_file: Path | None,
    gpus: str | None,
    runner: str | None,
    tier: str | None,
    only: tuple[str, ...],
    skip: tuple[str, ...],
    list_checks: bool,
    json_file: str | None,
    allow_cpu: bool,
    require_gpu: bool,
    timeout: float | None,
    progress: str,
    verbose: bool,
) -> int:
    """Prove IMAGE (default: the one built last), or say what is wrong with it.

    IMAGE is a name or id in an engine, or a file: oci:DIR[:TAG], docker-archive:FILE[:TAG]. Files need no engine.

    Exit codes: 0 proved, 5 not proved (no GPU, no plan, inconclusive), 6 failed, 9 this machine is at fault,
    124 time limit.
    """
    from envkit import settings
    from envkit.cli.console import reporter
    from envkit.cli.publish import publish
    from envkit.errors import UsageError
    from envkit.run.runners import choose_for
    from envkit.verify.driver import Options, verify_image

    if list_checks:
        _list(tier, _ids(only), _ids(skip))
        return 0
    if allow_cpu and require_gpu:
        raise UsageError("--allow-cpu and --require-gpu contradict each other", hint="give one of them")
    resolved = settings.load({"runner": runner}, os.environ, Path.cwd())
    state = settings.state_dir()
    how = resolved.get("runner") or "auto"
    target, engine, plan = _target(state, image, plan_file, how)
    talk = reporter(progress, verbose=verbose)
    chosen, target = choose_for(target, how, talk, engine=engine)
    plan = plan or _plan_by_label(state, chosen, target)
    options = Options(
        gpus=gpus_here(gpus, plan),
        tier=tier or (plan.smoke.tier if plan else "quick"),
        allow_cpu=allow_cpu,
        require_gpu=require_gpu,
        timeout_s=timeout,
        only=_ids(only),
        skip=_ids(skip),
        argv=tuple(sys.argv),
    )
    try:
        record = verify_image(target, plan, chosen, talk, options)
    finally:
        close = getattr(talk, "close", None)
        if close is not None:
            close()
    return publish(record, state, json_file)


def _ids(given: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(item.strip().upper() for text in given for item in text.split(",") if item.strip())


def _list(tier: str | None, only: tuple[str, ...], skip: tuple[str, ...]) -> None:
    from envkit.verify.catalog import select

    for entry in select(tier or "quick", only, skip):
        click.echo(f"{entry.id}  {entry.tier:<8}  {entry.needs:<5}  {entry.title}")


def _target(
    state: Path, image: str | None, plan_file: Path | None, runner: str
) -> tuple[str, str | None, BuildPlan | None]:
    """The image, the engine that has it where known, and its plan where given or noted."""
    from envkit.plan.store import load_plan, read_plan
    from envkit.state import read_last

    given = read_plan(plan_file) if plan_file else None
    if image is not None:
        return image, None, given
    if runner == "host":
        return "host", None, given
    last = read_last(state)
    return last.image, last.engine, given or load_plan(state, last.plan)


def _plan_by_label(state: Path, runner: Runner, image: str) -> BuildPlan | None:
    """The plan that was kept when the image was built here; its digest is on the image's label."""
    from envkit.plan.store import load_plan
    from envkit.verify.static import PLAN_LABEL, image_facts

    digest = image_facts(runner.inspect(image)).labels.get(PLAN_LABEL)
    return load_plan(state, digest) if digest else None


def gpus_here(given: str | None, plan: BuildPlan | None) -> str | None:
    """What the engine is asked for. Unset: every GPU of this machine, unless the image is made for CPUs."""
    if given is not None:
        return None if given == "none" else given
    if plan is not None and plan.resolution.cuda is None:
        return None
    here = any(Path("/dev").glob("nvidia[0-9]*")) or Path("/dev/dxg").exists()
    return "all" if here else None
