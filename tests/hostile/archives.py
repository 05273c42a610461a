"""Hostile archives, each made by a function: wheels, layers, conda packages."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.hostile.model import Case

ARCHIVES: list[Case] = []
Make = Callable[[Path], list[str]]


def archive(
    group: str,
    *,
    code: int = 0,
    says: Sequence[str] = (),
    gives: Sequence[str] = (),
    writes: Sequence[str] = (),
    secret: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    command: str = "",
) -> Callable[[Make], Make]:
    """Make a function a case: it writes into an empty folder and gives the command line.

    `command` is the command that it begins with, for the table of requirements.
    """

    def add(make: Make) -> Make:
        ARCHIVES.append(
            Case(
                group=group,
                name=make.__name__.replace("_", "-"),
                make=make,
                run=(command,) if command else (),
                exit=code,
                says=tuple(says),
                gives=tuple(gives),
                writes=tuple(writes),
                secret=tuple(secret),
                env=env or {},
            )
        )
        return make

    return add
