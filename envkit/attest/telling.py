"""An inspection as lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from envkit.attest.attached import Attestation, Status
from envkit.attest.coverage import MINOR
from envkit.attest.inspection import created, megabytes
from envkit.ground.progress import counted
from envkit.ground.text import neutral
from envkit.image.spec import LABEL_PREFIX
from envkit.resolve.gpus import capability

if TYPE_CHECKING:
    from envkit.attest.inspection import Evidence, Inspection
    from envkit.facts.model import Gpu

_OCI = "org.opencontainers.image."
_KINDS = {"conda": "conda", "pypi": "Python", "deb": "Debian"}
_SIGNED = {
    Status.VALID: "signed by the key",
    Status.UNKNOWN_KEY: "signed by a key that was not given",
    Status.UNSIGNED: "unsigned",
    Status.BROKEN: "BROKEN",
}
_PRODUCTS = 3


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
        *_proofs(found),
        *_never(found, gpus),
        *_attached(found),
    ]
    return [neutral(line) for line in told]


def _contents(found: Inspection, now: datetime) -> Iterator[str]:
    labels = found.looked.labels
    rows = {
        "torch": labels.get(f"{LABEL_PREFIX}.torch"),
        "CUDA": labels.get(f"{LABEL_PREFIX}.cuda"),
        "cuDNN": labels.get(f"{LABEL_PREFIX}.cudnn"),
        "Python": labels.get(f"{LABEL_PREFIX}.python"),
    }
    what = ", ".join("no CUDA" if value == "none" else f"{name} {value}" for name, value in rows.items() if value)
    base = labels.get(f"{_OCI}base.name")
    if what or base:
        yield f"{what or 'not built by envkit'}{f' on {base}' if base else ''}"
    version = labels.get(f"{LABEL_PREFIX}.version")
    yield "; ".join(
        [
            f"{megabytes(sum(found.looked.layer_sizes))} in {counted(len(found.looked.layer_sizes), 'layer')}",
            _made(found, now),
            *([f"envkit {version}"] if version else []),
        ]
    )
    if found.packages is not None:
        kinds = ", ".join(f"{number} {_KINDS.get(kind, kind)}" for kind, number in found.packages.items() if number)
        yield f"{sum(found.packages.values())} packages{f': {kinds}' if kinds else ''}"
    for name, value in (
        ("manifest", found.looked.digest),
        ("image id", found.looked.id),
        ("plan", labels.get(f"{LABEL_PREFIX}.plan")),
        ("lock", labels.get(f"{LABEL_PREFIX}.lock")),
        ("base", labels.get(f"{_OCI}base.digest")),
    ):
        if value:
            yield f"{name:<9} {value}"


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
            else ("not verified here: a folder has no attached records; push the image and inspect it in the registry")
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
