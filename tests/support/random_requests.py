"""Random requests and sets of facts, reproducible by seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

from envkit.facts.model import Facts, ToolkitDriver
from envkit.ground.platforms import PLATFORMS
from envkit.ground.versions import minor
from envkit.resolve.model import SOURCES

# Probabilities.
_LIMITED = 0.12  # a request limits the download; the sizes of most builds are unknown
_FIXED = 0.12  # a request needs supported versions; most versions are not
_FORWARD = 0.4  # a request with a driver allows forward compatibility
_STATED = 0.3  # a request has a field
_THINNED = 0.3  # a set of facts loses rows
_GPU_FIELDS = ("first_cuda", "last_cuda", "min_driver_branch", "last_driver_branch")


def random_fields(random: Random, facts: Facts) -> dict[str, Any]:
    """Return the fields of a request: values from the facts, ranges around them, and some that no row has."""
    fields: dict[str, Any] = {}
    drawn: dict[str, Callable[[], Any]] = {
        "torch": lambda: _constraint(random, list(facts.releases)),
        "python": lambda: _minors(random, sorted({name for row in facts.builds for name in row.pythons or ()})),
        "os": lambda: random.choice(facts.oses).id,
        "platform": lambda: random.choice(PLATFORMS),
        "source": lambda: random.choice(SOURCES),
        "template": lambda: "wheels",
    }
    on_gpu: dict[str, Callable[[], Any]] = {
        "cuda": lambda: _minors(random, sorted({row.cuda for row in facts.builds if row.cuda})),
        "cudnn": lambda: _constraint(random, sorted({row.cudnn for row in facts.builds if row.cudnn})),
        "driver": lambda: _driver(random, facts),
        "gpu": lambda: _gpus(random, facts),
    }
    if random.random() < 0.1:  # a CPU build, which has none of the fields below
        fields["cpu"] = True
    else:
        drawn |= on_gpu
    for name, draw in drawn.items():
        if random.random() < _STATED:
            fields[name] = draw()
    if random.random() < _LIMITED:
        fields["max_size"] = _limit(random, facts)
    if random.random() < _FIXED:
        fields["supported_only"] = True
    if random.random() < _FIXED:
        fields["today"] = f"{random.randint(2020, 2033)}-{random.randint(1, 12):02}-01"
    if "driver" in fields and random.random() < _FORWARD:
        fields["allow_forward_compat"] = True
        if random.random() < _FORWARD:  # because random drivers and GPUs rarely need it
            fields |= {"driver": _old_driver(random, facts), "gpu": _data_center(random, facts)}
    return fields


def _old_driver(random: Random, facts: Facts) -> str:
    """Return a driver of a branch that a package lists, or of a neighboring branch."""
    branch = random.choice([branch for row in facts.forward for branch in row.branches])
    return f"{int(branch) + random.choice((0, 0, 0, 1))}.{random.choice(('0', '54.03', '129.03'))}"


def _data_center(random: Random, facts: Facts) -> list[str]:
    """Return one or two data center GPUs."""
    products = [name for row in facts.gpus for name in row.data_center]
    return random.sample(products, random.choice((1, 1, 2)))


def _limit(random: Random, facts: Facts) -> str:
    """Return the size of a build, a neighboring one, or one below or above all."""
    sizes = [row.wheel_size + row.pulled_size for row in facts.builds if row.wheel_size and row.pulled_size]
    return f"{random.choice((random.choice(sizes) // 1_000_000 + random.randint(-1, 1), 20, 9000))}MB"


def random_facts(random: Random, facts: Facts) -> Facts:
    """Return the facts, or some of their rows, of which some are inferred."""
    if random.random() > _THINNED:
        return facts

    def some(rows: tuple[Any, ...], share: float) -> tuple[Any, ...]:
        return tuple(row for row in rows if random.random() < share) or rows[:1]

    def doubted(rows: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(replace(row, confidence="inferred") if random.random() < share else row for row in rows)

    share = random.choice((0.05, 0.3, 0.8))
    builds = _sized(random, doubted(some(facts.builds, 1 - share)), share)
    return replace(
        facts,
        builds=tuple(replace(row, pythons=None) if random.random() < 0.05 else row for row in builds),
        toolkits=doubted(_with_every_minor(some(facts.toolkits, 1 - share / 2), facts)),
        cudnns=doubted(some(facts.cudnns, 1 - share / 2)),
        forward=some(facts.forward, 1 - share / 2),
        pythons=some(facts.pythons, 1 - share / 2),
        gpus=tuple(replace(row, inferred=_GPU_FIELDS) if random.random() < share else row for row in facts.gpus),
    )


def _sized(random: Random, rows: tuple[Any, ...], share: float) -> tuple[Any, ...]:
    """Return the builds, some of them with random sizes or without one."""
    sizes = (None, 500_000_000, 900_000_000, 2_000_000_000)
    return tuple(
        replace(row, wheel_size=random.choice(sizes), pulled_size=random.choice(sizes))
        if random.random() < share else row for row in rows
    )  # fmt: skip


def _with_every_minor(rows: tuple[ToolkitDriver, ...], facts: Facts) -> tuple[ToolkitDriver, ...]:
    """Return the rows and at least one toolkit of each minor version, which `matrix check` requires for builds."""
    kept = {minor(row.toolkit) for row in rows if row.linux_min}
    missing = {minor(row.toolkit): row for row in facts.toolkits if row.linux_min and minor(row.toolkit) not in kept}
    return (*rows, *missing.values())


def _constraint(random: Random, versions: list[str]) -> str:
    """Return an exact version, a prefix or a range of known versions, or sometimes a version that does not exist."""
    one, other = random.choice(versions), random.choice(versions)
    short = ".".join(one.split(".")[:2])
    forms = (one, short, short, f"{short}.*", f"=={one}", f"!={one}", f"!={short}.*", f">={one}", f"<={one}", f">{one}")
    more = (f"<{one}", f"~={one}", f">={one},<{other}", f">={other},!={one}", f"<={one},!={short}.*", "9.99", "0.1")
    return random.choice(forms + more)


def _minors(random: Random, versions: list[str]) -> str:
    """Return a version of two numbers, its major, or a range."""
    one, other = random.choice(versions), random.choice(versions)
    major = one.split(".", maxsplit=1)[0]
    return random.choice((one, one, one, major, f"{major}.*", f">={one}", f"<{one}", f">={one},<={other}", "9.99"))


def _driver(random: Random, facts: Facts) -> str:
    """Return the driver of a toolkit, a neighboring one, or the first of a branch."""
    known = [row.linux_min for row in facts.toolkits if row.linux_min]
    numbers = random.choice(known).split(".")
    branch, rest = int(numbers[0]), ".".join(numbers[1:]) or "0"
    beside = branch + random.randint(-20, 20)
    return random.choice((f"{branch}.{rest}", f"{beside}.{rest}", f"{branch}", f"{branch}.0.1"))


def _gpus(random: Random, facts: Facts) -> list[str]:
    """Return one to three different GPUs, as products or capabilities."""
    rows = random.sample(facts.gpus, random.choice((1, 1, 1, 2, 3)))
    return [random.choice([row.capability, *(name for name in row.products if "(" not in name)]) for row in rows]
