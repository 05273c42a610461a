"""`envkit render`: the files an image is built from."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from envkit.cli.request_options import given, load_facts, request_options

if TYPE_CHECKING:
    from envkit.ground.settings import Mirrors
    from envkit.lock.model import Lock
    from envkit.plan.model import BuildPlan
    from envkit.render.model import Rendered

SCHEMA = "envkit.render/1"
_ONLY = {"dockerfile": "Dockerfile", "environment": "environment.yml", "plan": "plan.json"}


@click.command("render")
@click.argument("definition", required=False)
@request_options
@click.option("--template", metavar="NAME", help="miniconda, wheels, or your own miniconda-NAME or wheels-NAME.")
@click.option("--locked", metavar="FILE", help="Install exactly this lock: explicit.txt and hashed requirements.")
@click.option("--flavour", metavar="NAME", default="classic", help="classic or buildkit. [classic]")
@click.option("--out", metavar="DIR", help="Write the whole build context into a folder instead of stdout.")
@click.option("--only", type=click.Choice(list(_ONLY)), help="Print one file.")
@click.option("--check", is_flag=True, help="Lint what was rendered; errors end with exit code 2.")
@click.option("--show-blocks", is_flag=True, help="List the blocks a template of your own can override.")
@click.option("--list-images", is_flag=True, help="List the image definitions that come with envkit.")
@click.option("--json", "as_json", is_flag=True, help=f"Print JSON (schema {SCHEMA}).")
def command(
    definition: str | None,
    *,
    template: str | None,
    locked: str | None,
    flavour: str,
    out: str | None,
    only: str | None,
    check: bool,
    show_blocks: bool,
    list_images: bool,
    as_json: bool,
    **typed: Any,
) -> None:
    """Write the Dockerfile and environment.yml of an image definition.

    DEFINITION is a shipped image (envkit render --list-images) or a YAML file. Flags win over what it says.

    \b
    envkit render                            the default image, on stdout
    envkit render cu118 --out context/       a folder that `docker build` takes
    envkit render train.yaml --only dockerfile
    """  # noqa: D301 - click reads "\b" as "do not join these lines"
    from envkit.cli import configured
    from envkit.cli.choices import exclude
    from envkit.ground import settings

    exclude(check=check, out=out, only=only)
    exclude(out=out, json=as_json)
    if list_images:
        _list_images(as_json=as_json)
        return
    folder = configured.load()
    templates = tuple(Path(text) for text in [folder.get("templates")] if text)
    if show_blocks:
        _show_blocks(template or "miniconda", templates, as_json=as_json)
        return
    from envkit.plan.definition import shipped
    from envkit.plan.planner import DEFAULT, plan_for
    from envkit.render.render import render

    facts = load_facts(typed.pop("facts_file"))
    fields = given(typed) | {"template": template}
    plan = plan_for(definition, fields, facts)
    name = definition or DEFAULT
    as_shipped = name in shipped() and not any(fields.values())
    mirrors = replace(folder.mirrors(), ca_bundle=settings.ca_file(folder.get("ca_bundle")))
    lock = _lock(plan, locked, typed | {"template": template}, definition) if locked else None
    made = render(
        plan,
        lock=lock,
        flavour=flavour,
        mirrors=mirrors,
        template_dirs=templates,
        command=f"envkit render images/{name}.yaml" if as_shipped and lock is None else None,
        refuse=not check,
    )
    for warning in plan.resolution.warnings:
        click.echo(f"warning: {warning}", err=True)
    if check:
        _check(made, as_json=as_json)
    elif out is not None:
        _write(Path(out), made, mirrors)
    elif as_json:
        _print_json({"plan": plan.digest, "flavour": flavour, "files": _texts(made)})
    elif only:
        click.echo(_one(made, only, plan), nl=False)
    else:
        shown = [file for file in ("Dockerfile", "environment.yml") if file in made.files]
        click.echo("\n".join(f"# file: {file}\n{made.files[file].decode()}" for file in shown), nl=False)


def _lock(plan: BuildPlan, file: str, typed: dict[str, Any], definition: str | None) -> Lock:
    """The lock in a file, which has to fit the plan."""
    from envkit.cli.locking import command_line
    from envkit.lock.request import require_fit
    from envkit.lock.store import read_lock

    lock = read_lock(Path(file))
    require_fit(lock, plan, where=file, hint=command_line(definition, typed, file))
    return lock


def _one(made: Rendered, only: str, plan: BuildPlan) -> str:
    from envkit.ground.errors import UsageError

    file = _ONLY[only]
    if file not in made.files:
        if made.locked:
            raise UsageError(f"a locked build has no {file}", hint="leave --locked out")
        raise UsageError(f"the template {plan.template} has no {file}", hint="envkit render --template miniconda")
    return made.files[file].decode()


def _write(folder: Path, made: Rendered, mirrors: Mirrors) -> None:
    """Write every file of the build context, none of them through a link that leads elsewhere."""
    from envkit.ground.errors import UsageError
    from envkit.ground.progress import counted
    from envkit.ground.store import write_atomic

    files = dict(made.files)
    if mirrors.ca_bundle:
        files["ca-bundle.pem"] = Path(mirrors.ca_bundle).read_bytes()
    if folder.exists() and not folder.is_dir():
        raise UsageError(
            f"--out {folder} is a file", hint="--out DIR names a folder, which is made where it is missing"
        )
    links = [name for name in files if (folder / name).is_symlink()]
    if links:
        raise UsageError(
            f"{folder / links[0]} is a symbolic link", hint=f"remove it, or choose another folder than {folder}"
        )
    for name, data in files.items():
        write_atomic(folder / name, data)
    click.echo(f"{counted(len(files), 'file')} in {folder}", err=True)


def _check(made: Rendered, *, as_json: bool) -> None:
    from envkit.ground.errors import UsageError
    from envkit.render import lint

    found = lint.check(made)
    errors = [item for item in found if item.severity == "error"]
    if as_json:
        rows = [{"rule": x.rule, "line": x.line, "severity": x.severity, "message": x.message} for x in found]
        _print_json({"rules": sorted(lint.RULES), "findings": rows})
    else:
        for item in found:
            click.echo(str(item))
        click.echo(f"{len(lint.RULES)} rules, {len(errors)} errors, {len(found) - len(errors)} warnings")
    if errors:
        raise UsageError(
            f"{len(errors)} lint error{'s' if len(errors) > 1 else ''}", hint="docs/templates.md explains every rule"
        )


def _show_blocks(template: str, folders: tuple[Path, ...], *, as_json: bool) -> None:
    from envkit.render.engine import blocks

    found = blocks(f"{template}.Dockerfile.j2", folders)
    if as_json:
        _print_json({"template": template, "blocks": list(found)})
    else:
        click.echo("\n".join(found))


def _list_images(*, as_json: bool) -> None:
    from envkit.plan.definition import load, shipped

    found = [load(name) for name in shipped()]
    if as_json:
        _print_json({"images": [{"name": item.name, "title": item.title} for item in found]})
    else:
        from envkit.cli import table

        table.show(("image", "title"), [(item.name, item.title) for item in found])


def _texts(made: Rendered) -> dict[str, str]:
    return {name: data.decode() for name, data in made.files.items()}


def _print_json(document: dict[str, Any]) -> None:
    click.echo(json.dumps({"schema": SCHEMA} | document, indent=2, ensure_ascii=False))
