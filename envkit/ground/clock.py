"""The date and time for outputs: SOURCE_DATE_EPOCH if it is set, so that outputs are reproducible."""

from __future__ import annotations

import time
from collections.abc import Mapping

from envkit.ground.errors import UsageError

_LAST_YEAR = 9999  # ISO dates have four digits for the year


def source_date(environ: Mapping[str, str]) -> time.struct_time | None:
    """Return the UTC time of SOURCE_DATE_EPOCH, None if it is not set.

    Raises:
        UsageError: it is not a number of seconds since 1970, or the year has more than four digits.
    """
    epoch = environ.get("SOURCE_DATE_EPOCH")
    if not epoch:
        return None
    fault = UsageError(
        f"SOURCE_DATE_EPOCH is {epoch!r:.80}, not a number of seconds",
        hint="export SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)",
    )
    try:
        moment = time.gmtime(int(epoch))
    except (ValueError, OverflowError, OSError) as error:
        raise fault from error
    if not 1 <= moment.tm_year <= _LAST_YEAR:
        raise fault
    return moment


def today(environ: Mapping[str, str]) -> str:
    """Return the ISO date (UTC) of SOURCE_DATE_EPOCH, else of the system clock.

    Raises:
        UsageError: as `source_date`.
    """
    return time.strftime("%Y-%m-%d", source_date(environ) or time.gmtime())
