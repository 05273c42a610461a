"""`envkit export`: generate files with which CI systems, clusters and other tools build and verify the images."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from envkit.cli import shell_values
from envkit.cli.console import tell
from envkit.cli.declare import Section, argument, flag, new_command, option
from envkit.cli.options import (
    TIERS,
    definitions_argument,
    exclude,
    facts_option,
    load_definition,
    load_facts,
    load_settings,
    skip_impossible_option,
)
from envkit.cli.output import print_json
from envkit.ground.engine_names import ENGINES
from envkit.ground.errors import ConflictError, UsageError
from envkit.ground.text import aligned

if TYPE_CHECKING:
    from envkit.export.model import Order
    from envkit.facts.model import Facts
    from envkit.fleet.model import Cell
    from envkit.ground.settings import Settings

SCHEMA = "envkit.export/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportFlags:
    """The options of `envkit export`."""

    kind: str | None = argument(required=False, shell_complete=shell_values.kinds)
    definitions: tuple[str, ...] = definitions_argument()
    matrix: str | None = option(
        Section.MANY, "--matrix FILE", shell_complete=shell_values.files, help="Matrix file: one image per combination."
    )
    every: bool = flag(Section.MANY, "--all", help="Export every shipped image definition.")
    skip_impossible: bool = skip_impossible_option()
    registry: str | None = option(
        Section.JOBS, "--registry HOST/NAME", help="Repository for the images; each tag is the image's own name."
    )
    engine: str = option(
        Section.JOBS,
        "--engine",
        type=click.Choice(tuple(ENGINES)),
        default="embedded",
        help="Engine of the build jobs. [embedded]",
    )
    tier: str | None = option(
        Section.JOBS, "--tier", type=click.Choice(TIERS), help="How much the jobs check. [each plan's tier]"
    )
    gpus: int = option(
        Section.JOBS,
        "--gpus N",
        type=click.IntRange(1, 64),
        default=1,
        help="GPUs to request per verification job. [1]",
    )
    jobs: int = option(
        Section.JOBS, "--jobs N", type=click.IntRange(1, 256), default=4, help="Maximum parallel jobs. [4]"
    )
    minutes: int = option(
        Section.JOBS, "--minutes N", type=click.IntRange(1, 10080), default=120, help="Time limit per image. [120]"
    )
    requirement: str | None = option(
        Section.JOBS, "--requirement SPEC", help="What the jobs install as envkit; see `envkit help export`."
    )
    given: tuple[str, ...] = option(
        Section.JOBS, "--set NAME=VALUE", multiple=True, help="Option of KIND (see --list); repeatable."
    )
    facts_file: str | None = facts_option(Section.REQUEST)
    out: str | None = option(
        Section.OUTPUT, "--out DIR|FILE|-", help="File, or folder with a trailing /, to write to. [stdout]"
    )
    force: bool = flag(Section.OUTPUT, "--force", help="Replace existing files.")
    list_kinds: bool = flag(Section.OUTPUT, "--list", help="List the kinds and their options.")
    as_json: bool = flag(Section.OUTPUT, "--json", help=f"Print JSON (schema {SCHEMA}): the files, or the list.")

    def order(self, kind: str) -> Order:
        """Return what to export.

        Raises:
            UsageError: an option or a definition is invalid.
            ConflictError: an image is impossible.
        """
        from envkit.export import kinds
        from envkit.export.model import Order, checked
        from envkit.ground.requirement import parse
        from envkit.ground.settings import ca_file

        options = kinds.options(kind, _pairs(self.given))
        settings = load_settings({"facts": self.facts_file, "requirement": self.requirement})
        mirrors = replace(settings.mirrors(), ca_bundle=ca_file(settings.get("ca_bundle")))  # `none` becomes None
        cells, names = _cells(self)
        typed = {
            "registry": self.registry,
            "engine": self.engine,
            "tier": self.tier,
            "gpus": self.gpus,
            "jobs": self.jobs,
            "minutes": self.minutes,
        }
        own: dict[str, Any] = {key: value for key, value in typed.items() if value is not None}
        return checked(
            Order(
                cells=cells,
                definitions=names,
                matrix=self.matrix,
                options=options,
                mirrors=mirrors,
                ca_bundle=_bundle_text(mirrors.ca_bundle),
                template_dirs=_folders(settings),
                requirement=parse(given) if (given := settings.get("requirement")) else None,
                command=shlex.join(["envkit", *_shown(sys.argv[1:])]),
                **own,
            )
        )


@new_command("export", ExportFlags)
def command(flags: ExportFlags) -> None:
    """Generate CI, bake, Kubernetes, Slurm and dev container files.

    The jobs of github, gitlab and kubernetes install envkit: --requirement, or the setting
    requirement, says where from. envkit is on no package index yet.

    \b
    envkit export --list
    envkit export bake --all --out bake/
    envkit export github --matrix matrix.yaml --registry registry.example.com/team/train --out ./
    """  # noqa: D301 - click reads "\b" as "do not join these lines"
    from envkit.export import kinds

    if flags.list_kinds:
        _list(as_json=flags.as_json)
        return
    if flags.kind is None:
        raise UsageError("missing KIND", hint=f"envkit export {'|'.join(kinds.known())}")
    kind = kinds.kind(flags.kind)
    files = kind.exporter()(flags.order(flags.kind))
    if flags.as_json:
        _print_json({"kind": flags.kind, "files": dict(files)})
    elif flags.out in (None, "-"):
        _print_main(flags.kind, files)
    else:
        _write(Path(str(flags.out)), files, folder=str(flags.out).endswith("/"), force=flags.force)


def _pairs(given: tuple[str, ...]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in given:
        key, sign, value = text.partition("=")
        if not sign or not key:
            raise UsageError(f"--set {text!r:.100} is not NAME=VALUE", hint="envkit export --list")
        pairs[key] = value
    return pairs


def _cells(flags: ExportFlags) -> tuple[tuple[Cell, ...], Mapping[str, str]]:
    """Return the cells and, without a matrix file, the definition of each cell by its name."""
    from envkit.fleet.model import Cell
    from envkit.fleet.names import cell_name
    from envkit.plan.definition import shipped
    from envkit.plan.planner import DEFAULT, plan_of

    definitions, matrix, every = flags.definitions, flags.matrix, flags.every
    exclude(matrix=matrix, all=every)
    if definitions and (matrix or every):
        raise UsageError(
            f"{'--matrix' if matrix else '--all'} already selects the images", hint="leave out the definitions"
        )
    facts = load_facts(flags.facts_file)
    if matrix is not None:
        return _cells_of(Path(matrix), facts, skip=flags.skip_impossible), {}
    names = tuple(shipped()) if every else definitions or (DEFAULT,)
    plans = [plan_of(load_definition(name, facts), {}, facts) for name in names]
    cells = tuple(Cell(name=cell_name(plan.name, ()), axes=(), plan=plan) for plan in plans)
    return cells, {cell.name: name for cell, name in zip(cells, names, strict=True)}


def _cells_of(matrix: Path, facts: Facts, *, skip: bool) -> tuple[Cell, ...]:
    from envkit.fleet.expand import expand
    from envkit.fleet.matrix import read_matrix

    expanded = expand(read_matrix(matrix), {}, facts, partial(load_definition, facts=facts))
    lines = [f"{cell.name}: {cell.reason}" for cell in expanded.impossible]
    if lines and not skip:
        raise ConflictError(
            f"{matrix}: {len(lines)} of its images are impossible",
            details=tuple(lines),
            hint="exclude them in the matrix, or --skip-impossible",
        )
    for line in lines:
        tell(f"skipped: {line}")
    return expanded.cells


def _folders(resolved: Settings) -> tuple[Path, ...]:
    templates = resolved.get("templates")
    return (Path(templates),) if templates else ()


def _bundle_text(file: str | None) -> str:
    if file is None:
        return ""
    try:
        return Path(file).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"ca_bundle: {file}: {error}", hint="envkit config shows where it is set") from error


def _shown(arguments: list[str]) -> list[str]:
    """Return the arguments that determine the content of the files, for the comment in their first line."""
    kept: list[str] = []
    words = iter(arguments)
    for word in words:
        if word == "--out":
            next(words, None)
        elif word not in ("--force", "--json") and not word.startswith("--out="):
            kept.append(word)
    return kept


def _print_main(kind: str, files: Mapping[str, str]) -> None:
    main, *others = files  # exporters return the main file first
    click.echo(files[main], nl=False)
    if others:
        tell(f"note: only {main} is shown; envkit export {kind} --out DIR/ also writes the {len(others)} other files")


def _write(target: Path, files: Mapping[str, str], *, folder: bool, force: bool) -> None:
    """Write a single file as `target`, several files below it."""
    from envkit.ground import foreign
    from envkit.ground.store import write_atomic

    below = folder or len(files) > 1 or target.is_dir()
    contents = {target / name if below else target: text.encode() for name, text in files.items()}
    # All files are checked before the first one is written. A link, for example in a foreign checkout, may lead to any
    # file of the user.
    root = target if below else target.parent
    for path, data in contents.items():
        hint = f"remove it, or write to another folder than {target}"
        old = foreign.check_write(path, data, root=root, is_ours=None, hint=hint)
        if old is not None and old != data and not force:
            raise UsageError(f"{path} exists and differs", hint="--force replaces it")
    for path, data in contents.items():
        if below:
            foreign.write(path, data, root=root, is_ours=None)
        else:
            write_atomic(path, data)
    first = next(iter(contents))
    tell(f"{first}" if len(contents) == 1 else f"{first} and {len(contents) - 1} other files in {target}")


def _list(*, as_json: bool) -> None:
    from envkit.export.kinds import known

    kinds = known()
    if as_json:
        rows = {
            name: {
                "about": kind.about,
                "file": kind.file,
                "options": {
                    key: {"default": option.default, "about": option.about} for key, option in kind.options().items()
                },
            }
            for name, kind in kinds.items()
        }
        _print_json({"kinds": rows})
        return
    for line in aligned([[name, kind.file, kind.about] for name, kind in kinds.items()]):
        click.echo(line)
    for name, kind in kinds.items():
        lines = aligned(
            [
                [f"--set {key}=", setting.about + (f" [{setting.default}]" if setting.default else "")]
                for key, setting in kind.options().items()
            ]
        )
        if lines:
            click.echo(f"\n{name}:")
        for line in lines:
            click.echo(f"  {line}")


def _print_json(tree: Mapping[str, Any]) -> None:
    print_json({"schema": SCHEMA, **tree})
