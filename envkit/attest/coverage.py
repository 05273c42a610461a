"""Where an image was never verified: GPU architectures of its build and driver ranges without a passing run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from envkit.attest.verification import Card
from envkit.facts import gpu_code
from envkit.ground.naming import LABEL_PREFIX
from envkit.ground.versions import is_version, key
from envkit.resolve.gpus import capability

NATIVE, MINOR = "native", "minor-compatible"


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """What was verified and what was not. Architectures are written as in the image's label: `9.0`."""

    archs: tuple[str, ...]  # all of the build; empty for CPU images
    verified: tuple[str, ...]
    never: tuple[str, ...]
    drivers: Mapping[str, str]  # NATIVE, MINOR -> the range of driver versions
    never_drivers: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-ready mapping."""
        return {
            "archs": list(self.archs),
            "proved": list(self.verified),
            "never": {"archs": list(self.never), "drivers": list(self.never_drivers)},
            "drivers": dict(self.drivers),
        }


def coverage(labels: Mapping[str, str], cards: Iterable[Card]) -> Coverage:
    """Compare the GPUs and drivers of passing runs with the labels of the image.

    Args:
        labels: the labels of the image.
        cards: the GPUs of the passing runs.
    """
    archs = tuple(labels.get(f"{LABEL_PREFIX}.gpu.archs", "").split())
    native, minimum = (labels.get(f"{LABEL_PREFIX}.driver.{name}", "") for name in ("native", "minimum"))
    tested = list(cards)
    verified = {arch for card in tested if (arch := cubin(archs, card.capability)) is not None}
    drivers = {}
    if is_version(native):
        drivers[NATIVE] = f"{native} or newer"
        if is_version(minimum) and key(minimum) < key(native):
            drivers[MINOR] = f"{minimum} to below {native}"
    # A card without a driver version says nothing about drivers, although its architecture counts.
    modes = {NATIVE if key(card.driver) >= key(native) else MINOR
             for card in tested if is_version(native) and card.driver and is_version(card.driver)}  # fmt: skip
    return Coverage(
        archs=archs,
        verified=tuple(arch for arch in archs if arch in verified),
        never=tuple(arch for arch in archs if arch not in verified),
        drivers=drivers,
        never_drivers=tuple(name for name in drivers if name not in modes),
    )


def cubin(archs: Iterable[str], card: str | None) -> str | None:
    """Return the architecture whose code a GPU runs; None if the build has no such code, so that the GPU needs PTX."""
    own = None if card is None else gpu_code.parse(capability(card) or "")
    if own is None:
        return None
    by_code = {code: arch for arch in archs if (code := gpu_code.parse(capability(arch) or "")) is not None}
    found = gpu_code.serving(own[:2], by_code, gpu_code.row_of(own[:2]))
    return None if found is None else by_code[found]
