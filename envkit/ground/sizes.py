"""Parse and print sizes as people write them: 20GB, 512 MiB, 0."""

from __future__ import annotations

import re

from envkit.ground.errors import UsageError

# The number of digits is limited because Python does not parse integers of thousands of digits.
_SIZE = re.compile(r"(\d{1,20}(?:\.\d{1,20})?)\s*([KMGT]?)(i?)B?", re.IGNORECASE)


_GB = 10**9
_SMALL = 10**4  # bytes; smaller sizes are less than 0.01 MB


def shown_size(number: int) -> str:
    """Return a number of bytes in decimal units: '2.99 GB', '539 MB', '0.05 MB', '4.2 kB'."""
    if number >= _GB:
        return f"{number / _GB:.2f} GB"
    if 0 < number < _SMALL:
        return f"{number / 1000:.1f} kB"
    return f"{number / 10**6:.0f} MB" if number >= 10**6 else f"{number / 10**6:.2f} MB"


def parse_size(text: str, what: str) -> int:
    """Return a size in bytes: '20GB', '512 MiB' or '0'.

    Args:
        text: as typed.
        what: the flag or setting, for the message.

    Raises:
        UsageError: the text is not a size, or a number other than 0 without a unit.
    """
    text = text.strip()
    match = _SIZE.fullmatch(text)
    if match is None:
        raise UsageError(f"{what}: {text!r:.40} is not a size", hint="write a number and a unit: 20GB, 512MiB, 0")
    if text[-1].isdigit() and float(text) != 0:
        raise UsageError(f"{what}: {text!r:.40} has no unit", hint=f"write {text}GB, {text}MB, or {text}B for bytes")
    base = 1024 if match[3] else 1000
    return int(float(match[1]) * base ** " KMGT".index(match[2].upper() or " "))
