"""The error of a request that no build satisfies. `explain`, which takes longer to import, makes it."""

from __future__ import annotations

import shlex

from envkit.ground.errors import ConflictError
from envkit.resolve.model import Conflict


class Unresolvable(ConflictError):  # noqa: N818 - an adjective: the request is unresolvable
    """No combination of the known facts satisfies the request; `conflict` has the reason and the suggested changes."""

    def __init__(self, conflict: Conflict, possible: tuple[str, ...] = ()) -> None:
        """Make the message and its hint.

        Args:
            conflict: the clash, its explanation and the suggestions.
            possible: arguments of a smaller request that resolves, for the hint if there is no suggestion.
        """
        named = " and ".join(conflict.clash) if conflict.clash else "the request"
        changes = conflict.suggestions
        super().__init__(
            f"no build matches {named}",
            hint=command(changes[0].words if changes else possible) if changes or possible else "envkit matrix list",
            details=(
                *(f"because {sentence}" for sentence in conflict.because),
                *(f"try: {command(change.words)}  ({change.change}: {change.gives})" for change in changes),
            ),
        )
        self.conflict = conflict


def command(words: tuple[str, ...], verb: str = "resolve") -> str:
    """Return a command line to type."""
    return shlex.join(("envkit", verb, *words))
