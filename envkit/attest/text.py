"""An inspection as lines of text."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from envkit.attest.attached import Attestation, Status
from envkit.attest.diff import stack
from envkit.attest.inspection import created
from envkit.attest.verification import MINOR, NATIVE
from envkit.ground.naming import LABEL_PREFIX
from envkit.ground.progress import counted
from envkit.ground.sizes import shown_size
from envkit.ground.text import aligned, clean, fitted, neutral, without_empty
from envkit.resolve.gpus import capability

if TYPE_CHECKING:
    from envkit.attest.content import Content
    from envkit.attest.inspection import Evidence, Inspection
    from envkit.attest.listing import ListedLayer, Listing
    from envkit.attest.verification import Verification
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
_PRODUCTS = 3  # GPU names shown per architecture
_MOST_NAMES = 5  # package names shown per license
_WIDTH = 60  # characters of a license in the table by license; JSON has all of it
_MADE_BY = 90  # characters of the command that made a layer, and of other values
_RUNS = 3  # of this machine
_LARGEST = 5  # layers shown without --layers


def lines(inspection: Inspection, gpus: Sequence[Gpu], now: datetime) -> list[str]:
    """Return the lines of an inspection; control characters from the image are escaped.

    Args:
        inspection: the inspection.
        gpus: the products of each compute capability.
        now: the current time, for the age of the image.
    """
    text_lines = [
        inspection.image.name,
        *(f"  {line}" for line in _contents(inspection, now)),
        "",
        *_largest(inspection),
        *_labels(inspection),
        *_verifications(inspection),
        *_never(inspection, gpus),
        *_attached(inspection),
    ]
    return [neutral(line) for line in text_lines]


def listed(listing: Listing, *, packages: bool, layers: bool, licenses: bool) -> Iterator[str]:
    """Yield the requested lists, each with a line that counts it; control characters are escaped."""
    parts: list[list[str]] = []
    rows = listing.packages or ()
    if packages:
        table = [(package.kind, package.name, _exact(package), package.license or "") for package in rows]
        parts.append([counted(len(rows), "package"), *_table(("kind", "name", "version", "license"), table)])
    if licenses:
        parts.append(_licenses(rows))
    if (packages or licenses) and listing.unlisted_rpm:
        parts.append(["note: RPM packages are not listed: their database cannot be read"])
    if layers:
        ranked = sorted(listing.layers, key=lambda layer: (-layer.size, layer.number))
        total = shown_size(sum(layer.size for layer in ranked))
        parts.append([f"{counted(len(ranked), 'layer')}, {total}; 1 is the lowest", *_layer_table(ranked)])
    for number, part in enumerate(parts):
        yield from ([""] if number else [])
        yield from (neutral(line) for line in part)


def _licenses(rows: Sequence[Installed]) -> list[str]:
    """Return packages by license, most packages first; packages without a license come last."""
    by_license: dict[str, list[str]] = {}
    for package in rows:
        by_license.setdefault(package.license or "", []).append(package.name)
    ranked = sorted(by_license.items(), key=lambda row: (not row[0], -len(row[1]), row[0]))
    table = [(fitted(name, _WIDTH) or "(none recorded)", str(len(names)), _some(names)) for name, names in ranked]
    known = sum(bool(name) for name in by_license)
    return [f"{counted(known, 'license')} of {counted(len(rows), 'package')}, from package metadata",
            *_table(("license", "packages", "names"), table)]  # fmt: skip


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_MOST_NAMES])
    return f"{shown}, ... ({len(names) - _MOST_NAMES} more)" if len(names) > _MOST_NAMES else shown


def _exact(package: Installed) -> str:
    return f"{package.version} {package.build}" if package.build else package.version


def _layer_table(rows: Sequence[ListedLayer]) -> Iterator[str]:
    table = [
        (
            str(layer.number),
            shown_size(layer.size),
            shown_size(layer.unpacked) if layer.unpacked is not None else "",
            (layer.digest or layer.diff_id)[7:19],  # 12 digits, as Docker shows them
            fitted(clean(layer.made_by), _MADE_BY) or "unknown",
        )
        for layer in rows
    ]
    yield from _table(("layer", "size", "unpacked", "digest", "made by"), table)


def _table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return aligned(without_empty(names, rows), indent="  ")


def _largest(inspection: Inspection) -> Iterator[str]:
    """Yield the largest layers if sizes are known."""
    layers = [row for row in inspection.image.content.layers or () if row.size is not None]
    if not layers:
        return
    ranked = sorted(layers, key=lambda row: -(row.size or 0))
    rest = len(ranked) - _LARGEST
    yield "largest layers" + (f" (of {len(ranked)}; --layers lists all)" if rest > 0 else "")
    for layer in ranked[:_LARGEST]:
        yield f"  {shown_size(layer.size or 0):>8}  {fitted(clean(layer.made_by), _MADE_BY) or 'unknown'}"
    yield ""


def _labels(inspection: Inspection) -> Iterator[str]:
    """Yield the labels that envkit does not generate."""
    computed = (f"{LABEL_PREFIX}.", _OCI)
    own = {key: value for key, value in sorted(inspection.image.labels.items()) if not key.startswith(computed)}
    if own:
        yield "labels"
        yield from (f"  {clean(key)} = {fitted(clean(value), _MADE_BY)}" for key, value in own.items())
        yield ""


def _contents(inspection: Inspection, now: datetime) -> Iterator[str]:
    labels = inspection.image.labels
    # Labels are exact and cheap to read. Images of other builders have none, so their packages are used.
    versions = stack(inspection.image.content)
    rows = {
        shown: labels.get(f"{LABEL_PREFIX}.{name}") or versions.get(name)
        for name, shown in (("torch", "torch"), ("cuda", "CUDA"), ("cudnn", "cuDNN"), ("nccl", "NCCL"),
                            ("python", "Python"))
    }  # fmt: skip
    summary = ", ".join("no CUDA" if value == "none" else f"{name} {value}" for name, value in rows.items() if value)
    base = labels.get(f"{_OCI}base.name") or labels.get(f"{LABEL_PREFIX}.base")
    if summary or base:
        yield f"{summary or 'not built by envkit'}{f' on {base}' if base else ''}"
    yield from _needs(inspection)
    version = labels.get(f"{LABEL_PREFIX}.version")
    yield "; ".join(
        [
            f"{shown_size(inspection.image.size or 0)} in {counted(inspection.image.layer_count, 'layer')}",
            _made(inspection, now),
            *([f"envkit {version}"] if version else []),
        ]
    )
    if inspection.packages is not None:
        kinds = ", ".join(
            f"{number} {_KINDS.get(kind, kind)}" for kind, number in inspection.packages.items() if number
        )
        origin = _ORIGINS.get(inspection.packages_from or "")
        number = f"{sum(inspection.packages.values())} packages{f': {kinds}' if kinds else ''}"
        yield f"{number} ({origin})" if origin else number
    yield from _start(inspection.image.content)
    yield from (f"note: {note}" for note in inspection.image.content.notes)
    for name, value in (
        ("manifest", inspection.image.digest),
        ("image id", inspection.image.id),
        ("plan", labels.get(f"{LABEL_PREFIX}.plan")),
        ("lock", labels.get(f"{LABEL_PREFIX}.lock")),
        ("base", labels.get(f"{_OCI}base.digest")),
    ):
        if value:
            yield f"{name:<9} {value}"


def _needs(inspection: Inspection) -> Iterator[str]:
    """Yield the drivers and GPUs with which the image runs, from its labels."""
    cover = inspection.coverage
    native, minimum = cover.drivers.get(NATIVE), cover.drivers.get(MINOR)
    if native:
        least = (
            f"driver {minimum.partition(' ')[0]} or newer ({native} for all features)"
            if minimum
            else f"driver {native}"
        )
        yield f"needs {least}" + (f" and a GPU of {' '.join(map(_sm, cover.archs))}" if cover.archs else "")


def _start(content: Content) -> Iterator[str]:
    """Yield user, folder, command and ports of a container."""
    # The image was inspected without its contents.
    if not content.kind:
        return
    command = shlex.join(content.cmd) or shlex.join(content.entrypoint)
    yield "; ".join(
        [
            f"user {content.user or 'root'}",
            *([f"folder {content.workdir}"] if content.workdir else []),
            *([f"command {fitted(command, _MADE_BY)}"] if command else []),
            *([f"ports {', '.join(content.ports)}"] if content.ports else []),
        ]
    )


def _made(inspection: Inspection, now: datetime) -> str:
    timestamp = created(inspection.image)
    if timestamp is None:
        return "creation date not recorded (reproducible build)"
    try:
        made = datetime.fromisoformat(timestamp)
    except ValueError:
        return f"created {timestamp}"
    # Without a time zone it is taken as UTC, because subtracting would raise an error.
    days = (now - (made if made.tzinfo else made.replace(tzinfo=UTC))).days
    return f"created {timestamp[:10]}" + (f", {counted(days, 'day')} ago" if days > 0 else "")


def _verifications(inspection: Inspection) -> Iterator[str]:
    yield from _here(inspection)
    if not inspection.evidence:
        if inspection.image.attached is not None:
            yield from ("not verified: no record is attached", "")
        return
    machines = {evidence.verification.cards or evidence.verification.cpu for evidence in inspection.verifications}
    since = inspection.verifications[0].verification.started[:10] if inspection.verifications else ""
    kinds = f"{counted(len(machines), 'kind')} of machine"
    yield {
        "proved": f"verified since {since} on {kinds}"
        if inspection.signed
        else _unsigned(inspection, f"since {since} on {kinds}"),
        "failed": "FAILED in the latest verification on at least one machine",
        "refused": "REFUSED: attached documents cannot be trusted",
        "not proved": "not verified: no valid record with a passing result",
    }[inspection.verdict]
    yield from aligned([_row(evidence) for evidence in inspection.evidence], indent="  ")
    yield ""


def _here(inspection: Inspection) -> Iterator[str]:
    """Yield this machine's own records, newest first."""
    if inspection.here:
        yield "on this machine"
        rows = [(*_run(run), run.started[:16].replace("T", " "), f"by {run.runner}") for run in inspection.here[:_RUNS]]
        yield from aligned(rows, indent="  ")
        yield ""
    elif inspection.image.attached is None:
        # A registry may have attached records of the same image.
        yield from ("not verified on this machine", "")


def _unsigned(inspection: Inspection, since: str) -> str:
    if all(evidence.attestation.status is Status.UNSIGNED for evidence in inspection.verifications):
        return f"UNSIGNED: records without a signature say PASS {since}; anyone who may push can write such a record"
    return f"SIGNATURES NOT CHECKED: records say PASS {since}; check them with --key FILE"


def _row(evidence: Evidence) -> tuple[str, ...]:
    signed = _SIGNED[evidence.attestation.status] + ("" if evidence.counts else ", does not count")
    return (*_run(evidence.verification), evidence.verification.started[:10], signed)


def _run(run: Verification) -> tuple[str, str, str]:
    """Return the verdict, machine and suite of a verification."""
    cards = [
        f"{f'{number} x ' if number > 1 else ''}{card.name} ({_sm(card.capability)}, driver {card.driver or 'unknown'})"
        for card, number in {card: run.cards.count(card) for card in run.cards}.items()
    ]
    if run.gpu == "absent":
        cards = ["no GPU"]
    machine = ", ".join(cards) or f"{run.cpu or 'unknown CPU'}, no GPU"
    verdict = run.verdict.replace("_", " ")
    outcome = f"{verdict} (machine)" if run.blames == "machine" else verdict
    return outcome, machine, f"suite {run.suite or run.suite_sha256[:12]}, {run.tier}"


def _never(inspection: Inspection, gpus: Sequence[Gpu]) -> Iterator[str]:
    cover = inspection.coverage
    if not cover.never and not cover.never_drivers:
        return
    yield "never verified" if inspection.image.attached is not None else "GPUs and drivers not verified on this machine"
    for arch in cover.never:
        products = next((gpu.products for gpu in gpus if gpu.capability == capability(arch)), ())
        examples = ", ".join(products[:_PRODUCTS]) + (", ..." if len(products) > _PRODUCTS else "")
        yield f"  on {_sm(arch) if '.' in arch else arch}{f'  ({examples})' if examples else ''}"
    for name in cover.never_drivers:
        mode = "minor-version compatibility" if name == MINOR else "all features"
        yield f"  with a driver {cover.drivers[name]}  ({mode})"
    yield ""


def _attached(inspection: Inspection) -> Iterator[str]:
    attached = inspection.image.attached
    if attached is None or not (attached.attestations or attached.others):
        return
    yield "attached"
    for attestation in attached.attestations:
        yield f"  {attestation.kind:<10}  {attestation.digest[:19]}  {_signature(attestation)}"
    for digest, kind in attached.others:
        yield f"  {'other':<10}  {digest[:19]}  {kind}, not checked"
    if not inspection.trusted and any(document.status is Status.UNKNOWN_KEY for document in attached.attestations):
        yield "  signatures were not checked; use --key PUB"
    yield ""


def _signature(attestation: Attestation) -> str:
    if attestation.status is Status.BROKEN:
        return f"BROKEN: {attestation.why}"
    key = f" ({attestation.keyid if ':' in attestation.keyid else attestation.keyid[:16]})" if attestation.keyid else ""
    return f"{_SIGNED[attestation.status]}{key}"


def _sm(arch: str | None) -> str:
    return f"sm_{arch.replace('.', '')}" if arch else "unknown architecture"
