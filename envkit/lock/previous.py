"""What a new lock keeps of the old one: solvers prefer its versions, except of the packages to update. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from packaging.utils import canonicalize_name

from envkit.ground.errors import LockError, UsageError
from envkit.ground.text import similar
from envkit.lock import abi, request
from envkit.lock.model import CondaPackage, Lock, Move, RequestValue
from envkit.lock.stubs import distribution_of
from envkit.plan.model import BuildPlan

# `conda-forge::numpy>=2`, `numpy[extra]==2`
_NAME = re.compile(r"(?:[^\s:]+::)?([A-Za-z0-9_][A-Za-z0-9_.-]*)")
# Parts of the request that a base depends on. An old base is not kept if one of them changed.
_OF_BASE = ("base", "os", "platform", "system")
_SPECS = ("conda", "wheels", "pip", "allow_source")
_EVERYWHERE = frozenset({"python", "pip"})  # requested by envkit itself in every image with conda packages


@dataclass(frozen=True, slots=True, kw_only=True)
class Previous:
    """The versions that the solvers prefer, and the packages whose newest version they choose."""

    conda: tuple[CondaPackage, ...] = ()  # those of `update` included
    wheels: Mapping[str, str] = field(default_factory=dict)  # normalized name -> version; those of `update` included
    update: frozenset[str] = frozenset()  # normalized names

    def moves(self, package: CondaPackage) -> bool:
        """Return whether a conda package is to be updated, under its own name or that of its distribution."""
        return not self.update.isdisjoint(_names_of(package))


NOTHING = Previous()


def previous_of(plan: BuildPlan, old: Lock | None, update: Collection[str]) -> Previous:
    """Return what the lock of a plan keeps of an old lock.

    Args:
        plan: the plan to lock.
        old: the old lock, if there is one.
        update: names of packages to update, in any spelling.

    Raises:
        UsageError: `update` names a package that the old lock does not have.
        LockError: `update` has names, and the old lock is of another image.
    """
    if old is None:
        return NOTHING
    if update:
        _require_same_image(old, plan)
    names = {name for package in old.conda for name in _names_of(package)} | {wheel.name for wheel in old.wheels}
    for name in update:
        if canonicalize_name(name) not in names:
            raise _unknown(name, names, plan)
    resolution = plan.resolution
    return Previous(
        conda=old.conda,
        # The solver does not know what an extension was compiled for, so it would keep one of the old torch.
        wheels={
            wheel.name: wheel.version
            for wheel in old.wheels
            if abi.fits(wheel.version, resolution.torch, resolution.cuda)
        },
        update=frozenset(canonicalize_name(name) for name in update),
    )


def keeps_base(old: Lock, solver_input: Mapping[str, RequestValue]) -> bool:
    """Return whether the base of an old lock is also the one of a new request."""
    locked = dict(old.request)
    return all(locked.get(key) == solver_input.get(key) for key in _OF_BASE)


def unmoved(update: Collection[str], new: Lock, moved: Collection[Move]) -> Iterator[tuple[str, str]]:
    """Yield name and version of each package that was to be updated and has its old version."""
    asked = {canonicalize_name(name) for name in update}
    changed = {(move.kind, move.name) for move in moved}
    for package in new.conda:
        if not asked.isdisjoint(_names_of(package)) and ("conda", package.name) not in changed:
            yield package.name, package.version
    for wheel in new.wheels:
        if wheel.name in asked and ("wheel", wheel.name) not in changed:
            yield wheel.name, wheel.version


def _names_of(package: CondaPackage) -> frozenset[str]:
    return frozenset({canonicalize_name(package.name), distribution_of(package.name)})


def _require_same_image(old: Lock, plan: BuildPlan) -> None:
    if old.platform != plan.resolution.platform:
        why = f"platform: {old.platform} in the lock, {plan.resolution.platform} requested"
    else:
        locked, requested = _requested(old.request), _requested(_input_of(plan))
        if not locked or not requested or locked & requested:
            return
        why = f"it was made for {_shown(locked)}; {_shown(requested)} requested"
    raise LockError(
        f"--update: the old lock is of another image: {why}", hint="envkit lock -o FILE writes a lock of its own"
    )


def _requested(solver_input: Sequence[tuple[str, RequestValue]]) -> frozenset[str]:
    """Return the distributions that a request names."""
    texts = (text for key, value in solver_input if key in _SPECS for text in value or ())
    found = (_NAME.match(text) for text in texts)
    return frozenset(distribution_of(match[1].lower()) for match in found if match is not None) - _EVERYWHERE


def _input_of(plan: BuildPlan) -> tuple[tuple[str, RequestValue], ...]:
    return request.request_of(plan, glibc="", base="")


def _shown(names: Collection[str]) -> str:
    return f"{', '.join(sorted(names)):.200}"


def _unknown(name: str, names: Collection[str], plan: BuildPlan) -> UsageError:
    near = similar(name, names)
    hint = f"--update {near[0]}" if near else "envkit lock --json lists its packages"
    if distribution_of(name.lower()) in _requested(_input_of(plan)):
        hint = "envkit lock without --update adds it and keeps the others"
    return UsageError(f"--update {name!r:.80}: the lock has no such package", hint=hint)
