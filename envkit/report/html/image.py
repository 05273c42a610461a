"""The page of an image (`envkit.inspect/1`): its layers by size, its packages, where it was verified."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from envkit.checks.reading import Tree, mapping, number, sequence
from envkit.checks.shown import LOWER, Area, Sheet, Tile, Treemap
from envkit.ground.progress import counted
from envkit.ground.text import clean, fitted
from envkit.report.html.charts import draw
from envkit.report.html.frame import render_page

SECTIONS = {
    "verdict": "Summary",
    "layers": "Layers",
    "packages": "Packages",
    "proofs": "Verifications",
    "settings": "Settings",
    "record": "Record",
}
_KINDS = {"conda": "conda", "pypi": "Python", "deb": "Debian", "rpm": "RPM"}
# Verdict of an inspection -> the badge's verdict and its words.
_VERDICTS = {
    "proved": ("PASS", "VERIFIED"),
    "failed": ("FAIL", "FAILED"),
    "refused": ("ERROR", "REFUSED"),
    "not proved": ("NOT_VERIFIED", "NOT VERIFIED"),
}
_KB, _MB, _GB = 1e3, 1e6, 1e9
_LAST = ("tier", "runner", "signature")
_MADE_BY = 160  # characters of the command that made a layer
_MOST_AREAS = 80  # of a treemap; the smallest of them have a few pixels


def render_html(tree: Tree) -> bytes:
    """Return an inspection as one self-contained page. The same inspection gives the same bytes."""
    verdict, said = _VERDICTS.get(str(tree["verdict"]), ("ERROR", clean(tree["verdict"])))
    listing = mapping(tree["listing"])
    layers = [mapping(one) for one in sequence(listing.get("layers"))]
    packages = [mapping(one) for one in sequence(listing.get("packages"))]
    sized = [one for one in packages if number(one.get("unpacked"))]
    return render_page(
        "image.html",
        title=f"{tree['image']}: what is inside",
        brand="envkit image report",
        sections=SECTIONS,
        document=tree,
        verdict=verdict,
        said=said,
        image=tree["image"],
        name=tree["title"] or tree["image"],
        facts=[f"{name} {value}" for name, value in mapping(tree["stack"]).items() if isinstance(value, str) and value],
        tiles=_tiles(tree, layers, packages),
        layers_by_size=_layers_by_size(layers),
        layers=_layers(layers),
        packages_by_size=_packages_by_size(sized),
        unsized=len(packages) - len(sized),
        packages=_packages(packages),
        licenses=_licenses(packages),
        notes=[
            *tree["notes"],
            *(["RPM packages are not listed: their database cannot be read"] if listing.get("unlisted_rpm") else []),
        ],
        proofs=_proofs([mapping(one) for one in sequence(tree["verifications"])]),
        settings=_settings(tree),
    )


def _size(value: float) -> str:
    if value >= _GB:
        return f"{value / _GB:.2f} GB"
    return f"{value / _MB:.1f} MB" if value >= _MB else f"{value / _KB:.1f} kB"


def _tiles(tree: Tree, layers: Sequence[Tree], packages: Sequence[Tree]) -> list[Tile]:
    tiles, size = [], number(tree["size_bytes"])
    unpacked = [number(one.get("unpacked")) for one in layers]
    if size is not None:
        note = "all layers as they are transferred"
        known = [one for one in unpacked if one is not None]
        if layers and len(known) == len(layers):
            note += f"; {_size(sum(known))} unpacked"
        tiles.append(Tile("Size", _size(size), note, LOWER))
    if tree["layers"] is not None:
        tiles.append(Tile("Layers", str(tree["layers"]), _largest(layers)))
    counts = {kind: count for kind, count in mapping(tree["packages"]).items() if count}
    if counts:
        told = ", ".join(f"{count} {_KINDS.get(kind, kind)}" for kind, count in counts.items())
        tiles.append(Tile("Packages", str(sum(counts.values())), told))
    if packages:
        named = len({one["license"] for one in packages if one.get("license")})
        without = sum(not one.get("license") for one in packages)
        tiles.append(Tile("Licenses", str(named), f"{counted(without, 'package')} without one"))
    return tiles


def _largest(layers: Sequence[Tree]) -> str:
    if not layers:
        return "from the lowest to the highest"
    most = max(layers, key=lambda one: one["size"])
    return f"the largest is layer {most['number']} with {_size(most['size'])}"


def _unpacked(one: Tree) -> str:
    """Return the size of a layer or package on disk, a dash where it is unknown."""
    value = number(one.get("unpacked"))
    return "-" if value is None else _size(value)


def _made_by(one: Tree) -> str:
    return fitted(clean(one["made_by"]), _MADE_BY) or "not recorded"


def _layers_by_size(layers: Sequence[Tree]) -> Any:
    rows = [
        Area(f"{one['number']}: {_made_by(one)}", float(one["size"]), _size(one["size"]))
        for one in layers
        if one["size"] > 0
    ]
    return _treemap("layers-by-size", "Layers by size", "layer", rows)


def _packages_by_size(packages: Sequence[Tree]) -> Any:
    rows = [
        Area(
            clean(one["name"]),
            float(one["unpacked"]),
            _size(one["unpacked"]),
            _KINDS.get(str(one["kind"]), str(one["kind"])),
        )
        for one in packages
    ]
    return _treemap("packages-by-size", "Packages by size", "package", rows)


def _treemap(ident: str, title: str, noun: str, rows: Sequence[Area]) -> Any:
    """Return the treemap of the largest rows, with one rectangle for all others; None without rows."""
    if not rows:
        return None
    ranked = sorted(rows, key=lambda row: -row.value)
    shown, others = ranked[:_MOST_AREAS], ranked[_MOST_AREAS:]
    if others:
        value = sum(row.value for row in others)
        shown = [*shown, Area(counted(len(others), f"other {noun}"), value, _size(value))]
    largest = "; ".join(f"{row.name}, {row.told}" for row in ranked[:3])
    return draw(Treemap(ident, title, f"{counted(len(rows), noun)}; the largest: {largest}.", shown))


def _layers(layers: Sequence[Tree]) -> Sheet | None:
    ranked = sorted(layers, key=lambda one: (-one["size"], one["number"]))
    rows = [
        [
            str(one["number"]),
            _made_by(one),
            str(one["digest"] or one["diff_id"])[7:19],
            _size(one["size"]),
            _unpacked(one),
        ]
        for one in ranked
    ]
    head = ("Layer", "Made by", "Digest", "Size", "Unpacked")
    return Sheet("Layers, the largest first; 1 is the lowest", head, rows, left=3) if rows else None


def _packages(packages: Sequence[Tree]) -> list[Sheet]:
    """Return one table for each kind of package."""
    kinds = dict.fromkeys(str(one["kind"]) for one in packages)
    return [_kind(kind, [one for one in packages if one["kind"] == kind]) for kind in kinds]


def _kind(kind: str, packages: Sequence[Tree]) -> Sheet:
    ranked = sorted(packages, key=lambda one: -(number(one.get("unpacked")) or 0))  # those of one size by name
    rows = [[*(clean(one[name] or "") for name in ("name", "version", "license")), _unpacked(one)] for one in ranked]
    title = counted(len(rows), f"{_KINDS.get(kind, kind)} package")
    return Sheet(title, ("Name", "Version", "License", "Unpacked"), rows, left=3)


def _licenses(packages: Sequence[Tree]) -> Sheet | None:
    named: dict[str, list[str]] = {}
    for one in packages:
        named.setdefault(clean(one["license"] or "none recorded"), []).append(clean(one["name"]))
    rows = [
        [name, ", ".join(names), str(len(names))] for name, names in sorted(named.items(), key=lambda row: -len(row[1]))
    ]
    return (
        Sheet("Packages by license, as they name it", ("License", "Packages", "Count"), rows, left=2) if rows else None
    )


def _proofs(found: Sequence[Tree]) -> Sheet | None:
    head = ("Started", "Verdict", "Machine", "Tier", "Runner", "Signature")
    rows = [
        [clean(one["started"]), clean(one["verdict"]), _machine(one), *(clean(one[name]) for name in _LAST)]
        for one in found
    ]
    return Sheet("Verifications, the oldest first", head, rows, left=len(head)) if rows else None


def _machine(one: Tree) -> str:
    cards = [clean(mapping(card).get("name")) for card in sequence(one["gpus"])]
    return ", ".join(cards) or f"no GPU, {clean(one['cpu'] or 'unknown processor')}"


def _settings(tree: Tree) -> Tree:
    return {
        "Digest": tree["digest"],
        "Image ID": tree["id"],
        "Created": tree["created"],
        "Base": mapping(tree["base"]).get("name"),
        "User": tree["user"],
        "Working directory": tree["workdir"],
        "Entrypoint": tree["entrypoint"],
        "Command": tree["cmd"],
        "Ports": tree["ports"],
        "Labels": tree["labels"],
    }
