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

# Sets up to this size are all looked at; beyond it, constraints are first taken away one by one, which bounds the size.
SMALL = 3


class Unresolvable(ConflictError):  # noqa: N818 - what the request is, as the exit code says
    """No combination of the known facts satisfies the request; `conflict` says why and what would."""

    def __init__(self, conflict: Conflict, possible: tuple[str, ...] = ()) -> None:
        """`possible` are the words of a request that keeps what can be had together, for when no one change will do."""
        named = " and ".join(conflict.clash) if conflict.clash else "the request"
        ways = conflict.suggestions
        super().__init__(
            f"no build matches {named}",
            hint=command(ways[0].words if ways else possible) if ways or possible else "envkit matrix list",
            details=(
                *(f"because {sentence}" for sentence in conflict.because),
                *(
                    f"try: {command(suggestion.words)}  ({suggestion.change}: {suggestion.gives})"
                    for suggestion in ways
                ),
            ),
        )
        self.conflict = conflict


def unresolvable(request: Request, full: Wanted, index: Index) -> Unresolvable:
    """The error for a request that no build satisfies."""
    stated = asks(request)
    clash = smallest(stated, full, index)
    grounds = Grounds(request, stated=stated, clash=clash, full=full, index=index)
    because = grounds.sentences()
    ways = suggestions(request, clash, index)
    if stated and not ways:
        because += (_second(stated, clash, full, index),)
    return Unresolvable(
        Conflict(
            clash=tuple(str(ask) for ask in clash),
            because=because,
            suggestions=ways,
            sources=tuple(dict.fromkeys(grounds.refs)),
        ),
        () if ways else (*_possible(stated, full, index), *permissions(request)),
    )


def smallest(
    stated: tuple[Ask, ...], full: Wanted, index: Index, among: tuple[Ask, ...] | None = None
) -> tuple[Ask, ...]:
    """A smallest set of constraints that cannot be satisfied together: no clash has fewer members.

    `among` narrows the search to some of the stated constraints, which must clash.
    """
    searched = stated if among is None else among

    def clashes(kept: tuple[Ask, ...]) -> bool:
        return not satisfiable(keep(full, stated, kept), index)

    for size in range(min(SMALL, len(searched)) + 1):
        for kept in combinations(searched, size):
            if clashes(kept):
                return kept
    left = searched
    for ask in reversed(searched):
        fewer = tuple(other for other in left if other != ask)
        if clashes(fewer):
            left = fewer
    # Taking away finds a set without a needless member; another set may still be smaller.
    for size in range(SMALL + 1, len(left)):
        for kept in combinations(searched, size):
            if clashes(kept):
                return kept
    return left


def _second(stated: tuple[Ask, ...], clash: tuple[Ask, ...], full: Wanted, index: Index) -> str:
    """Why no one change is enough."""
    others = tuple(ask for ask in stated if ask not in clash)
    if satisfiable(keep(full, stated, others), index):
        return "no single change is enough"
    second = smallest(stated, full, index, among=others)
    return f"no single change is enough; {' and '.join(map(str, second))} clash too"


def _possible(stated: tuple[Ask, ...], full: Wanted, index: Index) -> tuple[str, ...]:
    """The words of as many constraints as can be had together, the first ones first."""
    kept: tuple[Ask, ...] = ()
    for ask in stated:
        tried = replace(keep(full, stated, (*kept, ask)), scope=None)
        if satisfiable(scoped(tried, index), index):
            kept = (*kept, ask)
    return tuple(word for ask in kept for word in ask.words)


def command(words: tuple[str, ...], verb: str = "resolve") -> str:
    """A command line to type."""
    return shlex.join(("envkit", verb, *words))
