"""The profile in a payload's document. It comes from the image, so it is checked."""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from typing import TYPE_CHECKING, Any

from envkit.ground.errors import PayloadError
from envkit.ground.store import write_atomic

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

FORMAT = "chrome-trace+gzip+base64"
MAX_BYTES = 256 << 20
"""Unpacked, a trace may have this many bytes."""
_GZIP = 16 + zlib.MAX_WBITS  # how zlib is asked for gzip's header and trailer
_HINT = "envkit verify IMAGE --trace FILE  # again; C23 and stderr say what is wrong with training here"


def packed_trace(document: Mapping[str, Any] | None) -> bytes:
    """The gzipped Chrome trace of a document, checked.

    Raises:
        PayloadError: there is none, it could not be taken, or it is no Chrome trace of a sane size.
    """
    trace = document.get("trace") if document is not None else None
    if not isinstance(trace, dict):
        raise PayloadError("the payload left no trace", hint=_HINT)
    if trace.get("format") != FORMAT or not isinstance(trace.get("data"), str):
        raise PayloadError(f"the payload could take no trace: {str(trace.get('error'))[:300]}", hint=_HINT)
    try:
        packed = base64.b64decode(trace["data"], validate=True)
        tree = json.loads(unpacked(packed))
    except (ValueError, binascii.Error, zlib.error, RecursionError) as error:
        raise PayloadError(f"the payload's trace cannot be read: {error}", hint=_HINT) from error
    if not isinstance(tree, dict) or not isinstance(tree.get("traceEvents"), list):
        raise PayloadError("the payload's trace holds no events", hint=_HINT)
    return packed


def unpacked(packed: bytes) -> bytes:
    """The trace as JSON text.

    Raises:
        ValueError: it is cut short, or has more than `MAX_BYTES`.
        zlib.error: it is not gzip.
    """
    stream = zlib.decompressobj(_GZIP)
    raw = stream.decompress(packed, MAX_BYTES)
    if not stream.eof:
        raise ValueError(f"it is cut short or longer than {MAX_BYTES} bytes")
    return raw


def write_trace(packed: bytes, path: Path) -> None:
    """Write a trace: packed where the name ends in .gz, else as JSON.

    Raises:
        OSError: the folder cannot be written.
    """
    write_atomic(path, packed if path.suffix == ".gz" else unpacked(packed))
