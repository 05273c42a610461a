"""Parse and print sizes as people write them: 20GB, 512 MiB, 0."""

from __future__ import annotations

import re

from envkit.ground.errors import UsageError

# The number of digits is limited because Python does not parse integers of thousands of digits.
_SIZE = re.compile(r"(\d{1,20}(?:\.\d{1,20})?)\s*([KMGT]?)(i?)B?", re.IGNORECASE)
_UNITS = {"GB": 10**9, "MB": 10**6, "kB": 10**3, "B": 1, "GiB": 1 << 30, "MiB": 1 << 20, "KiB": 1 << 10}


def shown_size(number: float, unit: str = "", digits: int = 0) -> str:
    """Return a number of bytes as text: '2.99 GB', '539 MB', '53.9 MB', '4.2 kB', '512 B'.

    Args:
        number: of bytes.
        unit: the unit, with `digits` decimals; without one, the decimal unit that fits the number, with three digits.
        digits: decimals, if the unit is given.
    """
    if not unit:
        unit = next((unit for unit in ("GB", "MB", "kB") if number >= _UNITS[unit]), "B")
        digits = 2 if unit == "GB" else 0 if unit == "B" or number >= 100 * _UNITS[unit] else 1
    return f"{number / _UNITS[unit]:.{digits}f} {unit}"


def shown_pair(first: float, second: float, unit: str, between: str = "of") -> str:
    """Return two numbers of bytes in one unit: '12 of 64 MB'."""
    return f"{first / _UNITS[unit]:.0f} {between} {shown_size(second, unit)}"


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
