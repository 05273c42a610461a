"""`envkit render`: the files an image is built from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from envkit.cli import shell_values
from envkit.cli.console import tell
from envkit.cli.declare import Section, flag, group, new_command, option
from envkit.cli.options import RequestOptions, definition_argument, exclude, load_settings, preset_option
from envkit.cli.output import print_json, show_table
from envkit.ground.errors import UsageError

if TYPE_CHECKING:
    from envkit.ground.settings import Mirrors, Settings
    from envkit.lock.model import Lock
    from envkit.plan.model import BuildPlan
    from envkit.render.model import Rendered

SCHEMA = "envkit.render/1"
_ONLY = {"dockerfile": "Dockerfile", "environment": "environment.yml", "plan": "plan.json"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderFlags:
    """The options of `envkit render`."""

    definition: str | None = definition_argument()
    request: RequestOptions = group(RequestOptions)
    locked: str | None = option(
        Section.LOCK,
        "--locked FILE",
        shell_complete=shell_values.files,
        help="Install this lock: explicit.txt and hashed requirements.",
    )
    syntax: str | None = option(
        Section.BUILD,
        "--syntax NAME",
        shell_complete=shell_values.syntaxes,
        help="Dockerfile syntax: classic or buildkit. [classic]",
    )
    preset: str | None = preset_option()
    out: str | None = option(
        Section.OUTPUT,
        "--out DIR",
        shell_complete=shell_values.folders,
        help="Write the whole build context to a folder instead of stdout.",
    )
    only: str | None = option(Section.OUTPUT, "--only", type=click.Choice(list(_ONLY)), help="Print one file.")
    inline: bool = flag(
        Section.OUTPUT, "--inline", help="Print one Dockerfile that contains the build context, for `docker build -`."
    )
    check: bool = flag(Section.OUTPUT, "--check", help="Lint the rendered files; exit 2 on errors.")
    show_blocks: bool = flag(
        Section.OUTPUT, "--show-blocks", help="List the blocks that your own template can override."
    )
    list_images: bool = flag(Section.OUTPUT, "--list-images", help="List the shipped image definitions.")
    as_json: bool = flag(Section.OUTPUT, "--json", help=f"Print JSON (schema {SCHEMA}).")

    @property
    def dockerfile_syntax(self) -> str:
        """The syntax of the Dockerfile."""
        return self.syntax or "classic"


@new_command("render", RenderFlags)
def command(flags: RenderFlags) -> None:
    """Write the Dockerfile and environment.yml of an image definition.

    DEFINITION is a shipped image (envkit render --list-images), a YAML file, or a project file or folder that envkit
    init can read. Flags override it.

    \b
    envkit render                            the default image, on stdout
    envkit render cu118 --out context/       a folder that `docker build` accepts
    envkit render train.yaml --only dockerfile
    envkit render --inline | docker build -
    """  # noqa: D301 - click reads "\b" as "do not join these lines"
    exclude(check=flags.check, out=flags.out, only=flags.only, inline=flags.inline)
    exclude(out=flags.out, json=flags.as_json)
    if flags.list_images:
        _list_images(as_json=flags.as_json)
        return
    settings = load_settings({"preset": flags.preset})
    if flags.show_blocks:
        _show_blocks(flags.request.template or "miniconda", _templates(settings), as_json=flags.as_json)
        return
    from envkit.ground.settings import ca_file
    from envkit.pipeline.choosing import plan_for

    asked = flags.request.asked(flags.definition)
    plan = asked.plan() if not flags.locked else plan_for(asked, Path(flags.locked))[0]
    mirrors = replace(settings.mirrors(), ca_bundle=ca_file(settings.get("ca_bundle")))  # `none` becomes None
    lock = _lock(flags, plan)
    rendered = _rendered(flags, plan, lock, settings, mirrors)
    for warning in plan.resolution.warnings:
        tell(f"warning: {warning}")
    if flags.check:
        _check(rendered, as_json=flags.as_json)
    elif flags.out is not None:
        _write(Path(flags.out), rendered, _complete(rendered, lock, mirrors))
    elif flags.inline:
        _print_inline(flags, plan, rendered, _complete(rendered, lock, mirrors))
    elif flags.as_json:
        _print_json(_named(plan, rendered, _texts(rendered)))
    elif flags.only:
        click.echo(_file(rendered, flags.only, plan), nl=False)
    else:
        shown = [file for file in ("Dockerfile", "environment.yml") if file in rendered.files]
        click.echo("\n".join(f"# file: {file}\n{rendered.files[file].decode()}" for file in shown), nl=False)


def _lock(flags: RenderFlags, plan: BuildPlan) -> Lock | None:
    """Read the lock that --locked names and check that it fits the plan."""
    from envkit.lock.request import require_fit
    from envkit.lock.store import read_lock

    if not flags.locked:
        return None
    lock = read_lock(Path(flags.locked))
    require_fit(lock, plan, where=flags.locked, hint=flags.request.lock_command(flags.definition, flags.locked))
    return lock


def _rendered(flags: RenderFlags, plan: BuildPlan, lock: Lock | None, settings: Settings, mirrors: Mirrors) -> Rendered:
    from envkit.plan.definition import shipped
    from envkit.plan.planner import DEFAULT
    from envkit.render.render import render

    name = flags.definition or DEFAULT
    as_shipped = name in shipped() and flags.request.is_empty
    return render(
        plan,
        lock=lock,
        syntax=flags.dockerfile_syntax,
        mirrors=mirrors,
        template_dirs=_templates(settings),
        command=f"envkit render images/{name}.yaml" if as_shipped and lock is None else None,
        refuse=not flags.check,
    )


def _templates(settings: Settings) -> tuple[Path, ...]:
    return tuple(Path(text) for text in [settings.get("templates")] if text)


def _file(rendered: Rendered, only: str, plan: BuildPlan) -> str:
    file = _ONLY[only]
    if file not in rendered.files:
        if rendered.locked:
            raise UsageError(f"a locked build has no {file}", hint="leave --locked out")
        raise UsageError(f"the template {plan.template} has no {file}", hint="envkit render --template miniconda")
    return rendered.files[file].decode()


def _complete(rendered: Rendered, lock: Lock | None, mirrors: Mirrors) -> dict[str, bytes]:
    """Return every file of the build context, including those that the engines add to the rendered ones."""
    from envkit.ground.paths import cache_dir
    from envkit.lock.built import context_files

    files = dict(rendered.files) | (context_files(lock, cache_dir()) if lock is not None else {})
    if mirrors.ca_bundle:
        files["ca-bundle.pem"] = Path(mirrors.ca_bundle).read_bytes()
    return files


def _named(plan: BuildPlan, rendered: Rendered, files: dict[str, str]) -> dict[str, Any]:
    return {"plan": plan.digest, "syntax": rendered.syntax, "files": files}


def _print_inline(flags: RenderFlags, plan: BuildPlan, rendered: Rendered, files: dict[str, bytes]) -> None:
    from envkit.render.inline import inline

    text = inline(rendered, files)
    if flags.as_json:
        _print_json(_named(plan, rendered, {"Dockerfile": text}))
    else:
        click.echo(text, nl=False)


def _write(folder: Path, rendered: Rendered, files: dict[str, bytes]) -> None:
    """Write every file of the build context, but through no link and over no file of someone else."""
    from envkit.ground import foreign
    from envkit.ground.progress import counted

    if folder.exists() and not folder.is_dir():
        raise UsageError(f"--out {folder} is a file", hint="--out DIR names a folder")
    hint = f"remove it, or write to another folder than {folder}"
    # Not every file of a context shows who wrote it, but each context has its plan.
    plan = foreign.check_write(folder / _ONLY["plan"], root=folder, is_ours=None, hint=hint)
    is_context = plan is not None and b'"schema":"envkit.plan/' in plan
    is_ours = None if is_context else lambda _: False
    foreign.write_all(folder, files, is_ours=is_ours, executable=rendered.executable, hint=hint)
    tell(f"{counted(len(files), 'file')} in {folder}")


def _check(rendered: Rendered, *, as_json: bool) -> None:
    from envkit.render import lint

    findings = lint.check(rendered)
    errors = [item for item in findings if item.severity == "error"]
    if as_json:
        rows = [{"rule": x.rule, "line": x.line, "severity": x.severity, "message": x.message} for x in findings]
        _print_json({"rules": sorted(lint.RULES), "findings": rows})
    else:
        for item in findings:
            click.echo(str(item))
        click.echo(f"{len(lint.RULES)} rules, {len(errors)} errors, {len(findings) - len(errors)} warnings")
    if errors:
        raise UsageError(
            f"{len(errors)} lint error{'s' if len(errors) > 1 else ''}",
            hint="`envkit help templates` explains every rule",
        )


def _show_blocks(template: str, folders: tuple[Path, ...], *, as_json: bool) -> None:
    from envkit.render.engine import blocks

    names = blocks(f"{template}.Dockerfile.j2", folders)
    if as_json:
        _print_json({"template": template, "blocks": list(names)})
    else:
        click.echo("\n".join(names))


def _list_images(*, as_json: bool) -> None:
    from envkit.plan.definition import load, shipped

    definitions = [load(name) for name in shipped()]
    if as_json:
        _print_json({"images": [{"name": item.name, "title": item.title} for item in definitions]})
    else:
        show_table(("image", "title"), [(item.name, item.title) for item in definitions])


def _texts(rendered: Rendered) -> dict[str, str]:
    return {name: data.decode(errors="replace") for name, data in rendered.files.items()}


def _print_json(document: dict[str, Any]) -> None:
    print_json({"schema": SCHEMA, **document})
