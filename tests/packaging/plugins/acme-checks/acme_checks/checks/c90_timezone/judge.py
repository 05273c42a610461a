"""C90: does the image's clock show UTC?"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from envkit.checks.case import Case
    from envkit.checks.model import Finding


def judge(case: Case) -> Finding:
    """Judge the offset."""
    offset = case.value("offset_s")
    message = f"local time is {offset:+.0f} s from UTC"
    if offset:
        return case.warn("NOT_UTC", message, "Set TZ=UTC in the image definition's env.")
    return case.passed(message)
