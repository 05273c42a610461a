"""`envkit init`: an image definition from the files of a project."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from envkit.cli import shell_values
from envkit.cli.declare import Section, argument, flag, new_command, option
from envkit.cli.options import facts_option, load_facts
from envkit.cli.output import print_json
from envkit.ground import foreign
from envkit.ground.errors import UsageError
from envkit.ground.text import aligned

if TYPE_CHECKING:
    from envkit.project.definition import Drafted

SCHEMA = "envkit.init/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class InitFlags:
    """The options of `envkit init`."""

    file: str | None = argument(required=False, shell_complete=shell_values.files)
    source: str | None = option(
        Section.INPUT, "--from FILE", shell_complete=shell_values.files, help="The same as FILE."
    )
    context: str | None = option(
        Section.INPUT,
        "--context DIR",
        shell_complete=shell_values.files,
        help="The build context of a Dockerfile, where the definition is then written. [that of a Compose file, or the "
        "folder of FILE]",
    )
    extra: tuple[str, ...] = option(
        Section.INPUT, "--extra NAME", multiple=True, help="Take this extra of a pyproject.toml, too."
    )
    group: tuple[str, ...] = option(
        Section.INPUT, "--group NAME", multiple=True, help="Take this dependency group, too."
    )
    environment: str | None = option(
        Section.INPUT, "--environment NAME", help="Take this environment of a pixi project."
    )
    cpu: bool = flag(Section.INPUT, "--cpu", help="Of a CUDA and a CPU variant, take the CPU one. [the CUDA one]")
    torch: str | None = option(
        Section.INPUT, "--torch VERSION", help="The torch to request, before what the files name."
    )
    cuda: str | None = option(Section.INPUT, "--cuda VERSION", help="The CUDA to request, before what the files name.")
    output: str = option(
        Section.OUTPUT,
        "-o",
        "--output NAME",
        default="image.yaml",
        help="Name of the definition, which is written beside FILE. [image.yaml]",
    )
    dry_run: bool = flag(Section.OUTPUT, "--dry-run", help="Print the definition and write nothing.")
    facts_file: str | None = facts_option(Section.REQUEST)
    as_json: bool = flag(Section.OUTPUT, "--json", help=f"Print JSON (schema {SCHEMA}).")


@new_command("init", InitFlags)
def command(flags: InitFlags) -> None:
    """Write an image definition from the files of a project.

    FILE is a requirements.txt, environment.yml, pyproject.toml, pixi.toml, cog.yaml, Pipfile, setup.cfg, setup.py or
    Dockerfile, or a folder with one of them (default: this folder).
    Versions of torch, CUDA and Python become the request. Everything that cannot be taken over is listed with the
    reason. An existing definition is never overwritten, and nothing is downloaded.

    \b
    envkit init                                  read the project file in this folder
    envkit init docker/Dockerfile                read this file
    envkit init --dry-run                        print the definition
    """  # noqa: D301 - click reads "\b" as "do not join these lines"
    from envkit.ground import foreign
    from envkit.ground.store import write_new
    from envkit.project.choice import Choice
    from envkit.project.definition import SCHEMA_FILE, check_base, draft

    name, others, folder = _chosen(flags)
    if Path(flags.output).name != flags.output:
        raise UsageError(
            f"-o {flags.output} contains a folder, but the definition is written beside {name}",
            hint=f"-o {Path(flags.output).name}",
        )
    target = folder / flags.output
    choice = Choice(
        cpu=flags.cpu,
        extras=flags.extra,
        groups=flags.group,
        environment=flags.environment,
        torch=flags.torch,
        cuda=flags.cuda,
    )
    drafted = draft(name, folder, load_facts(flags.facts_file), choice=choice)
    check_base(drafted, folder / name)
    if not flags.dry_run:
        # A checkout may have a link of this name, or of its folder, that leads to any file of the user.
        foreign.check_write(folder / SCHEMA_FILE, root=folder, is_ours=_is_schema)
        try:
            write_new(target, drafted.text.encode())
        except FileExistsError as error:
            raise UsageError(
                f"{target} exists and is never overwritten",
                hint="-o NAME writes another file, --dry-run prints the definition",
            ) from error
        _write_schema(folder)
    next_command = f"envkit {'resolve' if drafted.conflict else 'build'} {shlex.quote(str(target))}"
    if flags.as_json:
        print_json(_document(drafted, others, None if flags.dry_run else str(target), next_command))
        return
    _show(drafted, others, folder, err=flags.dry_run)
    if flags.dry_run:
        click.echo(drafted.text, nl=False)
    else:
        click.echo(f"wrote {target}, and {SCHEMA_FILE} for editors")
    click.echo(f"next: {next_command}", err=flags.dry_run)


def _write_schema(folder: Path) -> None:
    """Write the schema that the first line of the definition names, for editors."""
    import json

    from envkit.ground import foreign
    from envkit.plan.definition import json_schema
    from envkit.project.definition import SCHEMA_FILE

    data = json.dumps(json_schema(), indent=1).encode() + b"\n"
    foreign.write(folder / SCHEMA_FILE, data, root=folder, is_ours=_is_schema)


def _is_schema(data: bytes) -> bool:
    from envkit.plan.definition import SCHEMA as DEFINITION

    return not data.strip() or DEFINITION.encode() in data


def _chosen(flags: InitFlags) -> tuple[str, tuple[str, ...], Path]:
    """Return the file to read, the other project files if the folder was searched, and the folder."""
    from envkit.project.definition import choose, context, reader_of

    if flags.file and flags.source:
        raise UsageError("FILE and --from contradict each other", hint="give one of them")
    path = Path(flags.file or flags.source or "")
    if flags.context is not None:
        return _in_context(path, Path(flags.context))
    if path.is_dir():
        return *choose(path), path
    foreign.check_file(path)
    reader_of(path.name, path.parent)
    found = context(path)
    if not found.why:
        return path.name, (), found.folder
    click.echo(f"note: {path}: the build context is {found.folder}: {found.why}", err=True)
    return _in_context(path, found.folder)


def _in_context(path: Path, context: Path) -> tuple[str, tuple[str, ...], Path]:
    """Return a file by its path in a build context, and the context."""
    from envkit.project.definition import reader_of

    foreign.check_file(path)
    reader_of(path.name, path.parent)
    if not context.is_dir() or not path.resolve().is_relative_to(context.resolve()):
        raise UsageError(f"{path} is not in the build context {context}", hint="--context FOLDER, such as --context .")
    return path.resolve().relative_to(context.resolve()).as_posix(), (), context


def _show(drafted: Drafted, others: tuple[str, ...], folder: Path, *, err: bool) -> None:
    from envkit.ground.text import neutral
    from envkit.project.listing import grouped, notes, shown

    click.echo(f"read {folder / drafted.file}", err=err)
    for other in others:
        click.echo(f"ignored {other}; to read it instead: envkit init {shlex.quote(str(folder / other))}", err=err)
    for line in aligned([("taken over", "", ""), *shown(drafted.taken)]):
        click.echo(neutral(line), err=err)
    losses = [entry for entry in drafted.skipped if not entry.harmless]
    harmless = [entry for entry in drafted.skipped if entry.harmless]
    elsewhere = [entry for entry in harmless if entry.elsewhere]
    same = [entry for entry in harmless if not entry.elsewhere]
    for note in notes(drafted.taken):
        click.echo(neutral(f"note: {note}"), err=err)
    for title, rows in (("left out", losses), ("not for this system", elsewhere), ("not needed", same)):
        if rows:
            click.echo(f"\n{title}:", err=err)
        for group in grouped(rows):
            if group.together:
                click.echo(neutral(f"  {group.why}:"), err=err)
            for one in group.lines:
                indent, why = ("    ", "") if group.together else ("  ", f": {group.why}")
                click.echo(neutral(f"{indent}{one.where}: {one.text}{why}"), err=err)
    if drafted.conflict:
        click.echo(f"\nwarning: {drafted.conflict.message}", err=True)
        if drafted.conflict.hint:
            click.echo(f"hint: {drafted.conflict.hint}", err=True)


def _document(drafted: Drafted, others: tuple[str, ...], file: str | None, next_command: str) -> dict[str, object]:
    from envkit.project.listing import shown

    return {
        "schema": SCHEMA,
        "from": drafted.file,
        "others": list(others),
        "file": file,
        "definition": drafted.text,
        "taken": [{"key": key, "value": value, "where": where} for key, value, where in shown(drafted.taken)],
        "left": [
            {
                "where": entry.line.where,
                "text": entry.line.text,
                "why": entry.why,
                "harmless": entry.harmless,
                "elsewhere": entry.elsewhere,
            }
            for entry in drafted.skipped
        ],
        "conflict": drafted.conflict.message if drafted.conflict else None,
        "next": next_command,
    }
