"""Explain a conflict: the smallest set of the user's own constraints that clash, and changes that resolve."""

from __future__ import annotations

import shlex
from dataclasses import replace
from itertools import combinations

from envkit.ground.errors import ConflictError
from envkit.resolve.because import Grounds
from envkit.resolve.index import Index
from envkit.resolve.model import Conflict, Request
from envkit.resolve.rules import satisfiable, scoped
from envkit.resolve.suggest import suggestions
from envkit.resolve.wanted import Ask, Wanted, asks, keep, permissions

# All sets up to this size are tried. For larger clashes, one is first found by removing constraints one by one, because
# the number of sets grows fast; that one's size is then the upper bound of the search.
SMALL = 3


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


def unresolvable(request: Request, full: Wanted, index: Index) -> Unresolvable:
    """Return the error for a request that no build satisfies."""
    stated = asks(request)
    clash = smallest(stated, full, index)
    grounds = Grounds(request, stated=stated, clash=clash, full=full, index=index)
    because = grounds.sentences()
    changes = suggestions(request, clash, index)
    if stated and not changes:
        because += (_second(stated, clash, full, index),)
    return Unresolvable(
        Conflict(
            clash=tuple(str(ask) for ask in clash),
            because=because,
            suggestions=changes,
            sources=tuple(dict.fromkeys(grounds.refs)),
        ),
        () if changes else (*_possible(stated, full, index), *permissions(request)),
    )


def smallest(
    stated: tuple[Ask, ...], full: Wanted, index: Index, among: tuple[Ask, ...] | None = None
) -> tuple[Ask, ...]:
    """Return a smallest set of constraints that no build satisfies together: no clash has fewer members.

    `among` limits the search to some of the stated constraints, which must clash.
    """
    searched = stated if among is None else among

    def clashes(kept: tuple[Ask, ...]) -> bool:
        return not satisfiable(keep(full, stated, kept), index)

    for size in range(min(SMALL, len(searched)) + 1):
        for kept in combinations(searched, size):
            if clashes(kept):
                return kept
    needed = searched
    for ask in reversed(searched):
        fewer = tuple(other for other in needed if other != ask)
        if clashes(fewer):
            needed = fewer
    # Every member of this set is needed for its clash; a different clash may still be smaller.
    for size in range(SMALL + 1, len(needed)):
        for kept in combinations(searched, size):
            if clashes(kept):
                return kept
    return needed


def _second(stated: tuple[Ask, ...], clash: tuple[Ask, ...], full: Wanted, index: Index) -> str:
    """Return the sentence for a request that no single change makes resolve, with the second clash if there is one."""
    others = tuple(ask for ask in stated if ask not in clash)
    if satisfiable(keep(full, stated, others), index):
        return "no single change is enough"
    second = smallest(stated, full, index, among=others)
    named = " and ".join(map(str, second))
    return f"no single change is enough; {named} {'also clash' if second[1:] else 'matches no build either'}"


def _possible(stated: tuple[Ask, ...], full: Wanted, index: Index) -> tuple[str, ...]:
    """Return the arguments of the constraints that resolve together, taken greedily in the order they are stated."""
    kept: tuple[Ask, ...] = ()
    for ask in stated:
        tried = replace(keep(full, stated, (*kept, ask)), scope=None)
        if satisfiable(scoped(tried, index), index):
            kept = (*kept, ask)
    return tuple(word for ask in kept for word in ask.words)


def command(words: tuple[str, ...], verb: str = "resolve") -> str:
    """Return a command line to type."""
    return shlex.join(("envkit", verb, *words))
