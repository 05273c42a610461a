"""Whether a wheel of PyTorch's index runs on a GPU and driver, according to the facts.

Benchmarks check the answers of envkit and of other tools with it, so it shares no code with the resolver.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from packaging.version import Version

from envkit.facts.model import Build, Facts

_PICK = re.compile(r"\btorch[=@ -]+=?(\d+\.\d+\.\d+)(\+cpu|\+cu\d+)?")
_INDEX = re.compile(r"/whl/(cpu|cu\d+)")


@dataclass(frozen=True, slots=True)
class Pick:
    """A torch wheel that a tool chose."""

    torch: str
    local: str  # '+cu126'

    def __str__(self) -> str:
        return f"{self.torch}{self.local}"


def picked(text: str) -> Pick | None:
    """Return the first torch in a text that names its CUDA: `torch==2.4.1+cu121`, or the index in the same text."""
    index = _INDEX.search(text)
    for torch, local in _PICK.findall(text):
        if local or index:
            return Pick(torch, local or f"+{index[1] if index else ''}")
    return None


def published(pick: Pick, facts: Facts, platform: str = "linux-64") -> Build | None:
    """Return the build in the facts for a pick, or None if there is none."""
    wanted = ("pytorch", platform, pick.torch)
    same = [build for build in facts.builds if (build.source, build.platform, build.torch) == wanted]
    return next((build for build in same if build.index and build.index.endswith(f"/{pick.local[1:]}")), None)


def code_for(archs: Sequence[str], ptx: Sequence[str], capability: str) -> str | None:
    """Return which code of a wheel a GPU of this capability runs: 'cubin', 'ptx' (compiled by the driver) or None."""
    wanted = _pair(capability)
    if any(arch[0] == wanted[0] and arch[1] <= wanted[1] for arch in map(_pair, archs)):
        return "cubin"
    return "ptx" if any(_pair(arch) <= wanted for arch in ptx) else None


def faults(build: Build, capability: str, driver: str, facts: Facts) -> list[str]:
    """Return what is wrong with a build on a machine; empty if torch computes there."""
    if build.cuda is None:
        return ["computes on the CPU"]
    sm, given = f"sm_{capability.replace('.', '')}", Version(driver)
    kind = code_for(build.archs or (), build.ptx, capability)
    least, native = _least(build.cuda, facts), _native(build.cuda, facts)
    floor = _cudnn_floor(build, facts)
    wrong = [] if kind else [f"no code for {sm}: {_list(build.archs or ())}"]
    if least and given < least and not (native and given >= native):
        wrong.append(f"CUDA {build.cuda} needs driver {least}")
    elif kind == "ptx" and (native is None or given < native):
        wrong.append(f"only PTX for {sm}, which driver {driver} cannot compile")
    if floor and _pair(capability) < floor:
        wrong.append(f"cuDNN {build.cudnn} dropped {sm}")
    return wrong


def _cudnn_floor(build: Build, facts: Facts) -> tuple[int, int] | None:
    """Return the lowest capability of the newest sourced cuDNN row that is not newer than the build's cuDNN."""
    major = (build.cuda or "").partition(".")[0]
    rows = [row for row in facts.cudnns if row.cuda_major == major and row.confidence is None and row.capabilities]
    older = [row for row in rows if build.cudnn and _version(row.cudnn) <= _version(build.cudnn)]
    newest = max(older, key=lambda row: _version(row.cudnn), default=None)
    return min(map(_pair, newest.capabilities)) if newest else None


def _version(cudnn: str) -> Version:
    return Version(cudnn.partition("-")[0])


def _least(cuda: str, facts: Facts) -> Version | None:
    rows = [row.linux_min for row in facts.compat if row.cuda_major == int(cuda.partition(".")[0])]
    return Version(rows[0]) if rows and rows[0] else _native(cuda, facts)


def _native(cuda: str, facts: Facts) -> Version | None:
    rows = [row.linux_min for row in facts.toolkits if row.toolkit.rpartition(".")[0] == cuda and row.linux_min]
    return min(map(Version, rows)) if rows else None


def _list(capabilities: Sequence[str]) -> str:
    return " ".join(capability.replace(".", "") for capability in capabilities)


def _pair(capability: str) -> tuple[int, int]:
    major, _, minor = capability.removesuffix("+").partition(".")
    return int(major), int(minor)
