"""The build plan: everything that decides an image's content, frozen, with one canonical form and digest.

Mirrors, engines and tags are not part of a plan, so the same plan gives the same image on another network. See
`envkit.ground.settings.Mirrors`.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Annotated, Any

from envkit.ground.records import Doc, Row, choice, flag, number
from envkit.resolve.model import Resolution

SCHEMA = "envkit.plan/1"
PREFIX = "/opt/env"
TIERS = ("quick", "standard", "deep")

_EXPLANATIONS = ("reasons", "warnings", "sources", "rejected_count", "files")  # `family` has the pins of the files

_MAPPINGS = ("solve_env", "env", "labels", "package_indexes")  # pairs in a plan, mappings in its JSON
_ADDITIONS = (  # keys that were added later
    "copy", "ports", "volumes", "allow_source", "constraints", "find_links", "indexes", "package_indexes", "bytecode",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Installer(Row):
    """The Miniconda installer of the build stage."""

    file: str
    url: str
    sha256: str
    conda: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied(Row):
    """A file or folder of a project to copy into the image; see `envkit.plan.copying`."""

    source: str  # relative to the definition's folder
    target: str  # absolute path in the image
    is_file: bool
    digest: str  # 'sha256:...' of names, modes and contents

    @property
    def into(self) -> str:
        """The folder of the image that COPY copies into."""
        return (self.target.rpartition("/")[0] or "/") if self.is_file else self.target

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-ready tree."""
        return {"from": self.source, "to": self.target, "file": self.is_file, "digest": self.digest}


@dataclass(frozen=True, slots=True, kw_only=True)
class Smoke(Row):
    """How the image is verified after the build."""

    tier: Annotated[str, choice(*TIERS), Doc(f"which checks run: {', '.join(TIERS)}")] = "quick"
    # With Docker's default of 64 MiB, DataLoader workers run out of shared memory.
    shm_mb: Annotated[int, number(1, 1 << 20), Doc("size of /dev/shm in MiB")] = 1024
    num_workers: Annotated[int, number(0, 64), Doc("workers of the data loader check")] = 2
    prefetch_factor: Annotated[int, number(1, 64), Doc("batches that each worker prefetches")] = 2
    batch_mb: Annotated[int, number(1, 64), Doc("size of one batch in MiB")] = 16
    pin_memory: Annotated[bool, flag(), Doc("whether the loader pins its batches")] = True
    compile: Annotated[
        str, choice("required", "optional", "absent"), Doc("torch.compile: required, optional or absent")
    ] = "optional"


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildPlan(Row):
    """One image to build. Equal plans have equal digests, wherever and whenever they were made."""

    name: str
    title: str
    resolution: Resolution
    template: str  # 'miniconda' | 'wheels', or the name of a user's template
    flavor: str  # 'runtime' | 'devel'
    os_family: str  # 'deb' | 'rpm'
    base: str  # final stage's image by tag, registry written out
    build_base: str  # build stage's image
    installer: Installer | None
    family: tuple[str, ...]  # torch and its companions, pinned: conda specs or pip requirements
    channels: tuple[str, ...]  # conda channels, first wins; empty for the wheels template
    solve_env: tuple[tuple[str, str], ...]  # CONDA_OVERRIDE_*: virtual packages of the build stage alone
    interpreter: str | None  # command of the OS's own Python for the wheels template: 'python3', 'python3.12'
    conda: tuple[str, ...]  # conda specs besides the torch family and Python
    pip: tuple[str, ...]  # pip specs besides the torch family
    system: tuple[str, ...]  # apt or dnf/yum package names of the final stage
    build_system: tuple[str, ...]  # the same for the build stage
    env: tuple[tuple[str, str], ...]
    labels: tuple[tuple[str, str], ...]
    features: tuple[str, ...]
    user: str  # 'uid:gid', numeric
    workdir: str
    entrypoint: tuple[str, ...]
    cmd: tuple[str, ...]
    smoke: Smoke
    facts_digest: str
    prefix: str = PREFIX
    copy: tuple[Copied, ...] = ()  # later entries overwrite earlier ones
    ports: tuple[str, ...] = ()  # '8888/tcp'
    volumes: tuple[str, ...] = ()  # absolute paths
    allow_source: tuple[str, ...] = ()  # packages that may be built from source, see `envkit.plan.source_spec`
    constraints: tuple[str, ...] = ()  # versions of packages that other packages require, as pip specs
    find_links: tuple[str, ...] = ()  # URLs of pages that link to more wheels
    indexes: tuple[str, ...] = ()  # URLs of more package indexes, searched before the Python index
    package_indexes: tuple[tuple[str, str], ...] = ()  # package, URL of the only index that it may come from
    bytecode: bool = True  # compile the modules
    # The folder that `copy` reads from on this machine, so it is not in the JSON or the digest. Empty: the current one.
    folder: str = field(default="", compare=False)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-ready tree, schema included."""
        tree = {"schema": SCHEMA, **Row.to_json(self), "resolution": self.resolution.to_json()}
        tree |= {key: dict(getattr(self, key)) for key in _MAPPINGS}
        del tree["folder"]
        # Empty ones are left out, so older plans keep their digests.
        return {key: value for key, value in tree.items() if key not in _ADDITIONS or value not in ([], {}, True)}

    def canonical(self) -> bytes:
        """Return the plan as canonical JSON: sorted keys, no spaces, UTF-8, final newline."""
        return _canonical(self.to_json())

    @property
    def digest(self) -> str:
        """`sha256:` and a hex digest: the plan's identity.

        It covers everything that affects the image. It leaves out what only explains it (the resolution's reasons and
        warnings, and the facts), so a reworded explanation of the same choice does not change the digest.
        """
        tree = self.to_json()
        resolution = {name: value for name, value in tree["resolution"].items() if name not in _EXPLANATIONS}
        del tree["facts_digest"]
        return "sha256:" + hashlib.sha256(_canonical(tree | {"resolution": resolution})).hexdigest()


def _canonical(tree: dict[str, Any]) -> bytes:
    return json.dumps(tree, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"
