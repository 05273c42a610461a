"""How long the versions of an answer get fixes: Python's from its end of life, torch's from its place among releases.

When Python stops being fixed is a fact with a source (`Facts.pythons`). How long torch is, is a judgment: PyTorch
promises patch releases for its latest minor version alone (RELEASE.md, "Patch Releases"), and names no end for an older
one. TORCH_MINORS counts the one before it as supported too, because a new minor version comes every two to three
months, and the libraries that are built for a torch follow later. Nothing here reads a clock: the day is part of the
request, and at least the day of the facts.
"""

from __future__ import annotations

from envkit.facts.model import Facts, PythonSeries
from envkit.ground.versions import key, minor
from envkit.resolve.model import Support

TORCH_MINORS = 2
"""How many of torch's newest minor versions count as supported: a judgment, see above."""
TORCH_REF = "pytorch_patch_releases"

SUPPORTED, SECURITY, ENDED = "supported", "security", "ended"
_LEVELS = (SUPPORTED, SECURITY, ENDED)


def day_of(today: str | None, facts: Facts) -> str:
    """Return the ISO date to judge by; a clock that is behind the facts is wrong."""
    return max(today or facts.collected, facts.collected)


def torch_series(facts: Facts) -> tuple[str, ...]:
    """Return the minor versions of torch that count as supported, oldest first: ('2.14', '2.15')."""
    known = {minor(build.torch) for build in facts.builds} | {minor(torch) for torch in facts.releases}
    return tuple(sorted(known, key=key)[-TORCH_MINORS:])


def python_row(python: str, facts: Facts) -> PythonSeries | None:
    """Return the row of a minor version of Python, None where the facts have none."""
    return next((row for row in facts.pythons if row.python == python), None)


def python_level(row: PythonSeries | None, day: str) -> str | None:
    """Return which fixes a Python gets on a day, None where that is unknown."""
    if row is None:
        return None
    return ENDED if row.eol <= day else SECURITY if row.bugfix_until <= day else SUPPORTED


def supported_pythons(day: str, facts: Facts) -> frozenset[str]:
    """Return the Pythons that are known to get fixes on a day, if only for security."""
    return frozenset(row.python for row in facts.pythons if day < row.eol)


def support(torch: str, python: str, day: str, series: tuple[str, ...], facts: Facts) -> Support:
    """Return how well a torch with a Python is supported on a day: as the one of both that gets fewer fixes.

    Args:
        torch: its version.
        python: its minor version.
        day: what `day_of` returned.
        series: what `torch_series` returned; it goes through all builds.
        facts: for Python's rows.
    """
    row = python_row(python, facts)
    levels = (SUPPORTED if minor(torch) in series else ENDED, python_level(row, day))
    known = [level for level in levels if level is not None]
    worst = max(known, key=_LEVELS.index)
    return Support(
        # What is unknown may be worse than security fixes, but not worse than none.
        level=worst if worst == ENDED or len(known) == len(levels) else None,
        why=f"{torch_sentence(torch, series)}; {python_sentence(python, row, day)}",
        day=day,
        sources=(TORCH_REF, *(row.refs if row else ())),
    )


def torch_sentence(torch: str, series: tuple[str, ...]) -> str:
    """Return whether PyTorch still publishes fixes for a torch, as a sentence without its end."""
    newest = f"the newest minor versions ({' and '.join(series)})"
    if minor(torch) in series:
        return f"torch {torch} is one of {newest}"
    return f"torch {torch} is older than {newest}, and PyTorch publishes fixes only for the latest"


def python_sentence(python: str, row: PythonSeries | None, day: str) -> str:
    """Return which fixes a Python gets, as a sentence without its end."""
    match python_level(row, day):
        case "supported":
            return f"Python {python} gets bug fixes until {row.bugfix_until}" if row else ""
        case "security":
            return f"Python {python} gets security fixes only, until {row.eol}" if row else ""
        case "ended":
            return f"Python {python} has had no fixes since {row.eol}" if row else ""
        case _:
            return f"it is unknown until when Python {python} gets fixes"
