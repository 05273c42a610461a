"""The result of `envkit cover`: images, the machines each serves, what forces each, and what would save one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from envkit.cover.hosts import HostClass
from envkit.resolve.model import Resolution

SCHEMA = "envkit.cover/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A class of machines and how it runs its image."""

    hosts: HostClass
    mode: str  # how its driver runs the image's CUDA runtime: 'native' | 'minor-compatible'
    alone: str  # the torch version that it would get on its own
    native: str | None = None  # what its driver would run natively, if the mode is minor-compatible


@dataclass(frozen=True, slots=True, kw_only=True)
class Force:
    """Machines that only one image of the result can serve, with the reasons."""

    hosts: HostClass
    because: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """One image of the result."""

    name: str  # 'torch2.14.1-cu126'; unique in the result, and a valid tag
    resolution: Resolution
    serves: tuple[Served, ...]
    forced_by: tuple[Force, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """A change of the machines that reduces the number of images."""

    hosts: tuple[HostClass, ...]
    driver: str | None  # upgrade the driver to at least this version; None: remove the machines
    images: int  # after the change

    @property
    def text(self) -> str:
        """The change and the resulting number of images, in words."""
        named = "; ".join(f"{hosts.named} ({hosts.title})" for hosts in self.hosts)
        if self.driver is None:
            return f"without {named}: {_images(self.images)}"
        return f"driver {self.driver} or newer on {named}: {_images(self.images)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unserved:
    """Machines that cannot run any image."""

    hosts: HostClass
    because: tuple[str, ...]
    hint: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cover:
    """The fewest images that serve all machines that can be served."""

    images: tuple[Image, ...]
    savings: tuple[Saving, ...]
    unserved: tuple[Unserved, ...]
    classes: int  # of machines
    machines: int
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-ready tree of schema envkit.cover/1."""
        return {
            "schema": SCHEMA,
            "machines": self.machines,
            "classes": self.classes,
            "images": [
                {
                    "name": image.name,
                    "resolution": image.resolution.to_json(),
                    "serves": [
                        _hosts(row.hosts) | {"mode": row.mode, "alone": row.alone, "native": row.native}
                        for row in image.serves
                    ],
                    "forced_by": [_hosts(row.hosts) | {"because": list(row.because)} for row in image.forced_by],
                }
                for image in self.images
            ],
            "savings": [
                {
                    "change": "remove" if saving.driver is None else "driver",
                    "driver": saving.driver,
                    "classes": [_hosts(row) for row in saving.hosts],
                    "images": saving.images,
                    "text": saving.text,
                }
                for saving in self.savings
            ],
            "unserved": [_hosts(row.hosts) | {"because": list(row.because), "hint": row.hint} for row in self.unserved],
            "notes": list(self.notes),
        }


def _hosts(host_class: HostClass) -> dict[str, Any]:
    return {
        "hosts": list(host_class.hosts),
        "count": host_class.count,
        "gpus": [{"name": card.typed, "capability": card.gpu.capability} for card in host_class.cards],
        "driver": host_class.driver,
        "platform": host_class.platform,
    }


def _images(number: int) -> str:
    return f"{number} image{'' if number == 1 else 's'} would be enough"
