"""The values of a lock: base image, conda packages and wheels by URL, SHA-256 and size in bytes."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, fields
from typing import Any

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
class DebPackage:
    """One Debian package of a bootstrapped base."""

    name: str
    version: str
    arch: str
    sha256: str | None
    size: int  # bytes of the .deb

    def to_json(self) -> dict[str, Any]:
        """Return the row of the file."""
        return {
            "name": self.name,
            "version": self.version,
            "arch": self.arch,
            "sha256": self.sha256,
            "size": self.size,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedBase:
    """The base of the image."""

    kind: str  # 'registry' | 'bootstrap' | 'none'
    reference: str  # the plan's reference, or 'bootstrap:debian/bookworm'
    digest: str | None = None  # manifest digest, for a registry's image
    suite: str | None = None  # 'bookworm', for a bootstrapped base
    packages: tuple[DebPackage, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the mapping of the file."""
        return {
            "kind": self.kind,
            "reference": self.reference,
            "digest": self.digest,
            "suite": self.suite,
            "packages": [package.to_json() for package in self.packages],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class CondaPackage:
    """One conda package."""

    name: str
    version: str
    build: str
    subdir: str  # 'linux-64' | 'noarch'
    channel: str  # 'conda-forge'
    url: str  # below CONDA_PUBLIC, also if a mirror was used
    sha256: str
    size: int  # bytes of the archive
    depends: tuple[str, ...] = ()
    noarch: str | None = None  # 'python' | 'generic'

    @property
    def file(self) -> str:
        """The archive's file name."""
        return self.url.rpartition("/")[2]

    def to_json(self) -> dict[str, Any]:
        """Return the row of the file."""
        return {
            "name": self.name,
            "version": self.version,
            "build": self.build,
            "subdir": self.subdir,
            "channel": self.channel,
            "url": self.url,
            "sha256": self.sha256,
            "size": self.size,
            "depends": list(self.depends),
            "noarch": self.noarch,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheel:
    """One wheel."""

    name: str  # normalized according to PEP 503
    version: str
    file: str
    url: str  # as in the index, without login and query; below the public PyTorch index also if a mirror was used
    sha256: str
    size: int  # bytes
    # 'pytorch': the index of the torch family; 'pypi': the Python index, or one that the definition adds; PAGE: a page
    # that neither names; BUILT: built from a row of `Lock.sources`, and `url` is that row's.
    source: str

    @property
    def requirement(self) -> str:
        """The wheel as a requirement of pip: `numpy==2.2.6`, or with its URL if it is on no index."""
        return f"{self.name} @ {self.url}" if self.source == PAGE else f"{self.name}=={self.version}"

    @property
    def download(self) -> str | None:
        """The URL of the file, None if it was built from source."""
        return None if self.source == BUILT else self.url

    def to_json(self) -> dict[str, Any]:
        """Return the row of the file."""
        return {
            "name": self.name,
            "version": self.version,
            "file": self.file,
            "url": self.url,
            "sha256": self.sha256,
            "size": self.size,
            "source": self.source,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The source of a wheel and how it was compiled. With `Lock.builders`, the wheel can be built again from it."""

    name: str  # normalized according to PEP 503
    version: str
    url: str  # of the sdist, or of the git repository
    commit: str | None  # of the repository
    sha256: str  # of the sdist, or of the tar that `git archive` makes of the commit
    size: int  # bytes of the sdist or tar
    builder: str  # seal of the builder image's lock, which is one of `Lock.builders`
    key: str  # hash of source, builder and flags: the wheel's key in the cache
    torch: str | None = None  # '2.7.1+cu126': the torch that it was compiled with
    cuda: str | None = None  # '12.6': the toolkit that it was compiled with
    cxx11_abi: str | None = None  # 'true' | 'false': of that torch

    def to_json(self) -> dict[str, Any]:
        """Return the row of the file."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Lock:
    """Every artifact of one image. Packages are sorted by name, so equal solutions give equal bytes."""

    plan: str  # digest of the plan it was solved for
    request: tuple[tuple[str, RequestValue], ...]  # the input of the solvers; `envkit.lock.request` compares it
    platform: str  # 'linux-64' | 'linux-aarch64'
    python: str  # '3.11'
    as_of: str | None  # RFC 3339; nothing newer was considered
    base: LockedBase
    conda: tuple[CondaPackage, ...]
    wheels: tuple[Wheel, ...]
    sources: tuple[Source, ...] = ()  # of the wheels that were built from source
    builders: tuple[Lock, ...] = ()  # the locks of the images in which they were built
    schema: str = SCHEMA

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
