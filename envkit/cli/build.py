"""`envkit build`: resolve, lock, render, build on an engine, prove the image, remember it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from envkit.cli.build_options import BUILD_SCHEMA, build_options
from envkit.cli.documents import STDOUT, FailureDocument, target_of, write_document
from envkit.cli.reports import Target, check_reports, report_option
from envkit.cli.request_options import given, load_facts, request_options

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from envkit.build.model import BuildOptions, BuiltImage
    from envkit.cli.fleet import How
    from envkit.cli.limit import Limit
    from envkit.cli.phases import Phases
    from envkit.cli.tagging import Tagging
    from envkit.ground.progress import Reporter
    from envkit.ground.settings import Settings
    from envkit.plan.model import BuildPlan
    from envkit.verify.record import Record

SCHEMA = BUILD_SCHEMA
_SHOWN = ("torch", "cuda", "cudnn", "python", "source", "driver", "os")
_KEPT_LOGS = 20


@click.command("build")
@click.argument("definitions", nargs=-1, metavar="[DEFINITION]...")
@request_options
@build_options
@report_option
def command(
    definitions: tuple[str, ...],
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
    as_json: bool,
    out_file: str | None,
    reports: tuple[Target, ...],
    **typed: Any,
) -> int:
    """Build images and prove them. The exit code is that of the proof (see `envkit verify --help`).

    The packages are those of a lock, by hash: of --locked FILE, of an envkit.lock in this folder that fits, or of one
    that is solved now.

    DEFINITION is a shipped image (envkit render --list-images) or a YAML file. Flags win over what it says. Of
    several images every one is built, whatever becomes of the others, and the exit code is the gravest of theirs.

    \b
    envkit build                                  the default image
    envkit build --cuda 12.6 -t train:cu126       with flags alone
    envkit build images/train.yaml --engine podman
    envkit build --output registry:registry.example.com/team/train:1   tagged once it is proved
    envkit build --matrix matrix.yaml --output registry:registry.example.com/team/train   every combination
    """  # noqa: D301 - click reads "\b" as "do not join these lines"
    from envkit.cli import choices, configured
    from envkit.cli.fleet import FLAGS, Asked, How, build_many, check, check_alone
    from envkit.cli.limit import Limit
    from envkit.pipeline.verification import check_runner

    phase: list[Phases] = []
    limit = Limit(typed["timeout"], lambda: phase[0].current)
    asked = Asked(definitions=definitions, **{name: typed.pop(name) for name in FLAGS})
    definition = check(asked)
    document = target_of(as_json=as_json, out_file=out_file)
    with FailureDocument(document, SCHEMA) as failure:
        check_reports(reports, document, verified=not no_verify)
        choices.exclude(locked=locked, no_lock=no_lock)
        choices.exclude(offline=typed["offline"], no_cache=typed["no_cache"])
        resolved = configured.load({"engine": engine, "build_network": network})
        if not no_verify:
            check_runner(resolved)
        how = How(
            template=template, typed={**typed, "engine": engine}, resolved=resolved, options=_options(typed, resolved),
            no_lock=no_lock, no_verify=no_verify, allow_cpu=allow_cpu, progress=progress, document=document,
        )  # fmt: skip
        if asked.several:
            alone = {"tags": typed["tags"], "push": typed["push"], "offline": typed["offline"]}
            check_alone(plan=plan_file, locked=locked, report=reports, **alone)
            failure.settled = True
            return build_many(asked, how)
        choices.engine_name(resolved, how.options)  # refuses flags of another engine, before anything is resolved
        plan = _plan(definition, plan_file, given(typed) | {"template": template}, typed["facts_file"])
        return _build_one(
            plan, how, definition, locked, limit=limit, phase=phase, verbose=verbose, reports=reports, failure=failure
        )


def _build_one(
    plan: BuildPlan,
    how: How,
    definition: str | None,
    locked: str | None,
    *,
    limit: Limit,
    phase: list[Phases],
    verbose: bool,
    reports: tuple[Target, ...],
    failure: FailureDocument,
) -> int:
    from envkit.assemble.builders import EMBEDDED, choose
    from envkit.build.builder import with_default_tag
    from envkit.build.log import new_log
    from envkit.cli import build_push, choices, locking, tagging
    from envkit.cli.cache import keep_within
    from envkit.cli.console import reporter
    from envkit.cli.phases import Phases
    from envkit.ground.paths import state_dir
    from envkit.pipeline.verification import check_runner, verify_built, whereabouts

    state, resolved, typed, quiet = state_dir(), how.resolved, how.typed, how.progress == "quiet"
    folder = Path(resolved.get("log_dir") or state / "logs")
    options = with_default_tag(plan, replace(how.options, log_file=new_log(folder, plan.name, keep=_KEPT_LOGS)))
    push = build_push.wish(typed, options, resolved)
    talk = Phases(reporter(how.progress, verbose=verbose))
    phase[:] = [talk]
    failure.known |= {"name": plan.name, "plan": plan.digest, "image": None, "log": str(options.log_file)}
    try:
        if not quiet:
            _show(plan)
        lock, again = None, locking.command_line(definition, {**typed, "template": how.template}, locked)
        if not how.no_lock:
            lock = locking.given(plan, locked, options.base, again, talk)
        choices.require_lock(lock, options, again)
        with limit.holds():
            builder = choose(
                choices.engine_name(resolved, options),
                talk,
                docker_cli=resolved.get("docker_cli") or "docker",
                state=state,
            )
            if not how.no_verify:
                check_runner(resolved, engine=builder.name, output=options.output)
            options = push.begin(builder.name, options, plan, talk)
            if lock is None and not how.no_lock:
                lock = locking.solve(plan, builder, options, talk, settings=resolved, facts_file=typed["facts_file"])
        if lock is not None:
            locking.take(state, lock, talk, shown=not quiet)
        # The engines with a daemon keep the time themselves, and show the end of their log when it is over.
        with limit.holds(rings=builder.name == EMBEDDED):
            built = builder.build(plan, lock, replace(options, timeout_s=limit.left()), talk)
        failure.known |= {"image": built.id, "place": built.place, "digest": built.digest}
        _remember(plan, built, state, talk)
        with tagging.told(built, options):
            record = None if how.no_verify else verify_built(plan, built, resolved, talk, allow_cpu=how.allow_cpu)
        first = tagging.settle(built, options, record, talk)
        with limit.holds():
            tagged = push.end(*whereabouts(built), record, first, talk)
        keep_within(resolved.get("cache_limit"), talk)
    finally:
        talk.close()
    failure.settled = True
    code = _publish(plan, built, record, state, how.document, tagged=tagged, reports=reports)
    if not quiet:
        _tell_end(talk, built)
    tagging.tell_all(tagged)
    return code


def _plan(
    definition: str | None, plan_file: Path | None, fields: Mapping[str, Any], facts_file: str | None
) -> BuildPlan:
    from envkit.ground.errors import UsageError

    if plan_file is None:
        from envkit.plan.planner import plan_for

        return plan_for(definition, fields, load_facts(facts_file))
    if definition is not None or any(fields.values()):
        raise UsageError(
            "--plan says everything about the image", hint="leave the definition and the request's flags out"
        )
    from envkit.plan.store import read_plan

    return read_plan(plan_file)


def _options(typed: Mapping[str, Any], resolved: Settings) -> BuildOptions:
    """How to build, whatever the image is."""
    from envkit.assemble.outputs import check_output
    from envkit.build.labels import parse_label
    from envkit.build.model import BuildOptions

    templates, folder_of_wheels = resolved.get("templates"), resolved.get("wheel_dir")
    options = BuildOptions(
        tags=typed["tags"],
        labels=tuple(parse_label(text) for text in typed["labels"]),
        base=typed["base"],
        output=typed["output"],
        offline=typed["offline"],
        compression=typed["compression"],
        # With --push these two are the push's own (envkit.cli.build_push).
        replace_tag=typed["replace_tag"] and not typed["push"],
        mount_from=() if typed["push"] else typed["mount_from"],
        wheel_dir=Path(folder_of_wheels) if folder_of_wheels else None,
        no_cache=typed["no_cache"],
        timeout_s=typed["timeout"],
        network=resolved.get("build_network") or "auto",
        mirrors=resolved.mirrors(),
        template_dirs=(Path(templates),) if templates else (),
        secrets=tuple(_secret(text) for text in typed["secrets"]),
    )
    check_output(options)
    return options


def _secret(text: str) -> tuple[str, Path]:
    from envkit.ground.errors import UsageError

    ident, sign, file = text.partition("=")
    path = Path(file)
    if not sign or not ident.replace("-", "").replace("_", "").isalnum() or "," in file:
        raise UsageError("--secret is ID=FILE", hint="--secret netrc=$HOME/.netrc")
    if not path.is_file():
        raise UsageError(f"--secret {ident}: {file} is not a file", hint="--secret netrc=$HOME/.netrc")
    return ident, path.absolute()


def _show(plan: BuildPlan) -> None:
    """What was resolved and why, before anything long begins."""
    from envkit.cli.table import aligned
    from envkit.ground.text import neutral

    found = plan.resolution
    driver = found.driver
    values = {name: getattr(found, name) for name in _SHOWN} | {"driver": f">={driver.minimum}" if driver else None}
    rows = [(name, str(value), found.reasons.get(name, "")) for name, value in values.items() if value is not None]
    click.echo(f"{plan.title} (plan {plan.digest[:19]})", err=True)
    for line in aligned([[neutral(cell) for cell in row] for row in rows]):
        click.echo(f"  {line}", err=True)
    for warning in found.warnings:
        click.echo(f"warning: {neutral(warning)}", err=True)


def _remember(plan: BuildPlan, built: BuiltImage, state: Path, talk: Reporter) -> None:
    """Report what was built, and keep the plan and the image's name so that `envkit verify` finds both."""
    import datetime as dt

    from envkit.ground.state import LastBuilt, write_last
    from envkit.pipeline.verification import whereabouts
    from envkit.plan.store import store_plan

    now = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    try:
        store_plan(state, plan)
        image, engine = whereabouts(built)
        write_last(state, LastBuilt(image=image, tags=built.tags, plan=plan.digest, engine=engine, built=now))
    except OSError as error:
        talk.note(f"what was built is not remembered: {error.filename}: {error.strerror}; name it to envkit verify")
    talk.note(f"built {', '.join(built.tags)} ({_size(built)}) in {built.duration_s:.0f} s: {built.place or built.id}")


def _publish(
    plan: BuildPlan,
    built: BuiltImage,
    record: Record | None,
    state: Path,
    target: str | None,
    *,
    tagged: Sequence[Tagging] = (),
    reports: tuple[Target, ...] = (),
) -> int:
    from envkit.cli.publish import keep, publish
    from envkit.cli.reports import write_reports
    from envkit.ground.errors import SurroundingsError

    code, unwritten = 0, None
    if record is not None and target == STDOUT:
        keep(record, state)
        code, unwritten = record.exit_code, write_reports(record, reports)
    elif record is not None:
        try:
            code = publish(record, state, reports=reports)
        except SurroundingsError as error:  # what was built is written all the same
            unwritten = error
    if target is None and record is None:
        click.echo(built.pushed or built.place or built.id)
    write_document(_document(plan, built, record, tagged), target, done=f"the image itself is built: {built.id}")
    if unwritten is not None:
        raise unwritten
    return code


def _document(
    plan: BuildPlan, built: BuiltImage, record: Record | None, tagged: Sequence[Tagging] = ()
) -> dict[str, Any]:
    """What was built, as data."""
    return {
        "schema": SCHEMA,
        "image": built.id,
        "place": built.place,
        "digest": built.digest,
        "push": tagged[0].to_json() if tagged else None,
        "pushes": [one.to_json() for one in tagged],
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


def _tell_end(phases: Phases, built: BuiltImage) -> None:
    _tell_time(phases)
    _tell_ways(built)


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
