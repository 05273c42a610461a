"""The differences of two images: packages, CUDA stack, environment, start command, labels, size, layers. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from envkit.attest.content import CONDA, WHEEL, Content, Layer, Package
from envkit.plan.names import LABEL_PREFIX
from envkit.resolve.model import Resolution

SCHEMA = "envkit.diff/1"
STACK = ("torch", "cuda", "cudnn", "nccl", "triton", "python", "torchvision", "torchaudio", "source", "platform", "os",
         "driver.minimum", "driver.native", "gpu.archs", "gpu.ptx")  # fmt: skip
# Where no plan tells it, the packages that do: conda's name, then wheels'.
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
_LOCAL = re.compile(r"\+(?:(?P<cpu>cpu)|cu(?P<major>[0-9]{1,2})(?P<minor>[0-9]))$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One named value on both sides; None = not there."""

    name: str
    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageChange:
    """One package that was added (no `before`), removed (no `after`), or is another one."""

    kind: str  # 'conda' | 'wheel' | 'deb'
    name: str
    before: str | None  # version, with conda's build
    after: str | None
    rebuilt: bool = False  # the same version from other bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Layers:
    """Layers by what they hold; bytes are those of blobs, None where an engine does not tell them."""

    shared: int
    shared_bytes: int | None
    only_before: int
    only_before_bytes: int | None
    only_after: int
    only_after_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Everything that differs between two contents; None: one side does not tell."""

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
        """Whether nothing that both sides tell differs."""
        if self.before.id is not None and self.before.id == self.after.id:
            return True
        layers = self.layers is None or not (self.layers.only_before or self.layers.only_after)
        return layers and not any((self.packages, self.stack, self.env, self.start, self.labels))

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready tree of schema envkit.diff/1."""
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
    """What differs between two contents."""
    started = before.kind != "lock" and after.kind != "lock"
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
        env=_changes(before.env, after.env) if started else None,
        start=_changes(_start(before), _start(after)) if started else None,
        labels=_changes(before.labels, after.labels) if started else None,
        layers=layers,
    )


def stack(content: Content) -> dict[str, str]:
    """The CUDA stack as far as the packages, the plan or the labels tell it, each the first that does.

    Python and CUDA are told by major and minor number, torch without the local part of its version: the plan knows no
    more of them than that.
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
    if name == "cuda" and (local := _LOCAL.search(rows.get("torch", ""))):
        return "none" if local["cpu"] else f"{local['major']}.{local['minor']}"
    version = next((rows[candidate] for candidate in _PACKAGES.get(name, ()) if candidate in rows), None)
    if version is None and name == "python" and content.lock is not None:
        return content.lock.python
    return version


def _packages(before: Sequence[Package], after: Sequence[Package]) -> tuple[PackageChange, ...]:
    """By kind and name; a name that is installed more than once is compared with all its versions."""
    old, new = _by_name(before), _by_name(after)
    changes: list[PackageChange] = []
    for kind, name in sorted({*old, *new}):
        was, now = old.get((kind, name), []), new.get((kind, name), [])
        then, here = _versions(was), _versions(now)
        rebuilt = then == here and _other_bytes(was, now)
        if then != here or rebuilt:
            changes.append(PackageChange(kind=kind, name=name, before=then, after=here, rebuilt=rebuilt))
    return tuple(changes)


def _by_name(rows: Sequence[Package]) -> dict[tuple[str, str], list[Package]]:
    packages: dict[tuple[str, str], list[Package]] = {}
    for package in rows:
        packages.setdefault((package.kind, package.name), []).append(package)
    return packages


def _versions(rows: Sequence[Package]) -> str | None:
    return ", ".join(dict.fromkeys(package.exact for package in rows)) or None


def _other_bytes(was: Sequence[Package], now: Sequence[Package]) -> bool:
    old, new = [package.sha256 for package in was], [package.sha256 for package in now]
    return None not in (*old, *new) and old != new


def _stack_changes(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[Change, ...]:
    """A part that no package is counts only where both sides tell it."""
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
    """By what they unpack to: the same files compressed otherwise are the same layer."""
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
