"""`envkit compare`: launch two images in turns, or take recorded launches, and say what changed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from envkit.cli.documents import STDOUT, document_options, takes_no_file, target_of, write_document
from envkit.cli.verify import _TIERS, ids
from envkit.ground.settings import RUNNERS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from envkit.verify.compare.decide import Row
    from envkit.verify.compare.result import Comparison


@click.command("compare")
@click.argument("sides_given", nargs=-1, metavar="A B")
@click.option("--launches", type=click.IntRange(min=5), metavar="N", help="Launches per side. Default: what is needed.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the order in which the sides take turns.")
@click.option("--tier", type=click.Choice(_TIERS), default="quick", show_default=True, help="How much is measured.")
@click.option("--only", multiple=True, metavar="IDS", help="Measure with these checks alone: C14,C12.")
@click.option("--skip", multiple=True, metavar="IDS", help="Leave these checks out.")
@click.option(
    "--gpus", help="GPUs for the containers: all, none, or device numbers. Default: all, where there are any."
)
@click.option(
    "--runner",
    type=click.Choice(RUNNERS),
    help="Where the payload runs.",
)
@click.option("--keep", type=click.Path(path_type=Path), metavar="DIR", help="Keep the records, in DIR/a and DIR/b.")
@document_options("the result (schema envkit.compare/1)")
@click.option(
    "--progress", type=click.Choice(["auto", "plain", "quiet", "json"]), default="auto", help="Talk on stderr."
)
def command(
    *,
    sides_given: tuple[str, ...],
    launches: int | None,
    seed: int,
    tier: str,
    only: tuple[str, ...],
    skip: tuple[str, ...],
    gpus: str | None,
    runner: str | None,
    keep: Path | None,
    as_json: bool,
    out_file: str | None,
    progress: str,
) -> int:
    """Say whether B is slower than A.

    A and B are images, which are launched in turns, or records: a .json file of `envkit verify`, or a folder of them.

    Exit codes: 0 no slower, 5 inconclusive, 7 a regression, 6 an image does not run.
    """
    from envkit.cli import configured
    from envkit.cli.console import reporter
    from envkit.ground.errors import UsageError
    from envkit.pipeline.verification import check_images, settings_here, subject_of
    from envkit.verify.compare.decide import Rule
    from envkit.verify.compare.launches import LAUNCH, gather
    from envkit.verify.compare.result import compared, takes_turns
    from envkit.verify.compare.sides import Side, disagreements, hold_together, read_side
    from envkit.verify.driver import Options

    document = target_of(as_json=as_json, out_file=out_file)
    first, second = _two(sides_given, as_json=as_json)
    recorded = [_is_record(item) for item in (first, second)]
    if all(recorded):
        sides = [read_side(Path(item)) for item in (first, second)]
        hold_together([record for side in sides for record in side.records])
        found = compared(sides[0], sides[1], interleaved=takes_turns(sides[0], sides[1]))
    elif any(recorded):
        raise UsageError(
            "an image cannot be compared with records: their launches did not take turns",
            hint="name two images, or two folders of records",
        )
    else:
        talk = reporter(progress)
        options = Options(only=ids(only), skip=ids(skip), argv=tuple(sys.argv), launch=LAUNCH)
        try:
            here = configured.noted(settings_here(runner))
            check_images((first, second), here)
            subjects = [
                subject_of(image, here, talk, options, name=image, gpus=gpus, tier=tier) for image in (first, second)
            ]
            made = gather(
                subjects, talk, launches=launches, seed=seed, least=Rule.shipped().launches, keep=_keeper(keep)
            )
        finally:
            talk.close()
        sides = [Side(name=image, records=records) for image, records in zip((first, second), made, strict=True)]
        # A variable that one image sets belongs to what is compared.
        notes = disagreements([record for side in sides for record in side.records])
        found = compared(sides[0], sides[1], interleaved=True, seed=seed, notes=notes)
    _show(found, document)
    return found.exit_code


def _two(typed: tuple[str, ...], *, as_json: bool) -> tuple[str, str]:
    """Return A and B.

    Raises:
        UsageError: there are more or fewer; a third one that ends in .json is the file that --json once took.
    """
    from envkit.ground.errors import UsageError

    if len(typed) == 2:  # noqa: PLR2004 - A and B
        return typed[0], typed[1]
    if as_json and len(typed) > 2 and (file := next((one for one in typed if one.endswith(".json")), None)):  # noqa: PLR2004
        raise takes_no_file(file, ["compare", *(one for one in typed if one != file)])
    raise UsageError(f"compare takes two images or two records, not {len(typed)}", hint="envkit compare A B")


def _is_record(item: str) -> bool:
    # A folder may by chance be called like an image, whose name begins with a letter or a digit.
    return item.endswith(".json") or item.startswith(("/", ".")) or bool(list(Path(item).glob("*.json")))


def _keeper(folder: Path | None) -> Callable[[int, Mapping[str, Any]], None] | None:
    if folder is None:
        return None
    from envkit.ground.errors import UsageError
    from envkit.verify.record import Record

    if any(list((folder / side).glob("*.json")) for side in "ab"):
        raise UsageError(f"{folder} holds records of another comparison", hint="give --keep a folder of its own")
    counts = [0, 0]

    def keep(place: int, record: Mapping[str, Any]) -> None:
        counts[place] += 1
        Record(record).write(folder / "ab"[place] / f"{counts[place]:03d}.json")

    return keep


def _show(found: Comparison, document: str | None) -> None:
    from envkit.cli.table import aligned

    to_stderr = document == STDOUT
    head = ("metric", "A", "B", "B / A", "interval", "p", "verdict")
    lines = aligned([head, *(_cells(row) for row in found.rows)]) if found.rows else []
    counts = " and ".join(str(len(side.records)) for side in (found.first, found.second))
    lines += [""] if lines else []
    lines += [f"{row.change} {row.key}: {row.reason}" for row in found.rows if row.change != "SAME"]
    lines.append(f"A is {found.first.name}, B is {found.second.name}; {counts} launches, median of each side shown")
    lines.append(
        f"So many launches and metrics can reach p {found.smallest_p:.4f} (Holm); {found.rule.level:g} is asked for"
    )
    lines += [f"note: {note}" for note in found.notes]
    lines.append(f"{found.change}  exit code {found.exit_code}")
    for line in lines:
        click.echo(line, err=to_stderr)
    write_document(found.to_json(), document)


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
