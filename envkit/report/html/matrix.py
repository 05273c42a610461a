"""The page of a matrix: images verified on machines (`envkit.fleet-verify/1`), or images built (`envkit.fleet/1`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from envkit.checks.reading import Tree, mapping, sequence
from envkit.checks.shown import LOWER, Tile
from envkit.ground.progress import counted as counted_as
from envkit.report.environment import without_identifiers
from envkit.report.html.frame import render_page
from envkit.report.reading import VERDICTS, counted, headline, word, wrong

SECTIONS = {"verdict": "Summary", "matrix": "Matrix", "remarks": "What went wrong", "record": "Record"}
_MOST = 8  # findings named of one image on one machine
# What became of a build -> the badge's verdict.
_BUILT = {"built": "PASS", "present": "PASS", "unproved": "NOT_VERIFIED", "failed": "FAIL", "stopped": "SKIP"}
_ORDER = ("FAIL", "ERROR", "INCONCLUSIVE", "NOT_VERIFIED", "WARN", "PASS", "SKIP")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One image on one machine, or one built image. `lines` are why it is not a plain success."""

    row: str
    column: str
    verdict: str
    said: str  # the verdict in words
    note: str = ""
    lines: Sequence[str] = ()
    advice: Sequence[str] = ()
    ident: str = ""


def render_html(tree: Tree) -> bytes:
    """Return a matrix as one self-contained page. The same matrix gives the same bytes."""
    tree = without_identifiers(tree)
    verified = "proofs" in tree
    outcomes = _verified(tree) if verified else _built(tree)
    cells = [Cell(**{**_fields(outcome), "ident": f"cell-{index}"}) for index, outcome in enumerate(outcomes)]
    counts = Counter(cell.verdict for cell in cells)
    columns = list(dict.fromkeys(cell.column for cell in cells))
    noun = "verification" if verified else "build"
    return render_page(
        "matrix.html",
        title=f"envkit {noun} matrix",
        brand=f"envkit {noun} matrix",
        sections=SECTIONS,
        document=_short(tree),
        verdict=next((kind for kind in _ORDER if counts[kind]), "SKIP"),
        said=_said(tree, cells, verified=verified),
        facts=[f"exit code {tree['exit_code']}"],
        shortened=verified,
        counts=[(kind, counts[kind]) for kind in _ORDER if counts[kind]],
        tiles=_tiles(tree, cells, verified=verified),
        corner="Image",
        columns=[(name, _hardware(tree, name)) for name in columns],
        rows=_rows(cells, columns),
        bad=[cell for cell in sorted(cells, key=lambda item: _ORDER.index(item.verdict)) if cell.lines],
    )


def _said(tree: Tree, cells: Sequence[Cell], *, verified: bool) -> str:
    if verified:
        images, machines = (len(sequence(tree[name])) for name in ("images", "machines"))
        return f"{counted_as(images, 'image')} on {counted_as(machines, 'machine')}"
    return f"{counted_as(len(cells), 'image')} to build"


def _short(tree: Any) -> Any:
    """Return the matrix with the summaries of its records alone: a hundred whole records are too much for a page."""
    if isinstance(tree, Mapping):
        return {
            key: {"summary": value["summary"]} if key == "record" and isinstance(value, Mapping) else _short(value)
            for key, value in tree.items()
        }
    return [_short(value) for value in tree] if isinstance(tree, list | tuple) else tree


def _fields(cell: Cell) -> dict[str, Any]:
    return {name: getattr(cell, name) for name in cell.__dataclass_fields__}


def _rows(cells: Sequence[Cell], columns: Sequence[str]) -> list[tuple[str, list[Cell | None]]]:
    by_place = {(cell.row, cell.column): cell for cell in cells}
    return [(row, [by_place.get((row, name)) for name in columns]) for row in dict.fromkeys(cell.row for cell in cells)]


def _hardware(tree: Tree, machine: str) -> str:
    machines = map(mapping, sequence(tree.get("machines")))
    return next((str(row.get("hardware") or "") for row in machines if row.get("name") == machine), "")


def _verified(tree: Tree) -> list[Cell]:
    return [_verification(mapping(verification)) for verification in sequence(tree["proofs"])]


def _verification(verification: Tree) -> Cell:
    record, verdict = verification.get("record"), str(verification["verdict"])
    verdict = verdict if verdict in _ORDER else "ERROR"
    took = f"{verification['duration_s']:.0f}\u00a0s"
    if record is None:
        return Cell(
            row=verification["image"],
            column=verification["machine"],
            verdict=verdict,
            said=word(verdict),
            note=took,
            lines=_texts(verification, "error"),
            advice=_texts(verification, "hint"),
        )
    bad = sorted(wrong(record["checks"]), key=lambda item: VERDICTS.index(item["verdict"]))
    lines = [str(reason["message"]) for reason in record["summary"]["reasons"]]
    lines += [f"{item['id']} {item['reason_code']}: {item['message']}" for item in bad[:_MOST]]
    lines += [f"and {len(bad) - _MOST} more findings"] if len(bad) > _MOST else []
    return Cell(
        row=verification["image"],
        column=verification["machine"],
        verdict=verdict,
        said=headline(record["summary"]),
        note=f"{counted(record['summary'])}; {took}",
        lines=lines,
    )


def _built(tree: Tree) -> list[Cell]:
    """Return built and impossible images: the last axis across, the others and the image down."""
    images = [mapping(entry) for entry in sequence(tree["images"])]
    impossible = [mapping(entry) for entry in sequence(tree["impossible"])]
    last = _last_axis([*images, *impossible])
    cells = []
    for image in images:
        row, column = _place(image, last)
        failure, checked = mapping(image["failure"]), mapping(image["verification"])
        verdict = _BUILT.get(str(image["status"]), "ERROR")
        prefix = f"verified: {word(checked['verdict'])}; " if checked.get("verdict") else ""
        note = f"{prefix}{image['duration_s']:.0f}\u00a0s"
        said = word(image["status"])
        lines, advice = _texts(failure, "message"), _texts(failure, "hint")
        cells.append(Cell(row=row, column=column, verdict=verdict, said=said, note=note, lines=lines, advice=advice))
    for combination in impossible:
        row, column = _place(combination, last)
        lines, advice = _texts(combination, "reason"), _texts(combination, "hint")
        cells.append(Cell(row=row, column=column, verdict="SKIP", said="impossible", lines=lines, advice=advice))
    return cells


def _texts(entry: Tree, name: str) -> list[str]:
    return [str(entry[name])] if entry.get(name) else []


def _last_axis(images: Sequence[Tree]) -> str:
    """Return the last axis whose values and the rest of the name tell all images apart; empty where none does."""
    names = list(dict.fromkeys(axis for image in images for axis in mapping(image["axes"])))
    for name in reversed(names):
        places = {_place(image, name) for image in images}
        if all(name in mapping(image["axes"]) for image in images) and len(places) == len(images):
            return name
    return ""


def _place(entry: Tree, last: str) -> tuple[str, str]:
    axes: Mapping[str, str] = mapping(entry["axes"])
    if not last:
        return str(entry["name"]), "outcome"
    others = ", ".join(f"{name} {value}" for name, value in axes.items() if name != last)
    return others or "image", f"{last} {axes.get(last, '-')}"


def _tiles(tree: Tree, cells: Sequence[Cell], *, verified: bool) -> list[Tile]:
    good = sum(cell.verdict in ("PASS", "WARN") for cell in cells)
    tiles = [
        Tile(
            "Verified" if verified else "Built",
            f"{good} of {len(cells)}",
            "pairs of image and machine" if verified else "images",
        )
    ]
    if verified:
        tiles.append(Tile("Images", str(len(sequence(tree["images"]))), "rows of the matrix"))
        tiles.append(Tile("Machines", str(len(sequence(tree["machines"]))), "columns of the matrix"))
    else:
        tiles.append(Tile("Time", f"{tree['duration_s']:.0f} s", "all images together", LOWER))
        tiles.append(Tile("Impossible", str(len(sequence(tree["impossible"]))), "no versions fit"))
    return tiles
