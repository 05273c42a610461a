"""The input of the solvers for a plan, which is part of a lock; a lock with another input is stale."""

from __future__ import annotations

from envkit.ground.errors import LockError
from envkit.ground.platforms import platform
from envkit.lock import abi, closure
from envkit.lock.model import Lock, RequestValue
from envkit.plan.family import CONDA_SOURCES
from envkit.plan.model import BuildPlan

_LINUX = "5.10"  # Debian 11's kernel; packages that require a newer one are rare


def request_of(plan: BuildPlan, *, glibc: str, base: str) -> tuple[tuple[str, RequestValue], ...]:
    """Return the part of a plan that affects the result of the solvers.

    Args:
        plan: the plan to lock.
        glibc: version of glibc in the image's OS.
        base: the base's reference, or `bootstrap:debian/bookworm`, or `none`.
    """
    # These fields were added later; leaving out empty ones keeps older locks valid.
    later = (
        ("constraints", plan.constraints),
        ("allow_source", plan.allow_source),
        ("find_links", plan.find_links),
        ("indexes", plan.indexes),
        ("package_indexes", tuple(f"{name} {url}" for name, url in plan.package_indexes)),
    )
    return (
        ("os", plan.resolution.os),
        ("glibc", glibc),
        ("platform", plan.resolution.platform),
        ("python", plan.resolution.python),
        ("cuda", plan.resolution.cuda),
        ("base", base),
        ("system", plan.system),
        ("source", plan.resolution.source),
        ("index", plan.resolution.index),
        ("channels", plan.channels),
        ("virtual", virtual_packages(plan, glibc) if plan.channels else ()),
        ("conda", conda_specs(plan)),
        ("wheels", torch_wheels(plan)),
        ("pip", plan.pip),
        *((key, value) for key, value in later if value),
    )


def conda_specs(plan: BuildPlan) -> tuple[str, ...]:
    """Return the conda specs of a plan; none if it has no conda channels."""
    if not plan.channels:
        return ()
    family = plan.family if plan.resolution.source in CONDA_SOURCES else ()
    pip = ("pip",) if torch_wheels(plan) or plan.pip or plan.allow_source else ()
    return (f"python={plan.resolution.python}", *pip, *family, *plan.conda)


def torch_wheels(plan: BuildPlan) -> tuple[str, ...]:
    """Return the torch family as pip requirements; none if it comes from conda."""
    return () if plan.resolution.source in CONDA_SOURCES else plan.family


def virtual_packages(plan: BuildPlan, glibc: str) -> tuple[str, ...]:
    """Return the virtual packages of the image, `name=version=build`; nothing of this host is detected."""
    # The version of __archspec is always 1; its build is the microarchitecture, here the one that every CPU of the
    # platform supports.
    packages = {"__archspec": f"1={platform(plan.resolution.platform).machine}", "__glibc": f"{glibc}=0"}
    packages |= {"__linux": f"{_LINUX}=0", "__unix": "0=0"}
    if plan.resolution.cuda:
        packages["__cuda"] = f"{plan.resolution.cuda}=0"
    return tuple(f"{name}={value}" for name, value in sorted(packages.items()))


def differences(lock: Lock, request: tuple[tuple[str, RequestValue], ...]) -> tuple[str, ...]:
    """Return how the request of a lock differs from a request, one line for each field."""
    locked, requested = dict(lock.request), dict(request)
    return tuple(
        _difference(key, locked.get(key), requested.get(key))
        for key in dict.fromkeys((*locked, *requested))
        # A field that is null (no CUDA) differs from one that is missing.
        if locked.get(key) != requested.get(key) or (key in locked) != (key in requested)
    )


def drift(lock: Lock, request: tuple[tuple[str, RequestValue], ...], *, as_of: str | None = None) -> tuple[str, ...]:
    """Return how a lock differs from a request, one line for each field or package; nothing if it is up to date.

    Packages that the lock itself lacks come last. A change of the plan that does not affect the solvers (labels,
    variables, the text of the facts) keeps a lock valid.
    """
    lines = list(differences(lock, request))
    if as_of is not None and as_of != lock.as_of:
        lines.append(_difference("as of", lock.as_of, as_of))
    return (*lines, *closure.gaps(lock), *abi.faults(lock))


def misfit(lock: Lock, plan: BuildPlan) -> tuple[str, ...]:
    """Return how a lock differs from a plan that is about to be built, and what it lacks.

    Its own base and glibc are not compared: the glibc follows from the OS, and the builder checks `lock.base`.
    """
    locked = dict(lock.request)
    glibc, base = (value if isinstance(value, str) else "" for value in (locked.get("glibc"), locked.get("base")))
    return drift(lock, request_of(plan, glibc=glibc, base=base))


def require_fit(
    lock: Lock, plan: BuildPlan, *, where: str = "the lock", hint: str = "envkit lock writes a new one"
) -> None:
    """Refuse a lock that was made for another request than the plan's, or that is incomplete.

    Args:
        lock: the lock.
        plan: the plan to build.
        where: the lock's file, for the message.
        hint: the command that writes the right lock.

    Raises:
        LockError: they differ; the details have all differences but the first.
    """
    lines = misfit(lock, plan)
    if lines:
        raise LockError(f"{where} is stale: {lines[0]}", details=lines[1:], hint=hint)


def _difference(key: str, locked: RequestValue, requested: RequestValue) -> str:
    if isinstance(locked, tuple) and isinstance(requested, tuple):
        removed = tuple(text for text in locked if text not in requested)
        added = tuple(text for text in requested if text not in locked)
        # The same items in another order are a difference too: the order of channels is their priority.
        locked, requested = (removed, added) if removed or added else (locked, requested)
    return f"{key}: {_shown(locked)} in the lock, {_shown(requested)} requested"


def _shown(value: RequestValue) -> str:
    if isinstance(value, tuple):
        return ", ".join(value) or "nothing"
    return value or "nothing"
