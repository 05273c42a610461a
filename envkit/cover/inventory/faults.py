"""The errors in the rows of an inventory, reported together."""

from __future__ import annotations

from dataclasses import dataclass, field

from envkit.ground.errors import UsageError, shown


@dataclass(slots=True)
class Faults:
    """What is wrong, row by row; `where` names the text."""

    where: str
    found: list[str] = field(default_factory=list)

    def add(self, place: str, why: str) -> None:
        """Note a fault of one row."""
        self.found.append(f"{self.where}, {place}: {why}")

    def rise(self, hint: str) -> None:
        """Raise the first with the others as its details, if there is any."""
        if self.found:
            raise UsageError(self.found[0], details=shown(self.found[1:]), hint=hint)


def count_of(value: object) -> int | None:
    """A number of machines; None where it is none."""
    text = str(value).strip()
    return int(text) if text.isascii() and text.isdigit() and 0 < len(text) <= 7 and int(text) > 0 else None  # noqa: PLR2004 - digits of a number that is no mistake
