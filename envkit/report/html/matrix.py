"""The page of a matrix: images verified on machines (`envkit.fleet-verify/1`), or images built (`envkit.fleet/1`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from envkit.checks.reading import Tree, mapping, sequence
from envkit.checks.sheet import LOWER, Tile
from envkit.ground.progress import counted as counted_as
from envkit.report.environment import without_identifiers
from envkit.report.html.frame import render_page
from envkit.report.reading import VERDICTS, counted, headline, word, wrong

SECTIONS = {"verdict": "Summary", "matrix": "Matrix", "remarks": "Problems", "record": "Record"}
_MOST = 8  # findings listed per image and machine
# Status of a build -> the verdict of the badge.
_BUILT = {"built": "PASS", "present": "PASS", "unproved": "NOT_VERIFIED", "failed": "FAIL", "stopped": "SKIP"}
_GOOD = ("PASS", "WARN")
_MADE = ("PASS", "NOT_VERIFIED")  # there is an image, whatever its verification said
_ORDER = ("FAIL", "ERROR", "INCONCLUSIVE", "NOT_VERIFIED", "WARN", "PASS", "SKIP")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """An image on a machine, or a built image. `lines` explain why it is not a plain success."""

    row: str
    column: str
    verdict: str
    text: str  # the verdict as people read it
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
        scope=_scope(tree, cells, verified=verified),
        facts=[f"exit code {tree['exit_code']}"],
        shortened=verified,
        counts=[(kind, counts[kind]) for kind in _ORDER if counts[kind]],
        tiles=_tiles(tree, cells, verified=verified),
        corner="Image",
        columns=[(name, _hardware(tree, name)) for name in columns],
        rows=_rows(cells, columns),
        bad=[cell for cell in sorted(cells, key=lambda item: _ORDER.index(item.verdict)) if cell.lines],
    )


def _scope(tree: Tree, cells: Sequence[Cell], *, verified: bool) -> str:
    if verified:
        images, machines = (len(sequence(tree[name])) for name in ("images", "machines"))
        return f"{counted_as(images, 'image')} on {counted_as(machines, 'machine')}"
    return f"{counted_as(len(cells), 'image')} to build"


def _short(tree: Any) -> Any:
    """Return the matrix with only the summaries of its records; a hundred complete records are too large for a page."""
    if isinstance(tree, Mapping):
        return {
            key: {"summary": value["summary"]} if key == "record" and isinstance(value, Mapping) else _short(value)
            for key, value in tree.items()
        }
    return [_short(value) for value in tree] if isinstance(tree, list | tuple) else tree


def _fields(cell: Cell) -> dict[str, Any]:
    return {name: getattr(cell, name) for name in cell.__dataclass_fields__}


def _rows(cells: Sequence[Cell], columns: Sequence[str]) -> list[tuple[str, list[Cell | None]]]:
    by_position = {(cell.row, cell.column): cell for cell in cells}
    names = dict.fromkeys(cell.row for cell in cells)
    return [(row, [by_position.get((row, column)) for column in columns]) for row in names]


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
            text=word(verdict),
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
        text=headline(record["summary"]),
        note=f"{counted(record['summary'])}; {took}",
        lines=lines,
    )


def _built(tree: Tree) -> list[Cell]:
    """Return built and impossible images, with the last axis as columns and all others as rows."""
    images = [mapping(entry) for entry in sequence(tree["images"])]
    impossible = [mapping(entry) for entry in sequence(tree["impossible"])]
    last = _last_axis([*images, *impossible])
    cells = []
    for image in images:
        row, column = _position(image, last)
        failure, checked = mapping(image["failure"]), mapping(image["verification"])
        verdict = _BUILT.get(str(image["status"]), "ERROR")
        prefix = f"verified: {word(checked['verdict'])}; " if checked.get("verdict") else ""
        note = f"{prefix}{image['duration_s']:.0f}\u00a0s"
        text = word(image["status"])
        lines, advice = _texts(failure, "message"), _texts(failure, "hint")
        cells.append(Cell(row=row, column=column, verdict=verdict, text=text, note=note, lines=lines, advice=advice))
    for combination in impossible:
        row, column = _position(combination, last)
        lines, advice = _texts(combination, "reason"), _texts(combination, "hint")
        cells.append(Cell(row=row, column=column, verdict="SKIP", text="impossible", lines=lines, advice=advice))
    return cells


def _texts(entry: Tree, name: str) -> list[str]:
    return [str(entry[name])] if entry.get(name) else []


def _last_axis(images: Sequence[Tree]) -> str:
    """Return the last axis that gives each image its own row and column; "" if there is none."""
    names = list(dict.fromkeys(axis for image in images for axis in mapping(image["axes"])))
    for name in reversed(names):
        positions = {_position(image, name) for image in images}
        if all(name in mapping(image["axes"]) for image in images) and len(positions) == len(images):
            return name
    return ""


def _position(entry: Tree, last: str) -> tuple[str, str]:
    """Return the row and column of an image."""
    axes: Mapping[str, str] = mapping(entry["axes"])
    if not last:
        return str(entry["name"]), "outcome"
    others = ", ".join(f"{name} {value}" for name, value in axes.items() if name != last)
    return others or "image", f"{last} {axes.get(last, '-')}"


def _tiles(tree: Tree, cells: Sequence[Cell], *, verified: bool) -> list[Tile]:
    if verified:
        good = sum(cell.verdict in _GOOD for cell in cells)
        return [
            Tile("Verified", f"{good} of {len(cells)}", "image and machine pairs"),
            Tile("Images", str(len(sequence(tree["images"]))), "rows of the matrix"),
            Tile("Machines", str(len(sequence(tree["machines"]))), "columns of the matrix"),
        ]
    images = [mapping(image) for image in sequence(tree["images"])]
    made = sum(_BUILT.get(str(image["status"])) in _MADE for image in images)
    checked = [mapping(image["verification"]).get("verdict") for image in images if image["verification"]]
    tiles = [Tile("Built", f"{made} of {len(cells)}", "images")]
    if checked:
        tiles.append(Tile("Verified", f"{sum(verdict in _GOOD for verdict in checked)} of {len(cells)}", "in this run"))
    tiles.append(Tile("Time", f"{tree['duration_s']:.0f} s", "all images together", LOWER))
    tiles.append(Tile("Impossible", str(len(sequence(tree["impossible"]))), "no compatible versions"))
    return tiles
