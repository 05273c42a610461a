"""`envkit compare`: launch two images alternately, or read recorded launches, and show which metrics changed."""

from __future__ import annotations

import sys
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from envkit.cli import shell_values
from envkit.cli.declare import Section, argument, group, new_command, option
from envkit.cli.image_names import IMAGE
from envkit.cli.options import (
    PATH,
    STDOUT,
    DocumentOptions,
    ProgressOptions,
    document_options,
    noted,
    progress_options,
)
from envkit.cli.output import page_option, write_document
from envkit.cli.verify_flags import RunnerOptions
from envkit.ground.errors import UsageError
from envkit.ground.text import aligned

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from envkit.image.name import ImageName
    from envkit.verify.compare.decide import Row
    from envkit.verify.compare.result import Comparison


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareFlags:
    """The options of `envkit compare`."""

    sides: tuple[ImageName, ...] = argument(
        nargs=-1, metavar="A B", type=IMAGE, shell_complete=shell_values.images_or_files
    )
    # With 5 launches per side, the smallest exact p is 0.008; with 3 it is 0.10 (`compare.launches`).
    launches: int | None = option(
        Section.CHECKS, "--launches N", type=click.IntRange(min=5), help="Launches per side. [as many as needed]"
    )
    seed: int = option(
        Section.CHECKS, "--seed N", type=int, default=0, show_default=True, help="Seed for the order of the launches."
    )
    run: RunnerOptions = group(RunnerOptions, tier={"default": "quick", "help": "How much is checked. [quick]"})
    keep: Path | None = option(Section.OUTPUT, "--keep DIR", type=PATH, help="Save the records in DIR/a and DIR/b.")
    page: Path | None = page_option("Write a page with the intervals and the launches.")
    document: DocumentOptions = document_options("the result (schema envkit.compare/1)")
    progress: ProgressOptions = progress_options("Show the payload's output while it runs.")


@new_command("compare", CompareFlags)
def command(flags: CompareFlags) -> int:
    """Check whether B is slower than A.

    A and B are images, which are launched alternately, or records: a .json file of `envkit verify`, or a folder of
    such files.

    Exit codes: 0 not slower, 5 inconclusive, 6 an image does not run, 7 regression.
    """
    document = flags.document.target()
    first, second = _two(flags.sides)
    recorded = [_is_record(item.typed) for item in (first, second)]
    if any(recorded) and not all(recorded):
        raise UsageError(
            "an image cannot be compared with records, because their launches do not alternate",
            hint="name two images, or two folders of records",
        )
    if all(recorded):
        comparison = _from_records(Path(first.typed), Path(second.typed))
    else:
        comparison = _from_launches(first, second, flags)
    _show(comparison, document)
    if flags.page is not None:
        from envkit.report.html.comparison import render_html

        write_document(render_html(comparison.to_json()), str(flags.page), done="the comparison is complete")
    return comparison.exit_code


def _from_records(first: Path, second: Path) -> Comparison:
    from envkit.verify.compare.result import compared, takes_turns
    from envkit.verify.compare.sides import hold_together, read_side

    sides = [read_side(first), read_side(second)]
    hold_together([record for side in sides for record in side.records])
    return compared(sides[0], sides[1], interleaved=takes_turns(sides[0], sides[1]))


def _from_launches(first: ImageName, second: ImageName, flags: CompareFlags) -> Comparison:
    from envkit.pipeline.machine import check_images, settings_here
    from envkit.pipeline.verification import VerifyRequest, subject_of
    from envkit.verify.compare.decide import Rule
    from envkit.verify.compare.launches import LAUNCH, gather
    from envkit.verify.compare.result import compared
    from envkit.verify.compare.sides import Side, disagreements
    from envkit.verify.driver import Options

    run = flags.run
    options = Options(only=run.only, skip=run.skip, argv=tuple(sys.argv), launch=LAUNCH)
    with closing(flags.progress.reporter()) as reporter, ExitStack() as until:
        settings = noted(settings_here(run.runner))
        check_images((first, second), settings)
        subjects = [
            subject_of(
                VerifyRequest(image=name, name=name.typed, options=options, gpus=run.gpus, tier=run.tier),
                settings,
                reporter,
                until,
            )
            for name in (first, second)
        ]
        least = Rule.shipped().launches
        launched = gather(
            subjects, reporter, launches=flags.launches, seed=flags.seed, least=least, keep=_keeper(flags.keep)
        )
    sides = [Side(name=name.typed, records=records) for name, records in zip((first, second), launched, strict=True)]
    # Notes, not an error: a difference in the environment may come from the images, which are what is compared.
    notes = disagreements([record for side in sides for record in side.records])
    return compared(sides[0], sides[1], interleaved=True, seed=flags.seed, notes=notes)


def _two(typed: tuple[ImageName, ...]) -> tuple[ImageName, ImageName]:
    """Return A and B.

    Raises:
        UsageError: there are not two.
    """
    if len(typed) != 2:  # noqa: PLR2004 - A and B
        raise UsageError(f"compare takes two images or two records, not {len(typed)}", hint="envkit compare A B")
    return typed[0], typed[1]


def _is_record(item: str) -> bool:
    # A name without a leading `/` or `.` may be an image and a folder; a folder counts only if it contains records.
    return item.endswith(".json") or item.startswith(("/", ".")) or bool(list(Path(item).glob("*.json")))


def _keeper(folder: Path | None) -> Callable[[int, Mapping[str, Any]], None] | None:
    if folder is None:
        return None
    from envkit.verify.record import Record

    if any(list((folder / side).glob("*.json")) for side in "ab"):
        raise UsageError(f"{folder} contains records of another comparison", hint="name an empty folder for --keep")
    counts = [0, 0]

    def keep(side: int, record: Mapping[str, Any]) -> None:
        counts[side] += 1
        Record(record).write(folder / "ab"[side] / f"{counts[side]:03d}.json")

    return keep


def _show(comparison: Comparison, document: str | None) -> None:
    to_stderr = document == STDOUT
    head = ("metric", "A", "B", "B / A", "interval", "p", "verdict")
    lines = aligned([head, *(_cells(row) for row in comparison.rows)]) if comparison.rows else []
    counts = " and ".join(str(len(side.records)) for side in (comparison.first, comparison.second))
    lines += [""] if lines else []
    lines += [f"{row.change} {row.key}: {row.reason}" for row in comparison.rows if row.change != "SAME"]
    lines.append(
        f"A is {comparison.first.name}, B is {comparison.second.name}; {counts} launches, median of each side shown"
    )
    lines.append(
        f"smallest p that these launches and metrics can reach: {comparison.smallest_p:.4f} (Holm); "
        f"required: {comparison.rule.level:g}"
    )
    lines += [f"note: {note}" for note in comparison.notes]
    lines.append(f"{comparison.change}  exit code {comparison.exit_code}")
    for line in lines:
        click.echo(line, err=to_stderr)
    write_document(comparison.to_json(), document)


def _cells(row: Row) -> tuple[str, ...]:
    from statistics import median

    def middle(values: tuple[float, ...]) -> str:
        return f"{median(values):.4g} {row.unit}" if values else "-"

    name = row.key if row.clock == "cpu" else f"{row.key} ({row.name})"
    if row.interval is None or row.p_holm is None:
        return name, middle(row.first), middle(row.second), "-", "-", "-", str(row.change)
    interval = f"{row.interval.low:.3f} to {row.interval.high:.3f} ({row.interval.confidence:.1%})"
    ratio = f"{row.interval.estimate:.3f}"
    return name, middle(row.first), middle(row.second), ratio, interval, f"{row.p_holm:.4f}", str(row.change)
