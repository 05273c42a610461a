"""An inspection as lines of text."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from envkit.attest.attached import Attestation, Status
from envkit.attest.coverage import MINOR
from envkit.attest.diff import stack
from envkit.attest.inspection import created
from envkit.ground.progress import counted
from envkit.ground.sizes import shown_size
from envkit.ground.text import clean, fitted, neutral
from envkit.image.spec import LABEL_PREFIX
from envkit.resolve.gpus import capability

if TYPE_CHECKING:
    from envkit.attest.content import Content
    from envkit.attest.inspection import Evidence, Inspection
    from envkit.attest.listing import ListedLayer, Listing
    from envkit.facts.model import Gpu
    from envkit.image.packages import Installed

_OCI = "org.opencontainers.image."
_KINDS = {"conda": "conda", "pypi": "Python", "deb": "Debian", "rpm": "RPM"}
_ORIGINS = {"sbom": "by the attached SBOM", "lock": "by its lock", "lock and layers": "by its lock and newer layers",
            "layers": "in its layers", "container": "in a container of it"}  # fmt: skip
_SIGNED = {
    Status.VALID: "signed by the key",
    Status.UNKNOWN_KEY: "signed by a key that was not given",
    Status.UNSIGNED: "unsigned",
    Status.BROKEN: "BROKEN",
}
_PRODUCTS = 3
_MOST_NAMES = 5  # packages that are named beside a license
_WIDTH = 60  # characters of a license in the table by licenses; JSON has all of it
_MADE_BY = 90  # characters of the command that made a layer, and of other values
_LARGEST = 5  # layers that are shown unless all are asked for


def lines(found: Inspection, gpus: Sequence[Gpu], now: datetime) -> list[str]:
    """The whole answer; foreign text in it is made harmless to a terminal.

    Args:
        found: what was found.
        gpus: which products have which compute capability.
        now: for the image's age.
    """
    told = [
        found.looked.name,
        *_indented(_contents(found, now)),
        "",
        *_largest(found),
        *_labels(found),
        *_proofs(found),
        *_never(found, gpus),
        *_attached(found),
    ]
    return [neutral(line) for line in told]


def listed(found: Listing, *, packages: bool, layers: bool, licenses: bool) -> Iterator[str]:
    """The lists that were asked for, each with a line that counts it; foreign text is made harmless."""
    parts: list[list[str]] = []
    rows = found.packages or ()
    if packages:
        table = [(one.kind, one.name, _exact(one), one.license or "") for one in rows]
        parts.append([counted(len(rows), "package"), *_table(("kind", "name", "version", "license"), table)])
    if licenses:
        parts.append(_licenses(rows))
    if (packages or licenses) and found.unlisted_rpm:
        parts.append(["note: RPM packages are not listed: their database cannot be read"])
    if layers:
        ranked = sorted(found.layers, key=lambda one: (-one.size, one.number))
        total = shown_size(sum(one.size for one in ranked))
        parts.append([f"{counted(len(ranked), 'layer')}, {total}; 1 is the lowest", *_layer_table(ranked)])
    for number, part in enumerate(parts):
        yield from ([""] if number else [])
        yield from (neutral(line) for line in part)


def _licenses(rows: Sequence[Installed]) -> list[str]:
    """Packages by the license that each names."""
    named: dict[str, list[str]] = {}
    for one in rows:
        named.setdefault(one.license or "", []).append(one.name)
    ranked = sorted(named.items(), key=lambda row: (not row[0], -len(row[1]), row[0]))
    table = [(fitted(name, _WIDTH) or "(none recorded)", str(len(names)), _some(names)) for name, names in ranked]
    known = sum(bool(name) for name in named)
    return [f"{counted(known, 'license')} of {counted(len(rows), 'package')}, as the packages name them",
            *_table(("license", "packages", "names"), table)]  # fmt: skip


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_MOST_NAMES])
    return f"{shown}, ... ({len(names) - _MOST_NAMES} more)" if len(names) > _MOST_NAMES else shown


def _exact(one: Installed) -> str:
    return f"{one.version} {one.build}" if one.build else one.version


def _layer_table(rows: Sequence[ListedLayer]) -> Iterator[str]:
    table = [
        (
            str(one.number),
            shown_size(one.size),
            shown_size(one.unpacked) if one.unpacked is not None else "",
            (one.digest or one.diff_id)[7:19],
            fitted(clean(one.made_by), _MADE_BY) or "not told",
        )
        for one in rows
    ]
    yield from _table(("layer", "size", "unpacked", "digest", "made by"), table)


def _table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Rows under their column names; a column that is empty everywhere is left out."""
    kept = [place for place in range(len(names)) if any(row[place] for row in rows)]
    cells = [[row[place] for place in kept] for row in [names, *rows]]
    widths = [max(len(row[place]) for row in cells) for place in range(len(kept))]
    for row in cells if rows else ():
        yield "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _largest(found: Inspection) -> Iterator[str]:
    """The largest layers, where their sizes are known."""
    layers = [one for one in found.looked.content.layers or () if one.size is not None]
    if not layers:
        return
    ranked = sorted(layers, key=lambda one: -(one.size or 0))
    rest = len(ranked) - _LARGEST
    yield "largest layers" + (f" (of {len(ranked)}; --layers lists all)" if rest > 0 else "")
    for one in ranked[:_LARGEST]:
        yield f"  {shown_size(one.size or 0):>8}  {fitted(clean(one.made_by), _MADE_BY) or 'not told'}"
    yield ""


def _labels(found: Inspection) -> Iterator[str]:
    """The labels that envkit does not compute itself."""
    computed = (f"{LABEL_PREFIX}.", _OCI)
    own = {key: value for key, value in sorted(found.looked.labels.items()) if not key.startswith(computed)}
    if own:
        yield "labels"
        yield from (f"  {clean(key)} = {fitted(clean(value), _MADE_BY)}" for key, value in own.items())
        yield ""


def _contents(found: Inspection, now: datetime) -> Iterator[str]:
    labels = found.looked.labels
    # Labels first: they are what the image promises. An image of another builder has its packages.
    told = stack(found.looked.content)
    rows = {
        shown: labels.get(f"{LABEL_PREFIX}.{name}") or told.get(name)
        for name, shown in (("torch", "torch"), ("cuda", "CUDA"), ("cudnn", "cuDNN"), ("nccl", "NCCL"),
                            ("python", "Python"))
    }  # fmt: skip
    what = ", ".join("no CUDA" if value == "none" else f"{name} {value}" for name, value in rows.items() if value)
    base = labels.get(f"{_OCI}base.name") or labels.get(f"{LABEL_PREFIX}.base")
    if what or base:
        yield f"{what or 'not built by envkit'}{f' on {base}' if base else ''}"
    version = labels.get(f"{LABEL_PREFIX}.version")
    yield "; ".join(
        [
            f"{shown_size(found.looked.size or 0)} in {counted(found.looked.layer_count, 'layer')}",
            _made(found, now),
            *([f"envkit {version}"] if version else []),
        ]
    )
    if found.packages is not None:
        kinds = ", ".join(f"{number} {_KINDS.get(kind, kind)}" for kind, number in found.packages.items() if number)
        origin = _ORIGINS.get(found.packages_from or "")
        number = f"{sum(found.packages.values())} packages{f': {kinds}' if kinds else ''}"
        yield f"{number} ({origin})" if origin else number
    yield from _start(found.looked.content)
    yield from (f"note: {note}" for note in found.looked.content.notes)
    for name, value in (
        ("manifest", found.looked.digest),
        ("image id", found.looked.id),
        ("plan", labels.get(f"{LABEL_PREFIX}.plan")),
        ("lock", labels.get(f"{LABEL_PREFIX}.lock")),
        ("base", labels.get(f"{_OCI}base.digest")),
    ):
        if value:
            yield f"{name:<9} {value}"


def _start(content: Content) -> Iterator[str]:
    """What a container of it starts with."""
    if not content.kind:
        return
    words = shlex.join(content.cmd) or shlex.join(content.entrypoint)
    yield "; ".join(
        [
            f"user {content.user or 'root'}",
            *([f"folder {content.workdir}"] if content.workdir else []),
            *([f"command {fitted(words, _MADE_BY)}"] if words else []),
            *([f"ports {', '.join(content.ports)}"] if content.ports else []),
        ]
    )


def _made(found: Inspection, now: datetime) -> str:
    told = created(found.looked)
    if told is None:
        return "creation date not recorded (reproducible build)"
    try:
        moment = datetime.fromisoformat(told)
    except ValueError:
        return f"made {told}"
    days = (now - (moment if moment.tzinfo else moment.replace(tzinfo=UTC))).days
    return f"made {told[:10]}" + (f", {days} days ago" if days > 0 else "")


def _proofs(found: Inspection) -> Iterator[str]:
    if not found.evidence:
        yield (
            "not verified: no record is attached"
            if found.looked.attached is not None
            else ("not verified here: only an image in a registry has attached records; push it and inspect it there")
        )
        yield ""
        return
    machines = {one.proof.cards or one.proof.cpu for one in found.proofs}
    since = found.proofs[0].proof.started[:10] if found.proofs else ""
    kinds = f"{len(machines)} kind{'s' if len(machines) != 1 else ''} of machine"
    yield {
        "proved": f"verified since {since} on {kinds}"
        if found.signed
        else _unsigned(found, f"since {since} on {kinds}"),
        "failed": "FAILED in the latest verification on at least one machine",
        "refused": "REFUSED: attached documents cannot be trusted",
        "not proved": "not verified: no valid record with a passing result",
    }[found.verdict]
    rows = [_row(one) for one in found.evidence]
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    for row in rows:
        yield "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
    yield ""


def _unsigned(found: Inspection, since: str) -> str:
    if all(one.attestation.status is Status.UNSIGNED for one in found.proofs):
        return f"UNSIGNED: records without a signature say PASS {since}; anyone who may push can write such a record"
    return f"SIGNATURES NOT CHECKED: records say PASS {since}; check them with --key FILE"


def _row(one: Evidence) -> tuple[str, ...]:
    proof = one.proof
    counted = {card: proof.cards.count(card) for card in proof.cards}
    cards = [
        f"{f'{number} x ' if number > 1 else ''}{card.name} ({_sm(card.capability)}, driver {card.driver or 'unknown'})"
        for card, number in counted.items()
    ]
    if proof.gpu == "absent":
        cards = ["no GPU"]
    machine = ", ".join(cards) or f"{proof.cpu or 'unknown CPU'}, no GPU"
    suite = f"suite {proof.suite or proof.suite_sha256[:12]}, {proof.tier}"
    signed = _SIGNED[one.attestation.status] + ("" if one.counts else ", does not count")
    verdict = proof.verdict.replace("_", " ")
    said = f"{verdict} (machine)" if proof.blames == "machine" else verdict
    return (said, machine, suite, proof.started[:10], signed)


def _never(found: Inspection, gpus: Sequence[Gpu]) -> Iterator[str]:
    cover = found.coverage
    if not cover.never and not cover.never_drivers:
        return
    yield "never verified"
    for arch in cover.never:
        products = next((gpu.products for gpu in gpus if gpu.capability == capability(arch)), ())
        some = ", ".join(products[:_PRODUCTS]) + (", ..." if len(products) > _PRODUCTS else "")
        yield f"  on {_sm(arch) if '.' in arch else arch}{f'  ({some})' if some else ''}"
    for name in cover.never_drivers:
        mode = "minor-version compatibility" if name == MINOR else "all features"
        yield f"  with a driver {cover.drivers[name]}  ({mode})"
    yield ""


def _attached(found: Inspection) -> Iterator[str]:
    attached = found.looked.attached
    if attached is None or not (attached.attestations or attached.others):
        return
    yield "attached"
    for one in attached.attestations:
        yield f"  {one.kind:<10}  {one.digest[:19]}  {_signature(one)}"
    for digest, kind in attached.others:
        yield f"  {'other':<10}  {digest[:19]}  {kind}, not checked"
    if not found.trusted and any(one.status is Status.UNKNOWN_KEY for one in attached.attestations):
        yield "  signatures were not checked; use --key PUB"
    yield ""


def _signature(one: Attestation) -> str:
    if one.status is Status.BROKEN:
        return f"BROKEN: {one.why}"
    key = f" ({one.keyid if ':' in one.keyid else one.keyid[:16]})" if one.keyid else ""
    return f"{_SIGNED[one.status]}{key}"


def _sm(card: str | None) -> str:
    return f"sm_{card.replace('.', '')}" if card else "unknown architecture"


def _indented(rows: Iterator[Any]) -> Iterator[str]:
    for row in rows:
        yield f"  {row}"
