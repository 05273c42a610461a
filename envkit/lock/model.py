"""The values of a lock: base image, conda packages and wheels by URL, SHA-256 and size in bytes."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from envkit.ground.records import Check, Doc, Row, constant
from envkit.ground.schemas import listed
from envkit.lock import values

SCHEMA = "envkit.lock/2"
FILE = "envkit.lock"
BUILT = "built"
"""The `source` of a wheel that envkit built: it is on no index."""
PAGE = "page"
"""The `source` of a wheel from a page or index that the facts know: it is installed by its URL."""
CONDA_PUBLIC = "https://conda.anaconda.org"
"""The root of the conda URLs in a lock; downloads use a mirror instead if one is set."""

RequestValue = str | tuple[str, ...] | None
"""The value of one field of the request in a lock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DebPackage(Row):
    """One Debian package of a bootstrapped base."""

    name: Annotated[str, values.name]
    version: Annotated[str, values.version]
    arch: Annotated[str, values.name]
    sha256: Annotated[str | None, values.optional(values.sha256)]
    size: Annotated[int, values.size]  # bytes of the .deb


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedBase(Row):
    """The base of the image."""

    kind: Annotated[str, values.one_of("registry", "bootstrap", "none")]
    reference: Annotated[str, values.reference]  # the plan's reference, or 'bootstrap:debian/bookworm'
    digest: Annotated[str | None, values.optional(values.digest)] = None  # manifest digest, for a registry's image
    suite: Annotated[str | None, values.optional(values.name)] = None  # 'bookworm', for a bootstrapped base
    packages: tuple[DebPackage, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CondaPackage(Row):
    """One conda package."""

    name: Annotated[str, values.name]
    version: Annotated[str, values.version]
    build: Annotated[str, values.name]
    subdir: Annotated[str, values.name]  # 'linux-64' | 'noarch'
    channel: Annotated[str, values.channel]  # 'conda-forge'
    url: Annotated[str, values.url]  # below CONDA_PUBLIC, also if a mirror was used
    sha256: Annotated[str, values.sha256]
    size: Annotated[int, values.size]  # bytes of the archive
    depends: Annotated[tuple[str, ...], values.texts] = ()
    noarch: Annotated[str | None, values.optional(values.one_of("python", "generic"))] = None

    @property
    def file(self) -> str:
        """The archive's file name."""
        return self.url.rpartition("/")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheel(Row):
    """One wheel."""

    name: Annotated[str, values.name]  # normalized according to PEP 503
    version: Annotated[str, values.version]
    file: Annotated[str, values.wheel_file]
    # As in the index, without login and query; below the public PyTorch index also if a mirror was used.
    url: Annotated[str, values.url]
    sha256: Annotated[str, values.sha256]
    size: Annotated[int, values.size]  # bytes
    # 'pytorch': the index of the torch family; 'pypi': the Python index, or one that the definition adds; PAGE: a page
    # that neither names; BUILT: built from a row of `Lock.sources`, and `url` is that row's.
    source: Annotated[str, values.one_of("pytorch", "pypi", PAGE, BUILT)]

    @property
    def requirement(self) -> str:
        """The wheel as a requirement of pip: `numpy==2.2.6`, or with its URL if it is on no index."""
        return f"{self.name} @ {self.url}" if self.source == PAGE else f"{self.name}=={self.version}"

    @property
    def download(self) -> str | None:
        """The URL of the file, None if it was built from source."""
        return None if self.source == BUILT else self.url


@dataclass(frozen=True, slots=True, kw_only=True)
class Source(Row):
    """The source of a wheel and how it was compiled. With `Lock.builders`, the wheel can be built again from it."""

    name: Annotated[str, values.name]  # normalized according to PEP 503
    version: Annotated[str, values.version]
    url: Annotated[str, values.url]  # of the sdist, or of the git repository
    commit: Annotated[str | None, values.optional(values.commit)]  # of the repository
    sha256: Annotated[str, values.sha256]  # of the sdist, or of the tar that `git archive` makes of the commit
    size: Annotated[int, values.size]  # bytes of the sdist or tar
    builder: Annotated[str, values.digest]  # seal of the builder image's lock, which is one of `Lock.builders`
    key: Annotated[str, values.sha256]  # hash of source, builder and flags: the wheel's key in the cache
    # The torch and the toolkit that it was compiled with, '2.7.1+cu126' and '12.6'.
    torch: Annotated[str | None, values.optional(values.version)] = None
    cuda: Annotated[str | None, values.optional(values.version)] = None
    cxx11_abi: Annotated[str | None, values.optional(values.one_of("true", "false"))] = None  # of that torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Lock:
    """Every artifact of one image. Packages are sorted by name, so equal solutions give equal bytes."""

    plan: Annotated[str, values.digest]  # of the plan it was solved for
    platform: Annotated[str, values.platform]
    python: Annotated[str, values.version]  # '3.11'
    as_of: Annotated[str | None, values.optional(values.moment)]  # RFC 3339; nothing newer was considered
    stated_seal: ClassVar[Annotated[str, values.digest, Doc(key="seal")]]
    schema: Annotated[str, constant(SCHEMA)] = SCHEMA
    # The input of the solvers; `envkit.lock.request` compares it.
    request: Annotated[tuple[tuple[str, RequestValue], ...], values.request, Doc(after="base")]
    base: LockedBase
    conda: tuple[CondaPackage, ...]
    wheels: tuple[Wheel, ...]
    # Those of the wheels that were built from source, and the locks of the images in which they were built, which
    # cannot have any themselves: so reading goes only one level deep, whatever a file contains.
    sources: Annotated[tuple[Source, ...], Doc(optional=True)] = ()
    builders: Annotated[tuple[Lock, ...], Check(lambda _: None, listed({"$ref": "#"})), Doc(optional=True)] = ()

    @property
    def size(self) -> int:
        """Bytes to download, including the packages of a bootstrapped base but not a base from a registry."""
        return sum(artifact.size for rows in (self.base.packages, self.conda, self.wheels) for artifact in rows)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-ready tree, schema and seal included."""
        return {**self._unsealed(), "seal": self.seal}

    @property
    def seal(self) -> str:
        """The SHA-256 of all other fields as canonical JSON."""
        canonical = json.dumps(self._unsealed(), sort_keys=True, separators=(",", ":")).encode()
        return f"sha256:{hashlib.sha256(canonical).hexdigest()}"

    def _unsealed(self) -> dict[str, Any]:
        tree: dict[str, Any] = {
            "schema": self.schema,
            "plan": self.plan,
            "request": {key: list(value) if isinstance(value, tuple) else value for key, value in self.request},
            "platform": self.platform,
            "python": self.python,
            "as_of": self.as_of,
            "base": self.base.to_json(),
            "conda": [package.to_json() for package in self.conda],
            "wheels": [wheel.to_json() for wheel in self.wheels],
        }
        if self.sources:
            tree["sources"] = [source.to_json() for source in self.sources]
            tree["builders"] = [builder.to_json() for builder in self.builders]
        return tree


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A package that differs between two locks."""

    name: str
    kind: str  # 'base' | 'conda' | 'wheel'
    before: str | None  # version, with the build of a conda package; None: the package is new
    after: str | None  # None: the package is gone

    def __str__(self) -> str:
        """Return `numpy 2.3.0 -> 2.4.6`, `+ pillow 13.0.0` or `- six 1.17.0`."""
        if self.before is None:
            return f"+ {self.name} {self.after}"
        return f"- {self.name} {self.before}" if self.after is None else f"{self.name} {self.before} -> {self.after}"


def moves_between(old: Lock | None, new: Lock) -> tuple[Move, ...]:
    """Return the differences between two locks, sorted by name; none without an old lock."""
    if old is None:
        return ()
    before, after = _versions(old), _versions(new)
    return tuple(
        Move(name=name, kind=kind, before=before.get((kind, name)), after=after.get((kind, name)))
        for kind, name in sorted({*before, *after}, key=lambda pair: (pair[1], pair[0]))
        if before.get((kind, name)) != after.get((kind, name))
    )


def _versions(lock: Lock) -> dict[tuple[str, str], str]:
    versions = {("base", package.name): package.version for package in lock.base.packages}
    if lock.base.digest:
        versions["base", lock.base.reference] = lock.base.digest
    # A rebuild has the same version and another build string, and is a change too.
    versions |= {("conda", package.name): f"{package.version} {package.build}" for package in lock.conda}
    return versions | {("wheel", wheel.name): wheel.version for wheel in lock.wheels}
