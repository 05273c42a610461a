"""The input of the solvers for a plan, as it is written to a lock; comparing two shows whether a lock is stale."""

from __future__ import annotations

from envkit.ground.errors import LockError
from envkit.ground.platforms import platform
from envkit.lock import abi, closure
from envkit.lock.model import Asked, Lock
from envkit.plan.family import CONDA_SOURCES
from envkit.plan.model import BuildPlan

_LINUX = "5.10"  # Debian 11's kernel; packages that ask for a newer one are rare


def request_of(plan: BuildPlan, *, glibc: str, base: str) -> tuple[tuple[str, Asked], ...]:
    """The summary: everything that decides what a solver answers, and nothing else of the plan.

    Args:
        plan: the plan to lock.
        glibc: version of glibc in the image's OS.
        base: the base's reference, or `bootstrap:debian/bookworm`, or `none`.
    """
    # Locks of plans without it stay as they are.
    later = (("constraints", plan.constraints), ("allow_source", plan.allow_source))
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
    """The conda specs of a plan; none where it has no conda channels."""
    if not plan.channels:
        return ()
    family = plan.family if plan.resolution.source in CONDA_SOURCES else ()
    pip = ("pip",) if torch_wheels(plan) or plan.pip or plan.allow_source else ()
    return (f"python={plan.resolution.python}", *pip, *family, *plan.conda)


def torch_wheels(plan: BuildPlan) -> tuple[str, ...]:
    """The torch family as requirements; none where it comes from conda."""
    return () if plan.resolution.source in CONDA_SOURCES else plan.family


def virtual_packages(plan: BuildPlan, glibc: str) -> tuple[str, ...]:
    """The machine as a conda solver sees it, `name=version=build`: the image's own, never this host."""
    packages = {"__archspec": f"1={platform(plan.resolution.platform).machine}", "__glibc": f"{glibc}=0"}
    packages |= {"__linux": f"{_LINUX}=0", "__unix": "0=0"}
    if plan.resolution.cuda:
        packages["__cuda"] = f"{plan.resolution.cuda}=0"
    return tuple(f"{name}={value}" for name, value in sorted(packages.items()))


def drift(lock: Lock, asked: tuple[tuple[str, Asked], ...], *, as_of: str | None = None) -> tuple[str, ...]:
    """How a lock differs from what is asked now, one line for each field or package; nothing when it fits.

    What the lock's own rows lack comes last. A plan that differs only in what no solver sees (labels, variables, the
    text of the facts) leaves a lock valid.
    """
    then, now = dict(lock.request), dict(asked)
    lines = [
        _difference(key, then.get(key), now.get(key))
        for key in dict.fromkeys((*then, *now))
        if then.get(key) != now.get(key) or (key in then) != (key in now)
    ]
    if as_of is not None and as_of != lock.as_of:
        lines.append(_difference("as of", lock.as_of, as_of))
    return (*lines, *closure.gaps(lock), *abi.faults(lock))


def misfit(lock: Lock, plan: BuildPlan) -> tuple[str, ...]:
    """How a lock differs from a plan that is about to be built, and what it lacks, with its own base and glibc.

    The glibc follows from the OS, which is compared; the base is the builder's to compare with `lock.base`.
    """
    then = dict(lock.request)
    glibc, base = then.get("glibc"), then.get("base")
    text = {key: value if isinstance(value, str) else "" for key, value in (("glibc", glibc), ("base", base))}
    return drift(lock, request_of(plan, glibc=text["glibc"], base=text["base"]))


def require_fit(
    lock: Lock, plan: BuildPlan, *, where: str = "the lock", hint: str = "envkit lock writes a new one"
) -> None:
    """Refuse a lock that was made for another request than the plan's, or lacks what was asked for.

    Args:
        lock: the lock.
        plan: what is about to be built.
        where: the lock's file, for the message.
        hint: the command that makes the right lock.

    Raises:
        LockError: they differ; the details hold every difference after the first.
    """
    lines = misfit(lock, plan)
    if lines:
        raise LockError(f"{where} is stale: {lines[0]}", details=lines[1:], hint=hint)


def _difference(key: str, then: Asked, now: Asked) -> str:
    if isinstance(then, tuple) and isinstance(now, tuple):
        gone, come = tuple(text for text in then if text not in now), tuple(text for text in now if text not in then)
        # The same items in another order are another request: the first channel wins.
        then, now = (gone, come) if gone or come else (then, now)
    return f"{key}: {_shown(then)} in the lock, {_shown(now)} requested"


def _shown(value: Asked) -> str:
    if isinstance(value, tuple):
        return ", ".join(value) or "nothing"
    return value or "nothing"
