"""Envelopes with a document and its signatures (DSSE 1.0), as in-toto uses them.

What is signed is not the envelope's text but its type and content together, so the way the envelope is written does
not matter, and no document can be taken for one of another type.
Source: secure-systems-lab/dsse, protocol.md and envelope.md.
"""

from __future__ import annotations

import base64
import binascii
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
_FIELDS = {"payload", "payloadType", "signatures"}


@dataclass(frozen=True, slots=True)
class Signature:
    """One signature. `keyid` is a claim of the signer and not verified."""

    keyid: str
    value: bytes


@dataclass(frozen=True, slots=True)
class Envelope:
    """A document with its signatures, not checked yet."""

    payload: bytes
    signatures: tuple[Signature, ...]

    def signed_by(self, keys: Sequence[PublicKey]) -> PublicKey | None:
        """The first of the keys that signed this document; None where none of them did.

        Raises:
            IntegrityError: a signature says that it is by one of the keys, and does not fit.
        """
        data = pae(IN_TOTO, self.payload)
        signer = None
        for signature in self.signatures:
            named = [key for key in keys if key.id == signature.keyid]
            # A keyid is a hint (DSSE): where it names none of the keys, the signature is tried with each of them.
            for key in named or keys:
                if key.fits(signature.value, data):
                    signer = signer or key
                    if signature.keyid not in ("", key.id):
                        raise IntegrityError(f"a signature by {key.id[:16]} claims the key {signature.keyid[:16]!r}")
                elif named:
                    raise IntegrityError(f"the signature by {key.id[:16]} does not match the signed document")
        return signer


def pae(payload_type: str, payload: bytes) -> bytes:
    """What is signed: type and content, each with its length in bytes before it."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)


def seal(payload: bytes, key: PrivateKey) -> bytes:
    """The envelope of an in-toto statement, signed by a key."""
    signature = key.sign(pae(IN_TOTO, payload))
    return canonical(
        {
            "payload": base64.b64encode(payload).decode(),
            "payloadType": IN_TOTO,
            "signatures": [{"keyid": key.public.id, "sig": base64.b64encode(signature).decode()}],
        }
    )


def unseal(data: bytes) -> Envelope:
    """The envelope in some bytes.

    Raises:
        IntegrityError: the value is invalid, or not of an in-toto statement.
    """
    try:
        tree = json.loads(data, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise IntegrityError("the envelope is not JSON") from error
    if not isinstance(tree, dict) or set(tree) != _FIELDS:
        raise IntegrityError("the envelope has a missing or an unknown field")
    if tree["payloadType"] != IN_TOTO:
        raise IntegrityError(f"the envelope contains {tree['payloadType']!r:.80}, not {IN_TOTO}")
    rows = tree["signatures"]
    if not isinstance(rows, list) or not 0 < len(rows) <= _MAX_SIGNATURES:
        raise IntegrityError("the envelope has no signature, or too many")
    return Envelope(_bytes(tree["payload"], "payload"), tuple(_signature(row) for row in rows))


def _signature(row: Any) -> Signature:
    if not isinstance(row, dict) or not set(row) <= {"keyid", "sig"} or not isinstance(row.get("keyid", ""), str):
        raise IntegrityError("the envelope has a damaged signature")
    return Signature(row.get("keyid", ""), _bytes(row.get("sig"), "signature"))


def _bytes(text: Any, what: str) -> bytes:
    """Base64 in its one way of writing: what decodes to the same bytes and is written otherwise was changed."""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, TypeError, ValueError) as error:
        raise IntegrityError(f"the envelope's {what} is not base64") from error
    # Two texts for one document would be two digests for one signature.
    if base64.b64encode(data).decode() != text:
        raise IntegrityError(f"the envelope's {what} is not canonical base64")
    return data


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    # Of two equal keys, some readers take the first and some the last: they would check one document and use another.
    if len(table) != len(pairs):
        raise ValueError("a key is given twice")
    return table
