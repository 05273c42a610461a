"""One small table of a report, as text without any markup."""

from __future__ import annotations

from dataclasses import dataclass

BUSY = "The machine was busy while some of this was timed; take it as a hint."


@dataclass(frozen=True, slots=True)
class Sheet:
    """A table and what it says in words. The first `left` columns are text, the others numbers."""

    title: str
    head: tuple[str, ...]
    rows: list[list[str]]
    left: int = 1
    notes: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()
    noisy: bool = False


def cell(value: float | None, form: str, unit: str = "") -> str:
    """A number in a table; a dash where there is none."""
    return "-" if value is None else f"{value:{form}}{unit}"
