"""Tell whether the Python and the torch of an answer still get fixes.

The end of life of a Python is a fact with a source (`Facts.pythons`). For torch it is a judgment: PyTorch promises
patch releases only for its latest minor version (RELEASE.md, "Patch Releases") and publishes no end of life.
TORCH_MINORS counts the version before the latest as supported too, because a new minor version comes every two to three
months, and libraries that are built for a torch follow later. No clock is read: the date is part of the request, and
never before the date of the facts.
"""

from __future__ import annotations

from envkit.facts.model import Facts, PythonSeries
from envkit.ground.versions import key, minor
from envkit.resolve.model import Support

TORCH_MINORS = 2
"""How many of torch's newest minor versions count as supported; the module's docstring has the reason."""
TORCH_REF = "pytorch_patch_releases"

SUPPORTED, SECURITY, ENDED = "supported", "security", "ended"
_LEVELS = (SUPPORTED, SECURITY, ENDED)


def day_of(today: str | None, facts: Facts) -> str:
    """Return the ISO date to judge by: `today`, but never before the facts, because such a clock is wrong."""
    return max(today or facts.collected, facts.collected)


def torch_series(facts: Facts) -> tuple[str, ...]:
    """Return the minor versions of torch that count as supported, oldest first: ('2.14', '2.15')."""
    known = {minor(build.torch) for build in facts.builds} | {minor(torch) for torch in facts.releases}
    return tuple(sorted(known, key=key)[-TORCH_MINORS:])


def python_row(python: str, facts: Facts) -> PythonSeries | None:
    """Return the row of a minor version of Python, None if the facts have none."""
    return next((row for row in facts.pythons if row.python == python), None)


def python_level(row: PythonSeries | None, day: str) -> str | None:
    """Return which fixes a Python gets on a day, None if unknown."""
    if row is None:
        return None
    return ENDED if row.eol <= day else SECURITY if row.bugfix_until <= day else SUPPORTED


def supported_pythons(day: str, facts: Facts) -> frozenset[str]:
    """Return the Pythons that are known to get fixes on a day, at least security fixes."""
    return frozenset(row.python for row in facts.pythons if day < row.eol)


def support(torch: str, python: str, day: str, series: tuple[str, ...], facts: Facts) -> Support:
    """Return the support of a torch with a Python on a day: the level of the one that gets fewer fixes.

    Args:
        torch: its version.
        python: its minor version.
        day: as `day_of` returns it.
        series: as `torch_series` returns it, passed in because that goes through all builds.
        facts: for Python's rows.
    """
    row = python_row(python, facts)
    levels = (SUPPORTED if minor(torch) in series else ENDED, python_level(row, day))
    known = [level for level in levels if level is not None]
    worst = max(known, key=_LEVELS.index)
    return Support(
        # An unknown level may be worse than "security", but not worse than "ended".
        level=worst if worst == ENDED or len(known) == len(levels) else None,
        why=f"{torch_sentence(torch, series)}; {python_sentence(python, row, day)}",
        day=day,
        sources=(TORCH_REF, *(row.refs if row else ())),
    )


def torch_sentence(torch: str, series: tuple[str, ...]) -> str:
    """Return whether PyTorch still publishes fixes for a torch, as a sentence without the period."""
    newest = f"the newest minor versions ({' and '.join(series)})"
    if minor(torch) in series:
        return f"torch {torch} is one of {newest}"
    return f"torch {torch} is older than {newest}, and PyTorch publishes fixes only for the latest"


def python_sentence(python: str, row: PythonSeries | None, day: str) -> str:
    """Return which fixes a Python gets, as a sentence without the period."""
    match python_level(row, day):
        case "supported":
            return f"Python {python} gets bug fixes until {row.bugfix_until}" if row else ""
        case "security":
            return f"Python {python} gets security fixes only, until {row.eol}" if row else ""
        case "ended":
            return f"Python {python} has had no fixes since {row.eol}" if row else ""
        case _:
            return f"the end of life of Python {python} is unknown"
