"""What an image was never verified on: architectures of its build and kinds of driver without a passing run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from envkit.attest.verification import Card
from envkit.ground.versions import is_version, key
from envkit.image.spec import LABEL_PREFIX
from envkit.resolve.gpus import capability

NATIVE, MINOR = "native", "minor-compatible"


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """What is verified and what is not. Architectures are cubins as in the label of the image: `9.0`."""

    archs: tuple[str, ...]  # all of the build; empty for CPU images
    verified: tuple[str, ...]
    never: tuple[str, ...]
    drivers: Mapping[str, str]  # NATIVE, MINOR -> which driver versions that means
    never_drivers: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready tree."""
        return {
            "archs": list(self.archs),
            "proved": list(self.verified),
            "never": {"archs": list(self.never), "drivers": list(self.never_drivers)},
            "drivers": dict(self.drivers),
        }


def coverage(labels: Mapping[str, str], cards: Iterable[Card]) -> Coverage:
    """What the GPUs of runs that held leave open, by the labels of the image's plan."""
    archs = tuple(labels.get(f"{LABEL_PREFIX}.gpu.archs", "").split())
    native, minimum = (labels.get(f"{LABEL_PREFIX}.driver.{name}", "") for name in ("native", "minimum"))
    met = list(cards)
    verified = {arch for card in met if (arch := cubin(archs, card.capability)) is not None}
    drivers = {}
    if is_version(native):
        drivers[NATIVE] = f"{native} or newer"
        if is_version(minimum) and key(minimum) < key(native):
            drivers[MINOR] = f"{minimum} to below {native}"
    seen = {NATIVE if key(card.driver) >= key(native) else MINOR
            for card in met if is_version(native) and card.driver and is_version(card.driver)}  # fmt: skip
    return Coverage(
        archs=archs,
        verified=tuple(arch for arch in archs if arch in verified),
        never=tuple(arch for arch in archs if arch not in verified),
        drivers=drivers,
        never_drivers=tuple(name for name in drivers if name not in seen),
    )


def cubin(archs: Iterable[str], card: str | None) -> str | None:
    """The architecture of a build whose code a GPU runs: the same major number, the highest minor up to its own.

    None where it has none for that GPU, which then runs code compiled from PTX, or nothing.
    """
    if card is None or (own := _pair(card)) is None:
        return None
    fitting = [(pair[1], arch) for arch in archs if (pair := _pair(arch)) and pair[0] == own[0] and pair[1] <= own[1]]
    return max(fitting)[1] if fitting else None


def _pair(text: str) -> tuple[int, int] | None:
    version = capability(text)
    if version is None:
        return None
    major, minor = version.split(".")
    return int(major), int(minor)
