"""Does a build of torch run on a GPU: the one rule for `resolve`, the check C03 and `inspect`.

A cubin for X.y runs on X.z where z >= y and never on another major; PTX for X.y is compiled by the driver for every
later capability, but the libraries of the toolkit have to know that GPU as well. A Jetson module runs only cubins of
exactly its own capability. Sources: CUDA C++ Programming Guide, Compute Capabilities; the column `integrated` of the
table of GPUs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING

from envkit.facts.load import load
from envkit.ground.versions import is_version, key

if TYPE_CHECKING:
    from envkit.facts.model import Gpu

Arch = tuple[int, int, str]
"""Major, minor and the suffix that narrows where code runs: ``a`` to one capability, ``f`` to one family."""

EXACT, SAME_MAJOR, PTX = "exact", "same-major", "ptx"
# sm_86, sm_90a, sm_120, compute_100f: the last digit is the minor version.
_FLAG = re.compile(r"(sm|compute)_(\d+)(\d)([af]?)")
_CAPABILITY = re.compile(r"(\d+)\.(\d)([af]?)")


def parse_flags(flags: Iterable[str]) -> tuple[list[Arch], list[Arch]]:
    """Return cubins and PTX of torch's flags: ``["sm_80", "compute_90"]`` -> ``[(8, 0, "")], [(9, 0, "")]``."""
    cubins: list[Arch] = []
    ptx: list[Arch] = []
    for item in flags:
        match = _FLAG.fullmatch(item)
        if match is not None:
            (cubins if match[1] == "sm" else ptx).append((int(match[2]), int(match[3]), match[4]))
    return cubins, ptx


def parse(text: str) -> Arch | None:
    """Return `9.0` or `9.0a` in numbers; None if the text is no compute capability."""
    match = _CAPABILITY.fullmatch(text)
    return (int(match[1]), int(match[2]), match[3]) if match else None


@cache
def row_of(capability: tuple[int, int]) -> Gpu | None:
    """Return this installation's row of a compute capability; None if it has none."""
    return next((gpu for gpu in load().gpus if gpu.capability == f"{capability[0]}.{capability[1]}"), None)


def serving(capability: tuple[int, int], cubins: Iterable[Arch], gpu: Gpu | None) -> Arch | None:
    """Return the cubin that a GPU runs: its own, else that with the highest minor up to its own; None without one."""
    major, minor = capability
    own_only = gpu is not None and gpu.integrated
    usable = [
        item
        for item in cubins
        if item[:2] == capability or (not own_only and item[0] == major and item[1] < minor and item[2] != "a")
    ]
    return max(usable, default=None)


def runs(
    capability: tuple[int, int],
    cubins: Iterable[Arch],
    ptx: Iterable[Arch],
    *,
    gpu: Gpu | None = None,
    cuda: str | None = None,
) -> str | None:
    """Return how a build runs on a GPU: `EXACT`, `SAME_MAJOR`, `PTX`, or None if it does not.

    Args:
        capability: of the GPU, major and minor.
        cubins: of the build.
        ptx: of the build.
        gpu: the row of the capability; None if it is in no table.
        cuda: the toolkit of the build; None if it is not known.
    """
    toolkit = cuda if cuda is not None and is_version(cuda) else None
    if gpu is not None and toolkit is not None and not supports(toolkit, gpu):
        return None
    found = serving(capability, cubins, gpu)
    if found is not None:
        return EXACT if found[:2] == capability else SAME_MAJOR
    if gpu is not None and (gpu.integrated or (toolkit is not None and not knows(toolkit, gpu))):
        return None
    return PTX if any(item[:2] <= capability and not item[2] for item in ptx) else None


def supports(cuda: str, gpu: Gpu) -> bool:
    """Return whether a toolkit has not dropped a GPU, as far as sourced facts tell."""
    return not (gpu.last_cuda and "last_cuda" not in gpu.inferred and key(cuda)[0] > key(gpu.last_cuda)[0])


def knows(cuda: str, gpu: Gpu) -> bool:
    """Return whether the libraries of a toolkit are as new as a GPU, as far as sourced facts tell."""
    return "first_cuda" in gpu.inferred or key(cuda) >= key(gpu.first_cuda)
