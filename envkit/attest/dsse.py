"""DSSE 1.0 envelopes: a document with its signatures, as in-toto uses them.

The signature covers the document and its type, not the text of the envelope. So the formatting of the envelope does
not matter, and a document cannot be passed off as another type.
Source: secure-systems-lab/dsse, protocol.md and envelope.md.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from envkit.ground.errors import IntegrityError
from envkit.image.spec import canonical

if TYPE_CHECKING:
    from collections.abc import Sequence

    from envkit.attest.keys import PrivateKey, PublicKey

MEDIA_TYPE = "application/vnd.dsse.envelope.v1+json"
IN_TOTO = "application/vnd.in-toto+json"
_MAX_SIGNATURES = 32  # each is tried with every key
_FIELDS = {"payload", "payloadType", "signatures"}  # consumers must ignore others (envelope.md)
_STANDARD = str.maketrans("-_", "+/")  # the URL-safe alphabet is allowed, too (envelope.md)


@dataclass(frozen=True, slots=True)
class Signature:
    """A signature. `keyid` is claimed by the signer and not verified."""

    keyid: str
    value: bytes


@dataclass(frozen=True, slots=True)
class Envelope:
    """A document with its unchecked signatures."""

    payload: bytes
    signatures: tuple[Signature, ...]

    def signed_by(self, keys: Sequence[PublicKey]) -> PublicKey | None:
        """Return a key that signed this document; None if none of the keys did.

        Raises:
            IntegrityError: a signature claims one of the keys but does not match.
        """
        data = pae(IN_TOTO, self.payload)
        signer = None
        for signature in self.signatures:
            claimed = [key for key in keys if key.id == signature.keyid]
            # DSSE: a keyid is only a hint, so a signature with an unknown keyid is tried with every key.
            for key in claimed or keys:
                # No return here: a later signature that claims a key and does not match makes the envelope invalid.
                if key.fits(signature.value, data):
                    signer = signer or key
                    if signature.keyid not in ("", key.id):
                        raise IntegrityError(f"a signature by {key.id[:16]} claims the key {signature.keyid[:16]!r}")
                elif claimed:
                    raise IntegrityError(f"the signature by {key.id[:16]} does not match the signed document")
        return signer


def pae(payload_type: str, payload: bytes) -> bytes:
    """Return the bytes to sign (pre-authentication encoding): type and content, each preceded by its length."""
    # DSSEv1 28 application/vnd.in-toto+json 2 {}
    kind = payload_type.encode()
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)


def seal(payload: bytes, key: PrivateKey) -> bytes:
    """Return the envelope of an in-toto statement, signed by a key."""
    signature = key.sign(pae(IN_TOTO, payload))
    return canonical(
        {
            "payload": base64.b64encode(payload).decode(),
            "payloadType": IN_TOTO,
            "signatures": [{"keyid": key.public.id, "sig": base64.b64encode(signature).decode()}],
        }
    )


def unseal(data: bytes) -> Envelope:
    """Parse an envelope.

    Raises:
        IntegrityError: the envelope is invalid or does not contain an in-toto statement.
    """
    try:
        tree = json.loads(data, object_pairs_hook=_unique_keys)
    except (ValueError, RecursionError) as error:
        raise IntegrityError("the envelope is not JSON") from error
    if not isinstance(tree, dict) or not set(tree) >= _FIELDS:
        raise IntegrityError("the envelope lacks a field")
    if tree["payloadType"] != IN_TOTO:
        raise IntegrityError(f"the envelope contains {tree['payloadType']!r:.80}, not {IN_TOTO}")
    rows = tree["signatures"]
    if not isinstance(rows, list) or not 0 < len(rows) <= _MAX_SIGNATURES:
        raise IntegrityError("the envelope has no signature, or too many")
    return Envelope(_bytes(tree["payload"], "payload"), tuple(_signature(row) for row in rows))


def _signature(row: Any) -> Signature:
    if not isinstance(row, dict) or not isinstance(row.get("keyid", ""), str):
        raise IntegrityError("the envelope has a damaged signature")
    return Signature(row.get("keyid", ""), _bytes(row.get("sig"), "signature"))


def _bytes(text: Any, what: str) -> bytes:
    """Decode base64 of the standard or the URL-safe alphabet."""
    try:
        standard = text.translate(_STANDARD)
        data = base64.b64decode(standard, validate=True)
    except (AttributeError, ValueError) as error:  # not a string, or not base64
        raise IntegrityError(f"the envelope's {what} is not base64") from error
    # Decoders disagree on bits that are left over at the end, and another one could read other bytes.
    if base64.b64encode(data).decode() != standard:
        raise IntegrityError(f"the envelope's {what} is not canonical base64")
    return data


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    # Some readers use the first of two equal keys, some the last: one could check one document and use another.
    if len(table) != len(pairs):
        raise ValueError("a key is given twice")
    return table
