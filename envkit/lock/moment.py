"""Points in time as a lock writes them: RFC 3339 in UTC, to the second."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from envkit.ground.errors import UsageError

_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


def parse(text: str, what: str) -> str:
    """`2026-06-01` (the end of that day in UTC) or `2026-06-01T12:00:00Z` -> `2026-06-01T23:59:59Z`.

    Raises:
        UsageError: it is neither, or it has no time zone.
    """
    try:
        if _DAY.fullmatch(text):
            found = datetime.fromisoformat(text).replace(hour=23, minute=59, second=59, tzinfo=UTC)
        else:
            found = datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise UsageError(f"{what}: {text!r:.80} is not a date", hint=f"{what} 2026-06-01, or 2026-06-01T12:00:00Z")
    return found.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
