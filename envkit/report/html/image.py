"""The page of an image (`envkit.inspect/1`): its layers and packages by size, and where it was verified."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from envkit.checks.reading import Tree, mapping, number, sequence
from envkit.checks.sheet import LOWER, Area, Sheet, Tile, Treemap
from envkit.ground.progress import counted
from envkit.ground.sizes import shown_size
from envkit.ground.text import clean, fitted
from envkit.report.html.charts import draw
from envkit.report.html.frame import render_page

SECTIONS = {
    "verdict": "Summary",
    "layers": "Layers",
    "packages": "Packages",
    "verifications": "Verifications",
    "settings": "Settings",
    "record": "Record",
}
_KINDS = {"conda": "conda", "pypi": "Python", "deb": "Debian", "rpm": "RPM"}
# Verdict of an inspection -> the verdict and the text of the badge.
_VERDICTS = {
    "proved": ("PASS", "VERIFIED"),
    "failed": ("FAIL", "FAILED"),
    "refused": ("ERROR", "REFUSED"),
    "not proved": ("NOT_VERIFIED", "NOT VERIFIED"),
}
_LAST = ("tier", "runner", "signature")
_MADE_BY = 160  # characters of the command that made a layer
_MOST_AREAS = 80  # in a treemap; smaller ones would have only a few pixels


def render_html(tree: Tree) -> bytes:
    """Return an inspection as one self-contained page. The same inspection gives the same bytes."""
    verdict, verdict_text = _VERDICTS.get(str(tree["verdict"]), ("ERROR", clean(tree["verdict"])))
    listing = mapping(tree["listing"])
    layers = [mapping(layer) for layer in sequence(listing.get("layers"))]
    packages = [mapping(package) for package in sequence(listing.get("packages"))]
    sized = [package for package in packages if number(package.get("unpacked"))]
    return render_page(
        "image.html",
        title=f"{tree['image']}: contents",
        brand="envkit image report",
        sections=SECTIONS,
        document=tree,
        verdict=verdict,
        verdict_text=verdict_text,
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
            *_uncounted(tree),
            *tree["notes"],
            *(["RPM packages are not listed: their database cannot be read"] if listing.get("unlisted_rpm") else []),
        ],
        verifications=_verifications([mapping(verification) for verification in sequence(tree["verifications"])]),
        settings=_settings(tree),
    )


def _uncounted(tree: Tree) -> list[str]:
    """Return why runs that passed do not make the image verified: nobody whom the user trusts signed them."""
    passed = [run for run in map(mapping, sequence(tree["verifications"])) if run["verdict"] in ("PASS", "WARN")]
    if tree["verdict"] != "not proved" or not passed:
        return []
    signatures = ", ".join(dict.fromkeys(str(run["signature"]) for run in passed))
    return [f"{counted(len(passed), 'run')} passed, but {'does' if len(passed) == 1 else 'do'} not count: {signatures}"]


def _tiles(tree: Tree, layers: Sequence[Tree], packages: Sequence[Tree]) -> list[Tile]:
    tiles, size = [], number(tree["size_bytes"])
    unpacked = [number(layer.get("unpacked")) for layer in layers]
    if size is not None:
        note = "all layers as stored"
        known = [value for value in unpacked if value is not None]
        if layers and len(known) == len(layers):
            note += f"; {shown_size(sum(known))} unpacked"
        tiles.append(Tile("Size", shown_size(size), note, LOWER))
    if tree["layers"] is not None:
        tiles.append(Tile("Layers", str(tree["layers"]), _largest(layers)))
    counts = {kind: count for kind, count in mapping(tree["packages"]).items() if count}
    if counts:
        by_kind = ", ".join(f"{count} {_KINDS.get(kind, kind)}" for kind, count in counts.items())
        tiles.append(Tile("Packages", str(sum(counts.values())), by_kind))
    if packages:
        licenses = len({package["license"] for package in packages if package.get("license")})
        without = sum(not package.get("license") for package in packages)
        tiles.append(Tile("Licenses", str(licenses), f"{counted(without, 'package')} without one"))
    return tiles


def _largest(layers: Sequence[Tree]) -> str:
    if not layers:
        return "sizes unknown"
    largest = max(layers, key=lambda layer: layer["size"])
    return f"the largest is layer {largest['number']} with {shown_size(largest['size'])}"


def _unpacked(entry: Tree) -> str:
    """Return the unpacked size of a layer or package; a dash if it is unknown."""
    value = number(entry.get("unpacked"))
    return "-" if value is None else shown_size(value)


def _made_by(layer: Tree) -> str:
    return fitted(clean(layer["made_by"]), _MADE_BY) or "not recorded"


def _layers_by_size(layers: Sequence[Tree]) -> Any:
    rows = [
        Area(f"{layer['number']}: {_made_by(layer)}", float(layer["size"]), shown_size(layer["size"]))
        for layer in layers
        if layer["size"] > 0
    ]
    return _treemap("layers-by-size", "Layers by size", "layer", rows)


def _packages_by_size(packages: Sequence[Tree]) -> Any:
    rows = [
        Area(
            clean(package["name"]),
            float(package["unpacked"]),
            shown_size(package["unpacked"]),
            _KINDS.get(str(package["kind"]), str(package["kind"])),
        )
        for package in packages
    ]
    return _treemap("packages-by-size", "Packages by size", "package", rows)


def _treemap(ident: str, title: str, noun: str, rows: Sequence[Area]) -> Any:
    """Return a treemap of the largest rows and one rectangle for all others; None without rows."""
    if not rows:
        return None
    ranked = sorted(rows, key=lambda row: -row.value)
    shown, others = ranked[:_MOST_AREAS], ranked[_MOST_AREAS:]
    if others:
        value = sum(row.value for row in others)
        shown = [*shown, Area(counted(len(others), f"other {noun}"), value, shown_size(value))]
    largest = "; ".join(f"{row.name}, {row.label}" for row in ranked[:3])
    return draw(Treemap(ident, title, f"{counted(len(rows), noun)}; the largest: {largest}.", shown))


def _layers(layers: Sequence[Tree]) -> Sheet | None:
    ranked = sorted(layers, key=lambda layer: (-layer["size"], layer["number"]))
    rows = [
        [
            str(layer["number"]),
            _made_by(layer),
            str(layer["digest"] or layer["diff_id"])[7:19],  # twelve digits, after sha256:
            shown_size(layer["size"]),
            _unpacked(layer),
        ]
        for layer in ranked
    ]
    head = ("Layer", "Made by", "Digest", "Size", "Unpacked")
    return Sheet("Layers, the largest first; 1 is the lowest", head, rows, left=3) if rows else None


def _packages(packages: Sequence[Tree]) -> list[Sheet]:
    """Return one table per kind of package."""
    kinds = dict.fromkeys(str(package["kind"]) for package in packages)
    return [_kind(kind, [package for package in packages if package["kind"] == kind]) for kind in kinds]


def _kind(kind: str, packages: Sequence[Tree]) -> Sheet:
    ranked = sorted(packages, key=lambda package: -(number(package.get("unpacked")) or 0))  # stable: then by name
    rows = [
        [*(clean(package[name] or "") for name in ("name", "version", "license")), _unpacked(package)]
        for package in ranked
    ]
    title = counted(len(rows), f"{_KINDS.get(kind, kind)} package")
    return Sheet(title, ("Name", "Version", "License", "Unpacked"), rows, left=3)


def _licenses(packages: Sequence[Tree]) -> Sheet | None:
    by_license: dict[str, list[str]] = {}
    for package in packages:
        by_license.setdefault(clean(package["license"] or "none recorded"), []).append(clean(package["name"]))
    rows = [
        [name, ", ".join(names), str(len(names))]
        for name, names in sorted(by_license.items(), key=lambda row: -len(row[1]))
    ]
    head = ("License", "Packages", "Count")
    return Sheet("Packages by license, from package metadata", head, rows, left=2) if rows else None


def _verifications(verifications: Sequence[Tree]) -> Sheet | None:
    head = ("Started", "Verdict", "Machine", "Tier", "Runner", "Signature")
    rows = [
        [
            clean(verification["started"]),
            clean(verification["verdict"]),
            _machine(verification),
            *(clean(verification[name]) for name in _LAST),
        ]
        for verification in verifications
    ]
    return Sheet("Verifications, the oldest first", head, rows, left=len(head)) if rows else None


def _machine(verification: Tree) -> str:
    cards = [clean(mapping(card).get("name")) for card in sequence(verification["gpus"])]
    return ", ".join(cards) or f"no GPU, {clean(verification['cpu'] or 'unknown processor')}"


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
