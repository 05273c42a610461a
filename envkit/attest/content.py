"""The contents of an image: packages, plan and lock, labels, start command, layers. Used by diff and attest.

`envkit.attest.reading.read_content(name, Access(...))` takes every way to name an image (see `envkit.image.reference`),
or the file of a lock or plan, and gives one `Content`. Packages come from the lock that envkit puts into its images,
in a small layer near the top: no other layer is read for it. What layers above that one add or remove is taken into
account. Without a lock the layers tell (`conda-meta`, `dist-info`, dpkg's status); those of a registry are fetched
only when `Access.layers` asks for it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from envkit.ground.errors import UsageError
from envkit.lock.model import Lock
from envkit.plan.model import BuildPlan

CONDA, WHEEL, DEB = "conda", "wheel", "deb"


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """One installed package. Hash and size are those of what was downloaded, known from a lock alone."""

    kind: str  # CONDA | WHEEL | DEB | 'rpm'
    name: str  # wheels: normalized as PEP 503 has it
    version: str
    build: str | None = None  # conda's build string
    sha256: str | None = None
    size: int | None = None  # bytes of the archive
    url: str | None = None

    @property
    def exact(self) -> str:
        """Version and, for conda, build: `2.3.0 py311h64a7726_0`."""
        return f"{self.version} {self.build}" if self.build else self.version


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One layer; `size` is its blob's, or its tar's where an engine keeps it unpacked."""

    diff_id: str
    digest: str | None  # of the blob
    size: int | None  # bytes
    made_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """What is in one image, or would be in the image of a lock or plan."""

    name: str  # as it was typed
    kind: str  # 'registry' | 'oci' | 'docker-archive' | 'engine' | 'lock' | 'plan'
    id: str | None = None  # digest of the configuration
    digest: str | None = None  # digest of the manifest
    architecture: str | None = None  # 'amd64'
    labels: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    user: str = ""
    workdir: str = ""
    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()
    ports: tuple[str, ...] = ()  # '8888/tcp'
    config: Mapping[str, Any] = field(default_factory=dict)  # the whole configuration; empty: not read
    layers: tuple[Layer, ...] | None = None  # lowest first; None: not told
    size: int | None = None  # bytes of all blobs; for an engine's image as the engine counts
    plan: BuildPlan | None = None
    lock: Lock | None = None
    packages: tuple[Package, ...] | None = None  # sorted by kind and name; None: not read
    packages_from: str | None = None  # 'lock' | 'lock and layers' | 'layers' | 'container'
    fetched: int = 0  # bytes of layers that were downloaded to find this out
    notes: tuple[str, ...] = ()  # what could not be told, and what would

    def package(self, *names: str) -> Package | None:
        """The first package that has one of these names."""
        rows = {package.name: package for package in reversed(self.packages or ())}
        return next((rows[name] for name in names if name in rows), None)

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready tree, without what lock and plan say in full."""
        return {
            "name": self.name,
            "kind": self.kind,
            "id": self.id,
            "digest": self.digest,
            "architecture": self.architecture,
            "size": self.size,
            "layers": None if self.layers is None else len(self.layers),
            "plan": self.plan and self.plan.digest,
            "packages": None if self.packages is None else len(self.packages),
            "packages_from": self.packages_from,
            "fetched": self.fetched,
            "notes": list(self.notes),
        }


def of_lock(lock: Lock) -> tuple[Package, ...]:
    """The packages of a lock, sorted by kind and name."""
    rows = [
        *(
            Package(kind=CONDA, name=package.name, version=package.version, build=package.build, sha256=package.sha256,
                    size=package.size, url=package.url)
            for package in lock.conda
        ),
        *(
            Package(kind=WHEEL, name=wheel.name, version=wheel.version, sha256=wheel.sha256, size=wheel.size,
                    url=wheel.download)
            for wheel in lock.wheels
        ),
        *(
            Package(kind=DEB, name=deb.name, version=deb.version, sha256=deb.sha256, size=deb.size)
            for deb in lock.base.packages
        ),
    ]  # fmt: skip
    return ordered(rows)


def ordered(rows: list[Package]) -> tuple[Package, ...]:
    """Packages sorted by kind and name."""
    return tuple(sorted(rows, key=lambda package: (package.kind, package.name, package.version)))


def json_of(data: bytes, where: str) -> Any:
    """The JSON of a document that an image carries.

    Raises:
        UsageError: the value is invalid.
    """
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where}: not JSON", hint="build the image again") from error
