"""Progress of long work: steps, bytes and log lines, displayed by a reporter.

Engines and runners call a `Reporter`; they never print. `Silent` is for tests and `--progress quiet`.
`envkit.cli.console` holds the ones that draw.
"""

from __future__ import annotations

from typing import Protocol


class Reporter(Protocol):
    """Listener of long work. Every method returns at once and never raises."""

    def step(self, text: str) -> None:
        """A new phase begins: `pull base image`, `build`, `verify`."""

    def log(self, line: str) -> None:
        """One line of an engine's or payload's output, control characters included."""

    def advance(self, done: int, total: int | None) -> None:
        """Progress of the current step in its own unit (build steps or bytes)."""

    def note(self, text: str) -> None:
        """Something the user should read that is not an error: a fall-back, a default taken."""

    def close(self) -> None:
        """End the current line or bar, so that something else can be printed. The reporter can be used again."""


class Silent:
    """A reporter that hears everything and says nothing."""

    def step(self, text: str) -> None:
        """Ignore."""

    def log(self, line: str) -> None:
        """Ignore."""

    def advance(self, done: int, total: int | None) -> None:
        """Ignore."""

    def note(self, text: str) -> None:
        """Ignore."""

    def close(self) -> None:
        """Ignore."""


def counted(count: int, what: str) -> str:
    """`1 image`, `2 images`."""
    return f"{count} {what}{'' if count == 1 else 's'}"
