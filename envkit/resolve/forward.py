"""CUDA forward compatibility: a package in the image replaces the CUDA part of an older driver.

It is NVIDIA's offer for data center GPUs and for the driver branches that each package lists, never for GeForce. So it
is an answer only for a driver and GPUs that the request names, and only with `--allow-forward-compat`: the image needs
a package that envkit does not install.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from envkit.facts.model import Facts, ForwardCompat
from envkit.ground.versions import key, minor
from envkit.resolve.gpus import Card, capability, product

FORWARD = "forward-compatible"
"""The third mode of a driver, beside `native` and `minor-compatible`."""


def package(cuda: str) -> str:
    """Return the package that a CUDA runtime needs: `cuda-compat-12-8` for `12.8`."""
    return f"cuda-compat-{minor(cuda).replace('.', '-')}"


def packages(facts: Facts) -> dict[str, ForwardCompat]:
    """Return CUDA 'major.minor' -> the row of its newest toolkit release, which is the package that is installed."""
    return {minor(row.toolkit): row for row in sorted(facts.forward, key=lambda row: key(row.toolkit))}


def allowed(driver: str | None, cards: Iterable[Card], facts: Facts) -> frozenset[str]:
    """Return the CUDA runtimes that a driver runs with their package, on all of these GPUs.

    They follow from the whole request. A search for a clash that takes a GPU away does not take them away, so that a
    constraint less never makes anything fit less.
    """
    if driver is None or refused(cards) is not None:
        return frozenset()
    branch = str(key(driver)[0])
    return frozenset(cuda for cuda, row in packages(facts).items() if branch in row.branches)


def refused(cards: Iterable[Card]) -> str | None:
    """Return why the GPUs rule forward compatibility out, None where they do not."""
    named = tuple(cards)
    if not named:
        return "forward compatibility is for data center GPUs only, so the GPU has to be named with --gpu"
    for card in named:
        if capability(card.typed):
            return f"forward compatibility is for data center GPUs only, and {card} names no product, as A100 does"
        if product(card.typed, card.gpu) not in card.gpu.data_center:
            return f"forward compatibility is for data center GPUs only, and {card} is not one in NVIDIA's list"
    return None


def unlisted(driver: str, cudas: Collection[str], facts: Facts) -> str:
    """Return why no package of these CUDA runtimes is for a driver: the branches of the newest that lists any."""
    rows = packages(facts)
    listed = [cuda for cuda in cudas if cuda in rows and rows[cuda].branches]
    if not listed:
        return f"no driver branch is listed for {' or '.join(package(cuda) for cuda in sorted(cudas, key=key))}"
    newest = max(listed, key=key)
    branches = ", ".join(f"R{branch}" for branch in rows[newest].branches)
    return f"{package(newest)} is for driver branches {branches}; driver {driver} is of R{key(driver)[0]}"
