"""Progress of long work: steps, progress, log lines and notes, displayed by a reporter.

Engines and runners call a `Reporter`; they never print. `Silent` is for tests and `--progress quiet`.
`envkit.cli.console` holds the ones that draw.
"""

from __future__ import annotations

from typing import Protocol


class Reporter(Protocol):
    """Listener of long work. Every method returns at once and never raises."""

    def step(self, text: str) -> None:
        """Begin a new phase: `pull base image`, `build`, `verify`."""

    def log(self, line: str) -> None:
        """Take one line of an engine's or payload's output, control characters included."""

    def advance(self, done: int, total: int | None) -> None:
        """Take the progress of the current step in its own unit (build steps or bytes)."""

    def note(self, text: str) -> None:
        """Take something the user should read that is not an error: a fallback, a default."""

    def close(self) -> None:
        """End the current step: nothing is drawn until the next one begins. May be called again."""


class Silent:
    """A reporter that ignores everything; the base of reporters that listen to a part."""

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


class Forwarding:
    """A reporter that passes everything on to another; the base of reporters that change a part."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter

    def step(self, text: str) -> None:
        """Pass the phase on."""
        self._reporter.step(text)

    def log(self, line: str) -> None:
        """Pass the line on."""
        self._reporter.log(line)

    def advance(self, done: int, total: int | None) -> None:
        """Pass the progress on."""
        self._reporter.advance(done, total)

    def note(self, text: str) -> None:
        """Pass the remark on."""
        self._reporter.note(text)

    def close(self) -> None:
        """Pass the end on."""
        self._reporter.close()


class Within(Forwarding):
    """A reporter whose steps are parts of a larger one: `lock: solve 4 conda specs`."""

    def __init__(self, reporter: Reporter, step: str) -> None:
        super().__init__(reporter)
        self._step = step

    def step(self, text: str) -> None:
        """Begin a phase, named after the larger one."""
        self._reporter.step(f"{self._step}: {text}")


def counted(count: int, what: str) -> str:
    """`1 image`, `2 images`."""
    return f"{count} {what}{'' if count == 1 else 's'}"
