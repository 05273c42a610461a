"""The lock's values: base image, conda packages and wheels by URL, SHA-256 and size in bytes."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, fields
from typing import Any

SCHEMA = "envkit.lock/2"
UNSEALED = "envkit.lock/1"
"""The schema of locks without a seal, of before 0.2. They are read, kept as they are, and checked for completeness."""
FILE = "envkit.lock"
BUILT = "built"
"""The `source` of a wheel that envkit built: no index has it."""
CONDA_PUBLIC = "https://conda.anaconda.org"
"""The root below which conda URLs of a lock lie; a mirror takes its place when something is fetched."""

Asked = str | tuple[str, ...] | None
"""One field of a request's summary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DebPackage:
    """One Debian package of a bootstrapped base."""

    name: str
    version: str
    arch: str
    sha256: str | None
    size: int  # bytes of the .deb

    def to_json(self) -> dict[str, Any]:
        """The row as it stands in the file."""
        return {
            "name": self.name,
            "version": self.version,
            "arch": self.arch,
            "sha256": self.sha256,
            "size": self.size,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedBase:
    """What the image stands on."""

    kind: str  # 'registry' | 'bootstrap' | 'none'
    reference: str  # the plan's reference, or 'bootstrap:debian/bookworm'
    digest: str | None = None  # manifest digest, for a registry's image
    suite: str | None = None  # 'bookworm', for a bootstrapped base
    packages: tuple[DebPackage, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The fields as they stand in the file."""
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
    url: str  # below CONDA_PUBLIC, whatever mirror answered
    sha256: str
    size: int  # bytes of the archive
    depends: tuple[str, ...] = ()
    noarch: str | None = None  # 'python' | 'generic'

    @property
    def file(self) -> str:
        """The archive's file name."""
        return self.url.rpartition("/")[2]

    def to_json(self) -> dict[str, Any]:
        """The row as it stands in the file."""
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

    name: str  # normalized as PEP 503 has it
    version: str
    file: str
    url: str  # as the index offers it, without login and query; below the public PyTorch index where a mirror was used
    sha256: str
    size: int  # bytes
    source: str  # 'pytorch' | 'pypi' | BUILT: made from a row of `Lock.sources`, whose URL it has

    @property
    def download(self) -> str | None:
        """The URL of the file itself, None where it was built from source."""
        return None if self.source == BUILT else self.url

    def to_json(self) -> dict[str, Any]:
        """The row as it stands in the file."""
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
    """What a wheel was built from, and for what. With `Lock.builders` it is all that is needed to build it again."""

    name: str  # normalized as PEP 503 has it
    version: str
    url: str  # of the sdist, or of the git repository
    commit: str | None  # of the repository
    sha256: str  # of the sdist, or of the tar that `git archive` makes of the commit
    size: int  # bytes of the same
    builder: str  # seal of the lock of the builder image, one of `Lock.builders`
    key: str  # hash of source, builder and flags: its name in the cache
    torch: str | None = None  # '2.7.1+cu126': the torch that it was compiled with
    cuda: str | None = None  # '12.6': the toolkit that it was compiled with
    cxx11_abi: str | None = None  # 'true' | 'false': of that torch

    def to_json(self) -> dict[str, Any]:
        """The row as it stands in the file."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Lock:
    """Every artifact of one image. Packages are sorted by name, so equal solutions give equal bytes."""

    plan: str  # digest of the plan it was solved for
    request: tuple[tuple[str, Asked], ...]  # what was asked of the solvers; `envkit.lock.request` compares it
    platform: str  # 'linux-64' | 'linux-aarch64'
    python: str  # '3.11'
    as_of: str | None  # RFC 3339; nothing newer was considered
    base: LockedBase
    conda: tuple[CondaPackage, ...]
    wheels: tuple[Wheel, ...]
    sources: tuple[Source, ...] = ()  # of the wheels that were built from source
    builders: tuple[Lock, ...] = ()  # of the images in which they were built
    schema: str = SCHEMA  # or UNSEALED

    @property
    def size(self) -> int:
        """Bytes to download, the base's packages included and a registry's base left out."""
        return sum(artifact.size for rows in (self.base.packages, self.conda, self.wheels) for artifact in rows)

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready tree, schema and seal included."""
        tree = self._unsealed()
        return tree if self.schema == UNSEALED else {**tree, "seal": self.seal}

    @property
    def seal(self) -> str:
        """The SHA-256 of all the rest of the tree as canonical JSON."""
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


def changes_between(old: Lock | None, new: Lock) -> tuple[str, ...]:
    """`numpy 2.3.0 -> 2.4.6`, `+ pillow 13.0.0`, `- six 1.17.0`, sorted by name; nothing without an old lock."""
    if old is None:
        return ()
    before, after = _versions(old), _versions(new)
    lines = []
    for kind, name in sorted({*before, *after}, key=lambda pair: (pair[1], pair[0])):
        was, now = before.get((kind, name)), after.get((kind, name))
        if was == now:
            continue
        if was is None:
            lines.append(f"+ {name} {now}")
        elif now is None:
            lines.append(f"- {name} {was}")
        else:
            lines.append(f"{name} {was} -> {now}")
    return tuple(lines)


def _versions(lock: Lock) -> dict[tuple[str, str], str]:
    versions = {("base", package.name): package.version for package in lock.base.packages}
    if lock.base.digest:
        versions["base", lock.base.reference] = lock.base.digest
    versions |= {("conda", package.name): f"{package.version} {package.build}" for package in lock.conda}
    return versions | {("wheel", wheel.name): wheel.version for wheel in lock.wheels}
