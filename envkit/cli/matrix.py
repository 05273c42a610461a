"""`envkit matrix`: list and show the compatibility data with its sources and evidence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from envkit.cli import shell_values
from envkit.cli.declare import Section, SectionGroup, argument, new_command, option, verbose_option
from envkit.cli.matrix_check import (
    check_command,
    counts_of,
    identity_line,
    json_option,
    print_facts_json,
    prove_command,
    update_command,
)
from envkit.cli.options import facts_option, load_facts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from envkit.facts.evidence import Evidence
    from envkit.facts.lookup import Entry
    from envkit.facts.model import Facts
    from envkit.facts.tables import Table

_HELP = """Show and check the compatibility data with its sources.

\b
envkit matrix list                       list the tables
envkit matrix list builds --torch 2.7    list the builds of torch 2.7
envkit matrix show 2.7.1                 show all facts about a torch release
envkit matrix show "RTX 4090"            ... about a GPU
envkit matrix show 2.15.0 -v             ... with the evidence of each value
envkit matrix check                      check every invariant
envkit matrix check --online             compare the facts with the wheels
envkit matrix prove torch==2.15.0        compare a release with its wheels
envkit matrix update                     show new releases as a diff
"""

_QUOTE = 70  # characters of a quotation on a terminal
# Columns of the plain list, by table.
_LISTED = {
    "releases": ("torch", "released", "torchvision", "torchaudio", "triton", "setuptools", "default_cuda", "refs"),
    "builds": (
        "torch",
        "cuda",
        "source",
        "platform",
        "pythons",
        "archs",
        "ptx",
        "cudnn",
        "glibc",
        "confidence",
        "refs",
    ),
    "companions": ("package", "version", "torch", "index", "platform", "local_version", "cuda", "pythons", "refs"),
    "toolkits": ("toolkit", "linux_min", "confidence", "refs"),
    "compat": ("cuda_major", "linux_min", "refs"),
    "forward": ("toolkit", "branches", "refs"),
    "gpus": ("capability", "family", "first_cuda", "last_cuda", "min_driver_branch", "last_driver_branch", "products"),
    "oses": ("id", "family", "glibc", "pythons", "image", "eol", "refs"),
    "pythons": ("python", "bugfix_until", "eol", "refs"),
    "cudnns": ("cudnn", "cuda_major", "cuda_minors", "linux_min_driver", "capabilities", "confidence", "refs"),
    "cuda_images": ("cuda", "status", "cudnn_tag_part", "oses", "refs"),
    "package_needs": ("package", "deb", "rpm", "programs", "pages", "indexes", "confidence"),
    "base_images": ("image", "tag", "torch", "build", "cuda", "python", "os", "confidence"),
    "installers": ("file", "python", "conda", "arch", "sha256"),
    "traps": ("id", "severity", "title", "refs"),
}


command = SectionGroup("matrix", help=_HELP)
command.add_command(check_command)
command.add_command(prove_command)
command.add_command(update_command)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListFlags:
    """The options of `envkit matrix list`."""

    table: str | None = argument(required=False, shell_complete=shell_values.tables)
    torch: str | None = option(
        Section.SELECTION,
        "--torch VERSION",
        shell_complete=shell_values.torches,
        help="Show only rows of this torch: 2.7.1, 2.7.* or '>=2.6,<2.8'.",
    )
    cuda: str | None = option(
        Section.SELECTION,
        "--cuda VERSION",
        shell_complete=shell_values.cudas,
        help="Show only rows of this CUDA runtime, or cpu.",
    )
    source: str | None = option(
        Section.SELECTION,
        "--source NAME",
        shell_complete=shell_values.sources,
        help="Show only builds of this source: pytorch, pypi, conda-forge, conda-pytorch.",
    )
    facts_file: str | None = facts_option(Section.INPUT)
    as_json: bool = json_option()


@new_command("list", ListFlags, parent=command)
def list_(flags: ListFlags) -> None:
    """List the rows of a table, or all tables."""
    from envkit.cli.output import show_table

    facts = load_facts(flags.facts_file)
    if flags.table is None and not (flags.torch or flags.cuda or flags.source):
        counts = counts_of(facts)
        if flags.as_json:
            print_facts_json(facts, tables=counts)
        else:
            show_table(("table", "rows"), [(name, str(count)) for name, count in counts.items()])
            click.echo(f"\n{identity_line(facts)}")
        return
    name = _table_name(flags.table or "builds")
    if name == "sources":
        _list_sources(facts, flags.as_json)
        return
    rows = _filtered(facts, name, {"torch": flags.torch, "cuda": flags.cuda, "source": flags.source})
    if flags.as_json:
        print_facts_json(facts, table=name, rows=[_tree(row) for row in rows])
        return
    cells = [[_text(column, getattr(row, column)) for column in _LISTED[name]] for row in rows]
    if cells:
        show_table(_LISTED[name], cells)
    else:
        click.echo("no matching rows", err=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowFlags:
    """The options of `envkit matrix show`."""

    key: str = argument()
    verbose: bool = verbose_option("Also show the evidence of each value, with its grade.")
    facts_file: str | None = facts_option(Section.INPUT)
    as_json: bool = json_option()


@new_command("show", ShowFlags, parent=command)
def show(flags: ShowFlags) -> None:
    """Show everything known about KEY, with its sources.

    KEY is a torch release, a companion (torchcodec, 'torchvision 0.21.0'), triton or setuptools, a CUDA or cuDNN
    version, a GPU or compute capability, an OS, a Python, an installer, a trap or a source ID.
    """
    from envkit.facts import lookup, sources
    from envkit.ground.errors import UsageError

    facts, key = load_facts(flags.facts_file), flags.key
    entries = lookup.find(facts, key)
    if not entries:
        near = lookup.nearest(facts, key)
        raise UsageError(
            f"unknown key {key!r}" + (f"; did you mean {', '.join(near)}?" if near else ""),
            hint=f"envkit matrix show {_quoted(near[0])}" if near else "envkit matrix list",
        )
    if flags.as_json:
        print_facts_json(
            facts,
            key=key,
            found=[
                {
                    "table": entry.table,
                    "rows": [_tree(row) for row in entry.rows],
                    "builds": [_tree(row) for row in entry.builds],
                    "traps": [_tree(row) for row in entry.traps],
                    "evidence": _evidence_of(entry),
                    "sources": {
                        ref: dict(source[1]) for ref in entry.refs if (source := sources.find(facts.sources, ref))
                    },
                }
                for entry in entries
            ],
        )
        return
    for position, entry in enumerate(entries):
        if position:
            click.echo("")
        _show_entry(facts, entry)
        if flags.verbose:
            _show_evidence(entry)


def _table_name(typed: str) -> str:
    from envkit.facts.tables import BY_NAME
    from envkit.ground.errors import UsageError
    from envkit.ground.text import similar

    name = typed.lower().replace("-", "_")
    if name in (*BY_NAME, "sources"):
        return name
    near = similar(name, [*BY_NAME, "sources"])
    hint = f"envkit matrix list {near[0]}" if near else "envkit matrix list"
    raise UsageError(f"unknown table {typed!r}; use one of {', '.join([*BY_NAME, 'sources'])}", hint=hint)


def _filtered(facts: Facts, name: str, filters: dict[str, str | None]) -> list[Any]:
    """Return the rows of a table that match the filters.

    Raises:
        UsageError: a filter is not a version, or the table has no such field.
    """
    from envkit.facts.check import rows_of
    from envkit.facts.tables import BY_NAME, SOURCES
    from envkit.ground.errors import UsageError
    from envkit.ground.versions import parse_constraint

    table: Table = BY_NAME[name]
    rows = list(rows_of(facts, table))
    for field, text in filters.items():
        if text is None:
            continue
        # Two tables have the CUDA version in a column of another name.
        column = {"cuda": {"toolkits": "toolkit", "releases": "default_cuda"}.get(name, "cuda")}.get(field, field)
        if column not in table.columns:
            raise UsageError(
                f"--{field}: the table {name} has no column {field}", hint=f"envkit matrix list builds --{field} {text}"
            )
        if field == "source":
            if text not in SOURCES:
                raise UsageError(
                    f"--source: {text!r} is not one of {', '.join(SOURCES)}", hint="envkit matrix list builds"
                )
            rows = [row for row in rows if row.source == text]
        elif text == "cpu":
            rows = [row for row in rows if getattr(row, column) is None]
        else:
            allowed = parse_constraint(text, f"--{field}")
            rows = [row for row in rows if (have := getattr(row, column)) is not None and allowed.allows(have)]
    return rows


def _list_sources(facts: Facts, as_json: bool) -> None:
    from envkit.cli.output import show_table
    from envkit.facts.sources import describe

    if as_json:
        print_facts_json(facts, table="sources", rows=[{"id": name, **row} for name, row in facts.sources.items()])
        return
    show_table(
        ("id", "kind", "where"),
        [(name, row.get("kind", ""), describe(row, name)) for name, row in facts.sources.items()],
    )


def _show_entry(facts: Facts, entry: Entry) -> None:
    from envkit.cli.output import show_table
    from envkit.facts.sources import describe, find
    from envkit.ground.text import aligned

    if len(entry.rows) == 1:
        row = entry.rows[0]
        click.echo(entry.title(row))
        values = [(name, _text(name, value)) for name, value in _tree(row).items() if name != "refs"]
        for line in aligned([(f"  {name}", text) for name, text in values if text]):
            click.echo(line)
    else:
        columns = tuple(name for name in _LISTED[entry.table] if name != "refs")
        show_table(columns, [[_text(c, getattr(row, c)) for c in columns] for row in entry.rows], title=entry.table)
    if entry.builds:
        columns = tuple(name for name in _LISTED["builds"] if name != "refs")
        click.echo("")
        show_table(
            columns, [[_text(c, getattr(row, c)) for c in columns] for row in entry.builds], title=entry.builds_title
        )
    if entry.traps:
        click.echo("")
        show_table(
            ("id", "severity", "title", "fix"),
            [(trap.id, trap.severity, trap.title, trap.fix) for trap in entry.traps],
            title="traps",
        )
    if entry.refs:
        click.echo("")
        rows = [(ref, describe(source[1], ref)) for ref in entry.refs if (source := find(facts.sources, ref))]
        show_table(("source", "where"), rows)


def _tree(row: Any) -> dict[str, Any]:
    if isinstance(row, dict):
        return row
    return {name: getattr(row, name) for name in row.__dataclass_fields__}


def _text(column: str, value: Any) -> str:
    if value is None:
        return "cpu" if column == "cuda" else ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{name}: {_text('', item)}" for name, item in value.items())
    if column == "tags":
        return f"{len(value)} (--json lists them)"
    if isinstance(value, (tuple, list)):
        separator = ", " if any(" " in str(item) for item in value) else " "
        return separator.join(str(item) for item in value)
    return str(value)


def _quoted(text: str) -> str:
    return f'"{text}"' if " " in text else text


def _evidence_of(entry: Entry) -> list[dict[str, Any]]:
    """Return the evidence of an entry's rows and builds as JSON, each with its grade."""
    return [{"table": table, "grade": evidence.grade, **evidence.to_json()} for table, evidence in _evidence(entry)]


def _show_evidence(entry: Entry) -> None:
    """Print the evidence of an entry's rows and builds, and which values have none."""
    from envkit.cli.output import show_table
    from envkit.ground.text import fitted, neutral

    rows = [
        (
            evidence.row, evidence.field, _value_text(evidence.value), evidence.grade, evidence.kind,
            neutral(evidence.file or evidence.reference or ""),
            fitted(neutral(evidence.quote or ""), _QUOTE),
        )
        for _, evidence in _evidence(entry)
    ]  # fmt: skip
    click.echo("")
    if rows:
        show_table(("row", "field", "value", "grade", "from", "file", "quotation"), rows, title="evidence")
    click.echo(_rest(entry))


def _evidence(entry: Entry) -> Iterator[tuple[str, Evidence]]:
    from envkit.facts import evidence, tables
    from envkit.facts.check import name_of

    for table, rows in ((entry.table, entry.rows), ("builds", entry.builds)):
        if table in tables.BY_NAME:
            names = {name_of(tables.BY_NAME[table], row) for row in rows}
            yield from ((table, item) for item in evidence.read(table) if item.row in names)


def _rest(entry: Entry) -> str:
    """Return a line that counts the rows without evidence by grade."""
    from collections import Counter

    from envkit.facts import tables
    from envkit.facts.check import name_of
    from envkit.facts.evidence import grade_of

    covered = {(table, evidence.row) for table, evidence in _evidence(entry)}
    grades: Counter[str] = Counter()
    for table, rows in ((entry.table, entry.rows), ("builds", entry.builds)):
        for row in rows:
            if table in tables.BY_NAME and (table, name_of(tables.BY_NAME[table], row)) not in covered:
                grades[grade_of((), getattr(row, "confidence", None))] += 1
    counted = ", ".join(f"{count} {grade}" for grade, count in sorted(grades.items())) or "none"
    return f"rows without evidence, by the grade of their sources: {counted}"


def _value_text(value: Any) -> str:
    return " ".join(value) if isinstance(value, tuple) else "" if value is None else str(value)
