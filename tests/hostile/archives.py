"""Hostile archives, each made by a function: wheels, layers, conda packages."""

from collections.abc import Callable, Sequence
from pathlib import Path

from tests.hostile.model import Case

ARCHIVES: list[Case] = []
Make = Callable[[Path], list[str]]


def archive(
    group: str, *, code: int = 0, says: Sequence[str] = (), gives: Sequence[str] = (), writes: Sequence[str] = ()
) -> Callable[[Make], Make]:
    """Make a function a case: it writes into an empty folder and gives the command line."""

    def add(make: Make) -> Make:
        name = make.__name__.replace("_", "-")
        ARCHIVES.append(
            Case(
                group=group, name=name, make=make, exit=code, says=tuple(says), gives=tuple(gives), writes=tuple(writes)
            )
        )
        return make

    return add
