"""The contents of an image: packages, plan and lock, labels, start command, layers. Used by attest, diff and inspect.

`envkit.attest.reading.read_content(name, Access(...))` accepts every image name (see `envkit.image.name`) and
the file of a lock or plan, and returns a `Content`. Packages come from the lock that envkit puts into a small layer
near the top of its images; layers above it are read too, because they may add or remove packages. Without a lock,
packages are read from all layers (`conda-meta`, `dist-info`, dpkg's status); those of a registry image are downloaded
only if `Access.layers` is set.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from envkit.ground import trees
from envkit.lock.model import Lock
from envkit.plan.model import BuildPlan

CONDA, WHEEL, DEB = "conda", "wheel", "deb"


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """An installed package. Hash, size and URL of its archive are known only from a lock."""

    kind: str  # CONDA | WHEEL | DEB | 'rpm'
    name: str  # of wheels: normalized (PEP 503)
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
    """A layer; `size` is that of its blob, or of its tar if an engine keeps it uncompressed."""

    diff_id: str
    digest: str | None  # of the blob
    size: int | None  # bytes
    made_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """The contents of an image, or of the image that a lock or plan describes."""

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
    layers: tuple[Layer, ...] | None = None  # lowest first; None: unknown
    size: int | None = None  # bytes of all blobs; for an image in an engine, the size that the engine reports
    plan: BuildPlan | None = None
    lock: Lock | None = None
    packages: tuple[Package, ...] | None = None  # sorted by kind and name; None: not read
    packages_from: str | None = None  # 'lock' | 'lock and layers' | 'layers' | 'container'
    fetched: int = 0  # bytes of layers that were downloaded
    notes: tuple[str, ...] = ()  # what could not be determined, and how to get it

    def package(self, *names: str) -> Package | None:
        """Return the first package with one of these names; earlier names are preferred."""
        # Reversed, so that the first of two packages with one name is kept.
        rows = {package.name: package for package in reversed(self.packages or ())}
        return next((rows[name] for name in names if name in rows), None)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-ready summary, without the lock, the plan and the packages."""
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
    """Return the packages of a lock, sorted by kind and name."""
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
    """Sort packages by kind, name and version."""
    return tuple(sorted(rows, key=lambda package: (package.kind, package.name, package.version)))


def json_of(data: bytes, where: str) -> Any:
    """Parse a JSON document from an image; `where` names it in errors.

    Raises:
        UsageError: the document is not JSON.
    """
    return trees.from_json(data, where, surrogates=True, hint="build the image again")
