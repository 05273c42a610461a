"""`envkit build`: resolve, lock, render, build on an engine, prove the image, remember it."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from envkit.cli.console import MODES
from envkit.cli.reports import Target, check_reports, report_option
from envkit.cli.request_options import given, load_facts, request_options

if TYPE_CHECKING:
    from collections.abc import Mapping

    from envkit.build.model import BuildOptions, BuiltImage
    from envkit.cli.phases import Phases
    from envkit.cli.tagging import Tagging
    from envkit.plan.model import BuildPlan
    from envkit.progress import Reporter
    from envkit.settings import Settings
    from envkit.verify.record import Record

SCHEMA = "envkit.build/1"
_SHOWN = ("torch", "cuda", "cudnn", "python", "source", "driver", "os")
_KEPT_LOGS = 20


@click.command("build")
@click.argument("definition", required=False)
@request_options
@click.option("--template", metavar="NAME", help="miniconda, wheels, or your own miniconda-NAME or wheels-NAME.")
@click.option("--plan", "plan_file", type=click.Path(path_type=Path), help="Build this plan.json; flags add nothing.")
@click.option("--locked", metavar="FILE", help="Install this lock. [envkit.lock where it fits, else solved now]")
@click.option(
    "--no-lock",
    is_flag=True,
    help="Solve inside the build, without hashes: for machines where only the engine reaches the indexes.",
)
@click.option("--engine", metavar="NAME", help="auto, docker, buildkit, podman or embedded. [auto]")
@click.option("--base", metavar="IMAGE", default="auto", help="Base image, or bootstrap:debian/bookworm. [auto]")
@click.option(
    "--output",
    metavar="PLACE",
    help="Embedded engine: oci:DIR, docker-archive:FILE, docker-daemon or registry:REF. [a layout in the state folder]",
)
@click.option("--replace-tag", is_flag=True, help="The tag of --output registry:REF may be another image's.")
@click.option(
    "--mount-from",
    multiple=True,
    metavar="REPOSITORY",
    help="Repository of the same registry that has layers of this image already; repeatable.",
)
@click.option(
    "--compression", type=click.Choice(["gzip", "zstd"]), default="gzip", help="Embedded engine: of layers. [gzip]"
)
@click.option("--offline", is_flag=True, help="Embedded engine: download nothing; what no cache holds is named.")
@click.option("-t", "--tag", "tags", multiple=True, metavar="NAME:TAG", help="Name of the image; repeatable.")
@click.option("--label", "labels", multiple=True, metavar="KEY=VALUE", help="A further label; repeatable.")
@click.option("--no-cache", is_flag=True, help="Build every step anew, a bootstrapped base image too.")
@click.option("--network", metavar="NAME", help="Network of build steps: auto, default, host or none. [auto]")
@click.option(
    "--secret",
    "secrets",
    multiple=True,
    metavar="ID=FILE",
    help="A secret file for BuildKit's secret mounts; repeatable.",
)
@click.option("--timeout", type=click.FloatRange(min=1), metavar="SECONDS", help="Limit of all but the proof.")
@click.option("--progress", type=click.Choice(MODES), default="auto", help="Talk on stderr. [auto]")
@click.option("-v", "--verbose", is_flag=True, help="Show the engine's output while it builds.")
@click.option("--no-verify", is_flag=True, help="Do not run the smoke benchmark; print the image's id instead.")
@click.option("--allow-cpu", is_flag=True, help="Exit 0 although a CUDA image met no GPU; the record says so.")
@click.option(
    "--json", "--metadata-file", "json_file", metavar="FILE", help=f"Write what was built ({SCHEMA}) here; - is stdout."
)
@report_option
def command(
    definition: str | None,
    *,
    template: str | None,
    plan_file: Path | None,
    locked: str | None,
    no_lock: bool,
    engine: str | None,
    network: str | None,
    progress: str,
    verbose: bool,
    no_verify: bool,
    allow_cpu: bool,
    json_file: str | None,
    reports: tuple[Target, ...],
    **typed: Any,
) -> int:
    """Build an image and prove it. The exit code is that of the proof (see `envkit verify --help`).

    The packages are those of a lock, by hash: of --locked FILE, of an envkit.lock in this folder that fits, or of one
    that is solved now.

    DEFINITION is a shipped image (envkit render --list-images) or a YAML file. Flags win over what it says.

    \b
    envkit build                                  the default image
    envkit build --cuda 12.6 -t train:cu126       with flags alone
    envkit build images/train.yaml --engine podman
    envkit build --output registry:registry.example.com/team/train:1   tagged once it is proved
    """  # noqa: D301 - click reads "\b" as "do not join these lines"
    from envkit import settings
    from envkit.build.engines import EMBEDDED, choose
    from envkit.cli import choices, locking, tagging
    from envkit.cli.cache import keep_within, parse_size
    from envkit.cli.console import reporter
    from envkit.cli.limit import Limit
    from envkit.cli.phases import Phases

    limit = Limit(typed["timeout"], lambda: talk.current)
    check_reports(reports, json_file, verified=not no_verify)
    choices.exclude(locked=locked, no_lock=no_lock)
    choices.exclude(offline=typed["offline"], no_cache=typed["no_cache"])
    resolved = settings.load({"engine": engine, "build_network": network}, os.environ, Path.cwd())
    state = settings.state_dir()
    parse_size(resolved.get("cache_limit") or "0", "cache_limit")
    plan = _plan(definition, plan_file, given(typed) | {"template": template}, typed["facts_file"])
    options = _options(plan, typed, resolved, state)
    talk = Phases(reporter(progress, verbose=verbose))
    try:
        if progress != "quiet":
            _show(plan)
        docker_cli = resolved.get("docker_cli") or "docker"
        lock, again = None, locking.command_line(definition, typed | {"template": template, "engine": engine}, locked)
        if not no_lock:
            lock = locking.given(plan, locked, options.base, again, talk)
        choices.require_lock(lock, options, again)
        with limit.holds():
            builder = choose(choices.engine_name(resolved, options), talk, docker_cli=docker_cli, state=state)
            if lock is None and not no_lock:
                lock = locking.solve(plan, builder, options, talk, settings=resolved, facts_file=typed["facts_file"])
        if lock is not None:
            locking.take(state, lock, talk, shown=progress != "quiet")
        # The engines with a daemon keep the time themselves, and show the end of their log when it is over.
        with limit.holds(rings=builder.name == EMBEDDED):
            built = builder.build(plan, lock, replace(options, timeout_s=limit.left()), talk)
        _remember(plan, built, state, talk)
        talk.note(
            f"built {', '.join(built.tags)} ({_size(built)}) in {built.duration_s:.0f} s: {built.place or built.id}"
        )
        with tagging.told(built, options):
            record = None if no_verify else _verify(plan, built, talk, allow_cpu=allow_cpu)
        tagged = tagging.settle(built, options, record, talk)
        keep_within(resolved.get("cache_limit"), talk)
    finally:
        talk.close()
    code = _publish(plan, built, record, state, json_file, tagged=tagged, reports=reports)
    if progress != "quiet":
        _tell_time(talk)
        _tell_ways(built)
    tagging.tell(tagged)
    return code


def _plan(
    definition: str | None, plan_file: Path | None, fields: Mapping[str, Any], facts_file: str | None
) -> BuildPlan:
    from envkit.errors import UsageError

    if plan_file is None:
        from envkit.plan.planner import plan_for

        return plan_for(definition, fields, load_facts(facts_file))
    if definition is not None or any(fields.values()):
        raise UsageError(
            "--plan says everything about the image", hint="leave the definition and the request's flags out"
        )
    from envkit.plan.store import read_plan

    return read_plan(plan_file)


def _options(plan: BuildPlan, typed: Mapping[str, Any], resolved: Settings, state: Path) -> BuildOptions:
    from envkit.build.builder import with_default_tag
    from envkit.build.embedded.outputs import check_output
    from envkit.build.labels import parse_label
    from envkit.build.model import BuildOptions

    templates, folder_of_wheels = resolved.get("templates"), resolved.get("wheel_dir")
    folder = Path(resolved.get("log_dir") or state / "logs")
    options = with_default_tag(
        plan,
        BuildOptions(
            tags=typed["tags"],
            labels=tuple(parse_label(text) for text in typed["labels"]),
            base=typed["base"],
            output=typed["output"],
            offline=typed["offline"],
            compression=typed["compression"],
            replace_tag=typed["replace_tag"],
            mount_from=typed["mount_from"],
            wheel_dir=Path(folder_of_wheels) if folder_of_wheels else None,
            no_cache=typed["no_cache"],
            timeout_s=typed["timeout"],
            network=resolved.get("build_network") or "auto",
            mirrors=resolved.mirrors(),
            template_dirs=(Path(templates),) if templates else (),
            log_file=_log_file(folder, plan.name),
            secrets=tuple(_secret(text) for text in typed["secrets"]),
        ),
    )
    check_output(options)
    return options


def _log_file(folder: Path, name: str) -> Path:
    """A new log file; the oldest ones beyond twenty are removed."""
    import contextlib
    import time

    with contextlib.suppress(OSError):
        for old in sorted(folder.glob("*.log"))[: -_KEPT_LOGS + 1]:
            old.unlink(missing_ok=True)
    return folder / f"{time.strftime('%Y%m%dT%H%M%S')}-{name}-{os.getpid()}.log"


def _secret(text: str) -> tuple[str, Path]:
    from envkit.errors import UsageError

    ident, sign, file = text.partition("=")
    path = Path(file)
    if not sign or not ident.replace("-", "").replace("_", "").isalnum() or "," in file:
        raise UsageError("--secret is ID=FILE", hint="--secret netrc=$HOME/.netrc")
    if not path.is_file():
        raise UsageError(f"--secret {ident}: {file} is not a file", hint="--secret netrc=$HOME/.netrc")
    return ident, path.absolute()


def _show(plan: BuildPlan) -> None:
    """What was resolved and why, before anything long begins."""
    from envkit.cli.console import printable
    from envkit.cli.table import aligned

    found = plan.resolution
    driver = found.driver
    values = {name: getattr(found, name) for name in _SHOWN} | {"driver": f">={driver.minimum}" if driver else None}
    rows = [(name, str(value), found.reasons.get(name, "")) for name, value in values.items() if value is not None]
    click.echo(f"{plan.title} (plan {plan.digest[:19]})", err=True)
    for line in aligned([[printable(cell) for cell in row] for row in rows]):
        click.echo(f"  {line}", err=True)
    for warning in found.warnings:
        click.echo(f"warning: {printable(warning)}", err=True)


def _remember(plan: BuildPlan, built: BuiltImage, state: Path, talk: Reporter) -> None:
    """Keep the plan and note the image, so that `envkit verify` finds both."""
    import datetime as dt

    from envkit.plan.store import store_plan
    from envkit.state import LastBuilt, write_last

    now = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    try:
        store_plan(state, plan)
        image, engine = _whereabouts(built)
        write_last(state, LastBuilt(image=image, tags=built.tags, plan=plan.digest, engine=engine, built=now))
    except OSError as error:
        talk.note(f"what was built is not remembered: {error.filename}: {error.strerror}; name it to envkit verify")


def _verify(plan: BuildPlan, built: BuiltImage, talk: Reporter, *, allow_cpu: bool) -> Record:
    from envkit.cli.verify import gpus_here
    from envkit.run.runners import choose_for
    from envkit.verify.driver import Options, verify_image

    options = Options(gpus=gpus_here(None, plan), tier=plan.smoke.tier, allow_cpu=allow_cpu, argv=tuple(sys.argv))
    image, engine = _whereabouts(built)
    runner, image = choose_for(image, "auto", talk, engine=engine)
    return verify_image(image, plan, runner, talk, options)


def _whereabouts(built: BuiltImage) -> tuple[str, str]:
    """What the image is called where it can be run, and whose storage that is."""
    if built.place is None:
        return built.id, built.engine
    return built.place, built.engine if ":" in built.place.removeprefix("sha256:") else "docker"


def _publish(
    plan: BuildPlan,
    built: BuiltImage,
    record: Record | None,
    state: Path,
    json_file: str | None,
    *,
    tagged: Tagging | None = None,
    reports: tuple[Target, ...] = (),
) -> int:
    from envkit.cli.publish import publish
    from envkit.cli.reports import write_reports
    from envkit.errors import SurroundingsError
    from envkit.files import write_atomic

    code, unwritten = 0, None
    if record is not None and json_file == "-":
        code, unwritten = record.exit_code, write_reports(record, reports)
    elif record is not None:
        try:
            code = publish(record, state, reports=reports)
        except SurroundingsError as error:  # what was built is written all the same
            unwritten = error
    document = json.dumps(_document(plan, built, record, tagged), indent=2, ensure_ascii=False) + "\n"
    if json_file == "-":
        click.echo(document, nl=False)
    elif json_file is not None:
        try:
            write_atomic(Path(json_file), document.encode())
        except OSError as error:
            raise SurroundingsError(
                f"--json {json_file}: {error.strerror or error}; the image itself is built: {built.id}",
                hint="give --json a file in a folder that can be written",
            ) from error
    elif record is None:
        click.echo(built.pushed or built.place or built.id)
    if unwritten is not None:
        raise unwritten
    return code


def _document(
    plan: BuildPlan, built: BuiltImage, record: Record | None, tagged: Tagging | None = None
) -> dict[str, Any]:
    """What was built, as data."""
    return {
        "schema": SCHEMA,
        "image": built.id,
        "place": built.place,
        "digest": built.digest,
        "push": tagged.to_json() if tagged else None,
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
        "log": str(built.log_file) if built.log_file else None,
        "resolution": plan.resolution.to_json(),
        "verification": None
        if record is None
        else {"verdict": record.verdict, "exit_code": record.exit_code, "record": dict(record.tree)},
    }


def _tell_time(phases: Phases) -> None:
    from envkit.cli.table import aligned

    click.echo(f"where the {phases.total():.0f} s went:", err=True)
    for line in aligned([[f"{seconds:6.1f} s", text] for text, seconds in phases.rows()]):
        click.echo(f"  {line}", err=True)


def _tell_ways(built: BuiltImage) -> None:
    """How an image that stayed in a folder of envkit's own gets elsewhere; its layers are kept, so this is quick."""
    if built.pushed is not None or built.place is None or not built.place.startswith("oci:"):
        return
    again = "the same command with --no-verify and --output"
    rows = [
        ["into Docker", f"{again} docker-daemon"],
        ["into a registry", f"{again} registry:HOST/NAME:TAG"],
        ["into a file", f"{again} docker-archive:FILE.tar"],
    ]
    from envkit.cli.table import aligned

    click.echo(f"the image lies in {built.place}; to take it", err=True)
    for line in aligned(rows):
        click.echo(f"  {line}", err=True)


def _size(built: BuiltImage) -> str:
    return "size unknown" if built.size is None else f"{built.size / 1e9:.2f} GB"
