"""Machines for tests, from the installation's own facts."""

from functools import cache

from envkit.cover.cover import cover
from envkit.cover.hosts import Completion, Gpu, Host, HostClass, Inventory, classes
from envkit.cover.model import Cover
from envkit.facts.load import load
from envkit.facts.model import Facts
from envkit.resolve.model import Request
from envkit.resolve.request import parse

DRIVERS = (
    "418.39",
    "450.80.02",
    "470.82.01",
    "525.60.13",
    "535.104.05",
    "550.54.14",
    "570.26",
    "580.65.06",
    "610.43.02",
)
GPUS = ("K80", "P100", "V100", "T4", "A100", "A10", "L4", "H100", "B200", "B300", "RTX 5090")


@cache
def facts() -> Facts:
    return load()


def fleet(*rows: tuple[str, str] | tuple[str, str, str]) -> tuple[HostClass, ...]:
    """The classes of machines: ('V100+T4', '535.104.05') or with an architecture; named h1, h2, ..."""
    hosts = tuple(
        Host(
            name=f"h{number}",
            where=f"line {number}",
            gpus=tuple(Gpu(name=name) for name in row[0].split("+")),
            driver=row[1],
            machine=row[2] if len(row) > 2 else None,
        )
        for number, row in enumerate(rows, 1)
    )
    return classes(Inventory(hosts=hosts, form="csv"), facts(), Completion())


def covered(*rows: tuple[str, str] | tuple[str, str, str], **asked: str) -> Cover:
    """The cover of some machines under constraints."""
    return cover(parse(asked, facts()) if asked else Request(), fleet(*rows), facts())
