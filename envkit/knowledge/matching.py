"""Find the known failures in a short text: the error of a check, a warning of torch, the output of nvidia-smi.

A log of any length is read by `envkit.doctor.logs`; the rows, codes and rules are the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from envkit.knowledge import codes, contexts
from envkit.knowledge.failures import ROLES, Row, Severity, rows
from envkit.knowledge.signatures import Signature

_WEIGHTS = tuple(Severity)


def shown(text: str, context: str = "") -> tuple[Row, ...]:
    """Return the rows that a text shows, most severe first, causes before effects, without those that another explains.

    `context` is where the text is from ("torch.compile"): what a signature wants nearby may be in it.
    """
    whole = f"{text}\n{context}".lower()
    first: dict[str, tuple[int, Row]] = {}
    for number, line in enumerate(map(str.strip, text.splitlines())):
        for row in (*_by_signature(line, whole), *(row for code in codes.read(line) for row in code.rows)):
            first.setdefault(row.id, (number, row))
    made_by = {name for line in text.splitlines() for name in contexts.shown(line.strip())}
    borne_out = [
        (number, row.seen_in(made_by))
        for number, row in first.values()
        if row.is_possible(made_by) and _is_borne_out(row, text)
    ]
    explained = {name for _, row in borne_out for name in row.explains}
    roots = [(number, row) for number, row in borne_out if row.id not in explained]
    roots.sort(key=lambda item: (_WEIGHTS.index(item[1].severity), ROLES.index(item[1].role), item[0]))
    return tuple(row for _, row in roots)


def reason(text: str, known: Collection[str], context: str = "") -> tuple[str, Row] | None:
    """Return the first of the reason codes `known` that a row of the text has, with the row; None if there is none."""
    return next(((code, row) for row in shown(text, context) for code in row.codes if code in known), None)


def _by_signature(line: str, whole: str) -> Iterator[Row]:
    low = line.lower()
    for row in rows():
        if any(_fits(signature, line, low) and _has_context(signature, whole) for signature in row.signatures):
            yield row


def _fits(signature: Signature, line: str, low: str) -> bool:
    return signature.has in low and signature.fits(line)


def _has_context(signature: Signature, whole: str) -> bool:
    return not signature.near or any(near in whole for near in signature.near)


def _is_borne_out(row: Row, text: str) -> bool:
    lines = [(line, line.lower()) for line in map(str.strip, text.splitlines())]

    def has(signatures: tuple[Signature, ...]) -> bool:
        return any(_fits(signature, line, low) for signature in signatures for line, low in lines)

    return not has(row.refuted_by) and (not row.needs or has(row.needs))
