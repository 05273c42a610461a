"""CUDA forward compatibility: a package in the image replaces the CUDA part of an older driver.

NVIDIA supports it for data center GPUs and for the driver branches that each package lists, never for GeForce. So it is
considered only if the request names a driver and GPUs, and only with `--allow-forward-compat`, because the image needs
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
    """Return the name of the package for a CUDA runtime: `cuda-compat-12-8` for `12.8`."""
    return f"cuda-compat-{minor(cuda).replace('.', '-')}"


def packages(facts: Facts) -> dict[str, ForwardCompat]:
    """Return CUDA 'major.minor' -> the row of its newest toolkit release, whose package a package manager installs."""
    return {minor(row.toolkit): row for row in sorted(facts.forward, key=lambda row: key(row.toolkit))}


def allowed(driver: str | None, cards: Iterable[Card], facts: Facts) -> frozenset[str]:
    """Return the CUDA runtimes that a driver runs with their package on all of these GPUs.

    Compute it once, from the complete request: the search for a clash removes constraints and relies on every build
    that fits still fitting afterward, and this set would shrink to nothing without GPUs.
    """
    if driver is None or refused(cards) is not None:
        return frozenset()
    branch = str(key(driver)[0])
    return frozenset(cuda for cuda, row in packages(facts).items() if branch in row.branches)


def refused(cards: Iterable[Card]) -> str | None:
    """Return why these GPUs rule forward compatibility out; None if they do not."""
    named = tuple(cards)
    if not named:
        return "forward compatibility is for data center GPUs only, so give the GPU with --gpu"
    for card in named:
        if capability(card.typed):
            must = f"--gpu must be a product such as A100, not {card}"
            return f"forward compatibility is for data center GPUs only, so {must}"
        if product(card.typed, card.gpu) not in card.gpu.data_center:
            return f"forward compatibility is for data center GPUs only, and {card} is not in NVIDIA's list of them"
    return None


def unlisted(driver: str, cudas: Collection[str], facts: Facts) -> str:
    """Return why no package of these CUDA runtimes supports a driver: the branches that the newest package lists."""
    rows = packages(facts)
    listed = [cuda for cuda in cudas if cuda in rows and rows[cuda].branches]
    if not listed:
        return f"no driver branch is listed for {' or '.join(package(cuda) for cuda in sorted(cudas, key=key))}"
    newest = max(listed, key=key)
    branches = ", ".join(f"R{branch}" for branch in rows[newest].branches)
    return f"{package(newest)} supports driver branches {branches}; driver {driver} belongs to R{key(driver)[0]}"
