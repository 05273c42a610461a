"""The day and time that outputs may depend on: SOURCE_DATE_EPOCH where it is set, so that they can be repeated."""

from __future__ import annotations

import time
from collections.abc import Mapping

from envkit.ground.errors import UsageError

_LAST_YEAR = 9999  # dates have four digits of a year


def source_date(environ: Mapping[str, str]) -> time.struct_time | None:
    """Return the UTC time of SOURCE_DATE_EPOCH, None where it is not set.

    Raises:
        UsageError: it is not a number of seconds since 1970 in a year of four digits.
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
    """Return the ISO date (UTC) of SOURCE_DATE_EPOCH, else of the system's clock.

    Raises:
        UsageError: as `source_date`.
    """
    return time.strftime("%Y-%m-%d", source_date(environ) or time.gmtime())
