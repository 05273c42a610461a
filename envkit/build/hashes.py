"""What pip and conda say when a package's bytes are not those of the lock."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_PACKAGE = (
    re.compile(r"\b(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*==[^\s;]+) from \S+"),  # pip, before the two hashes
    re.compile(r"\bfor url '?\S*/(?P<name>[^/\s']+)\.(?:conda|tar\.bz2)'?"),  # conda
)
_EXPECTED = re.compile(r"[Ee]xpected(?:\s+|:\s*)sha256:?\s+(?P<digest>[0-9a-f]{64})")
_ACTUAL = re.compile(r"(?:\bGot|\bactual\s+sha256:?)\s+(?P<digest>[0-9a-f]{64})")


def mismatch(lines: Sequence[str]) -> str | None:
    """Return the first package of a build log that is not what its hash promises, with both hashes; None without one.

    `torch==2.7.1: expected sha256 <64 digits>, got <64 digits>`
    """
    package = expected = None
    for line in lines:
        named = next((found["name"] for pattern in _PACKAGE if (found := pattern.search(line))), None)
        package = named or package
        wanted = _EXPECTED.search(line)
        expected = wanted["digest"] if wanted else expected
        actual = _ACTUAL.search(line)
        if package and expected and actual:
            return f"{package}: expected sha256 {expected}, got {actual['digest']}"
    return None
