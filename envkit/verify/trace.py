"""The trace in a payload's document. It comes from the image, so it is checked."""

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
"""The largest unpacked size of a trace."""
_GZIP = 16 + zlib.MAX_WBITS  # makes zlib expect gzip's header and trailer
_HINT = "envkit verify IMAGE --trace FILE  # again; C23 and stderr show problems with training"


def packed_trace(document: Mapping[str, Any] | None) -> bytes:
    """Return the gzipped Chrome trace of a document, checked.

    Raises:
        PayloadError: there is no trace, the payload failed to record one, or it is not a Chrome trace of a sane size.
    """
    trace = document.get("trace") if document is not None else None
    if not isinstance(trace, dict):
        raise PayloadError("the payload returned no trace", hint=_HINT)
    if trace.get("format") != FORMAT or not isinstance(trace.get("data"), str):
        raise PayloadError(f"the payload could not record a trace: {str(trace.get('error'))[:300]}", hint=_HINT)
    try:
        packed = base64.b64decode(trace["data"], validate=True)
        tree = json.loads(unpacked(packed))
    except (ValueError, binascii.Error, zlib.error, RecursionError) as error:
        raise PayloadError(f"the payload's trace cannot be read: {error}", hint=_HINT) from error
    if not isinstance(tree, dict) or not isinstance(tree.get("traceEvents"), list):
        raise PayloadError("the payload's trace has no events", hint=_HINT)
    return packed


def unpacked(packed: bytes) -> bytes:
    """Return the trace as JSON text.

    Raises:
        ValueError: the trace is cut off, or larger than `MAX_BYTES`.
        zlib.error: the trace is not gzip.
    """
    stream = zlib.decompressobj(_GZIP)
    # Stops at MAX_BYTES, so that a gzip bomb does not fill the memory.
    raw = stream.decompress(packed, MAX_BYTES)
    if not stream.eof:
        raise ValueError(f"it is cut short or longer than {MAX_BYTES} bytes")
    return raw


def write_trace(packed: bytes, path: Path) -> None:
    """Write a trace: compressed if the name ends in .gz, else as JSON.

    Raises:
        OSError: the folder is not writable.
    """
    write_atomic(path, packed if path.suffix == ".gz" else unpacked(packed))
