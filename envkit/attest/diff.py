"""Compare two images: packages, CUDA stack, environment, start command, labels, size, layers. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from envkit.attest.content import CONDA, WHEEL, Content, Layer, Package
from envkit.ground.naming import LABEL_PREFIX
from envkit.resolve.model import Resolution

SCHEMA = "envkit.diff/1"
STACK = ("torch", "cuda", "cudnn", "nccl", "triton", "python", "torchvision", "torchaudio", "source", "platform", "os",
         "driver.minimum", "driver.native", "gpu.archs", "gpu.ptx")  # fmt: skip
# The packages that give a version of the stack, most specific first: conda's name, then those of wheels.
_PACKAGES: Mapping[str, tuple[str, ...]] = {
    "torch": ("torch", "pytorch"),
    "cuda": ("cuda-version", "nvidia-cuda-runtime", "nvidia-cuda-runtime-cu13", "nvidia-cuda-runtime-cu12",
             "nvidia-cuda-runtime-cu11"),
    "cudnn": ("cudnn", "nvidia-cudnn-cu13", "nvidia-cudnn-cu12", "nvidia-cudnn-cu11"),
    "nccl": ("nccl", "nvidia-nccl-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu11"),
    "triton": ("triton", "pytorch-triton"),
    "python": ("python",),
    "torchvision": ("torchvision",),
    "torchaudio": ("torchaudio",),
}  # fmt: skip
_SHORT: Mapping[str, Callable[[str], str]] = {
    "torch": lambda text: text.partition("+")[0],
    "python": lambda text: ".".join(text.split(".")[:2]),
    "cuda": lambda text: ".".join(text.split(".")[:2]),
    "torchvision": lambda text: text.partition("+")[0],
    "torchaudio": lambda text: text.partition("+")[0],
}
# 2.7.1+cpu, 2.7.1+cu126; PyTorch writes the minor version of CUDA with one digit.
_LOCAL = re.compile(r"\+(?:(?P<cpu>cpu)|cu(?P<major>[0-9]{1,2})(?P<minor>[0-9]))$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A named value on both sides; None if it is missing there."""

    name: str
    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageChange:
    """A package that was added (no `before`), removed (no `after`) or changed."""

    kind: str  # 'conda' | 'wheel' | 'deb'
    name: str
    before: str | None  # version, with conda's build
    after: str | None
    rebuilt: bool = False  # the same version with different bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Layers:
    """Layers by their contents; bytes are those of blobs, None if an engine does not report them."""

    shared: int
    shared_bytes: int | None
    only_before: int
    only_before_bytes: int | None
    only_after: int
    only_after_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The differences between two contents; None if one side has no data."""

    before: Content
    after: Content
    packages: tuple[PackageChange, ...] | None
    stack: tuple[Change, ...]
    env: tuple[Change, ...] | None
    start: tuple[Change, ...] | None  # entrypoint, cmd, user, workdir
    labels: tuple[Change, ...] | None
    layers: Layers | None

    @property
    def same(self) -> bool:
        """Whether no data that both sides have differs."""
        # The ID covers everything below, but one side may have more data, such as layers that were read.
        if self.before.id is not None and self.before.id == self.after.id:
            return True
        layers = self.layers is None or not (self.layers.only_before or self.layers.only_after)
        return layers and not any((self.packages, self.stack, self.env, self.start, self.labels))

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-ready document of schema envkit.diff/1."""
        layers = self.layers
        return {
            "schema": SCHEMA,
            "same": self.same,
            "before": self.before.to_json(),
            "after": self.after.to_json(),
            "packages": None
            if self.packages is None
            else [
                {
                    "kind": change.kind,
                    "name": change.name,
                    "before": change.before,
                    "after": change.after,
                    "rebuilt": change.rebuilt,
                }
                for change in self.packages
            ],
            "stack": _rows(self.stack),
            "env": _rows(self.env),
            "start": _rows(self.start),
            "labels": _rows(self.labels),
            "layers": layers and {name: getattr(layers, name) for name in Layers.__dataclass_fields__},
        }


def difference(before: Content, after: Content) -> Difference:
    """Compare two contents."""
    has_config = before.kind != "lock" and after.kind != "lock"  # a lock has no environment, command or labels
    layers = None
    if before.layers is not None and after.layers is not None:
        layers = _layers(before.layers, after.layers)
    return Difference(
        before=before,
        after=after,
        packages=None
        if before.packages is None or after.packages is None
        else _packages(before.packages, after.packages),
        stack=_stack_changes(stack(before), stack(after)),
        env=_changes(before.env, after.env) if has_config else None,
        start=_changes(_start(before), _start(after)) if has_config else None,
        labels=_changes(before.labels, after.labels) if has_config else None,
        layers=layers,
    )


def stack(content: Content) -> dict[str, str]:
    """Return the versions of the CUDA stack, each from the packages, otherwise the plan, otherwise the labels.

    Python and CUDA have major and minor number only, and torch has no local version, because plans have no more.
    """
    planned = {} if content.plan is None else _planned(content.plan.resolution)
    versions: dict[str, str] = {}
    for name in STACK:
        value = _packaged(content, name) or planned.get(name) or content.labels.get(f"{LABEL_PREFIX}.{name}")
        if value:
            versions[name] = _SHORT.get(name, str)(value)
    return versions


def _planned(resolution: Resolution) -> dict[str, str | None]:
    driver = resolution.driver
    plain = ("torch", "cudnn", "nccl", "triton", "python", "torchvision", "torchaudio", "source", "platform", "os")
    return {
        **{name: getattr(resolution, name) for name in plain},
        "cuda": resolution.cuda or "none",
        "driver.minimum": driver and driver.minimum,
        "driver.native": driver and driver.native,
        "gpu.archs": " ".join(resolution.gpu_archs or ()),
        "gpu.ptx": " ".join(resolution.ptx),
    }


def _packaged(content: Content, name: str) -> str | None:
    rows = {
        package.name: package.version for package in reversed(content.packages or ()) if package.kind in (CONDA, WHEEL)
    }
    # First, because wheels may bundle CUDA without a package for it.
    if name == "cuda" and (local := _LOCAL.search(rows.get("torch", ""))):
        return "none" if local["cpu"] else f"{local['major']}.{local['minor']}"
    version = next((rows[candidate] for candidate in _PACKAGES.get(name, ()) if candidate in rows), None)
    if version is None and name == "python" and content.lock is not None:
        return content.lock.python
    return version


def _packages(before: Sequence[Package], after: Sequence[Package]) -> tuple[PackageChange, ...]:
    """Compare packages by kind and name; all versions of a name that is installed more than once are compared."""
    by_name_before, by_name_after = _by_name(before), _by_name(after)
    changes: list[PackageChange] = []
    for kind, name in sorted({*by_name_before, *by_name_after}):
        old, new = by_name_before.get((kind, name), []), by_name_after.get((kind, name), [])
        old_version, new_version = _versions(old), _versions(new)
        rebuilt = old_version == new_version and _hashes_differ(old, new)
        if old_version != new_version or rebuilt:
            changes.append(PackageChange(kind=kind, name=name, before=old_version, after=new_version, rebuilt=rebuilt))
    return tuple(changes)


def _by_name(rows: Sequence[Package]) -> dict[tuple[str, str], list[Package]]:
    packages: dict[tuple[str, str], list[Package]] = {}
    for package in rows:
        packages.setdefault((package.kind, package.name), []).append(package)
    return packages


def _versions(rows: Sequence[Package]) -> str | None:
    return ", ".join(dict.fromkeys(package.exact for package in rows)) or None


def _hashes_differ(before: Sequence[Package], after: Sequence[Package]) -> bool:
    old, new = [package.sha256 for package in before], [package.sha256 for package in after]
    # A hash is known only from a lock, so a missing one is no difference.
    return None not in (*old, *new) and old != new


def _stack_changes(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[Change, ...]:
    """Compare two stacks; a value that is not a package's version is compared only if both sides have it."""
    return tuple(
        Change(name=name, before=before.get(name), after=after.get(name))
        for name in STACK
        if before.get(name) != after.get(name) and (name in _PACKAGES or (name in before and name in after))
    )


def _changes(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[Change, ...]:
    return tuple(
        Change(name=name, before=before.get(name), after=after.get(name))
        for name in sorted({*before, *after})
        if before.get(name) != after.get(name)
    )


def _start(content: Content) -> dict[str, str]:
    settings = {
        "entrypoint": " ".join(content.entrypoint),
        "cmd": " ".join(content.cmd),
        "user": content.user,
        "workdir": content.workdir,
        "architecture": content.architecture or "",
    }
    return {name: value for name, value in settings.items() if value}


def _layers(before: Sequence[Layer], after: Sequence[Layer]) -> Layers:
    """Compare layers by their uncompressed digest, so the compression does not matter."""
    old, new = {layer.diff_id: layer for layer in before}, {layer.diff_id: layer for layer in after}
    shared = [new[diff_id] for diff_id in new if diff_id in old]
    only_before = [old[diff_id] for diff_id in old if diff_id not in new]
    only_after = [new[diff_id] for diff_id in new if diff_id not in old]
    return Layers(
        shared=len(shared),
        shared_bytes=_bytes(shared),
        only_before=len(only_before),
        only_before_bytes=_bytes(only_before),
        only_after=len(only_after),
        only_after_bytes=_bytes(only_after),
    )


def _bytes(rows: Sequence[Layer]) -> int | None:
    sizes = [layer.size for layer in rows]
    return None if None in sizes else sum(size for size in sizes if size is not None)


def _rows(changes: Sequence[Change] | None) -> list[dict[str, Any]] | None:
    if changes is None:
        return None
    return [{"name": change.name, "before": change.before, "after": change.after} for change in changes]
