"""The base of a locked image: an image in a registry by digest, or Debian packages."""

from __future__ import annotations

from envkit.ground.errors import UsageError
from envkit.lock import apt, values
from envkit.lock.model import LockedBase
from envkit.plan.model import BuildPlan

PREFIX = "bootstrap:"
NONE = "none"
SUITES = {"debian12": "bookworm"}
"""Operating systems that can be bootstrapped from their packages, with their suite."""


def check(reference: str, plan: BuildPlan) -> None:
    """Refuse a base that is invalid or not for this plan. Opens no connection.

    Raises:
        UsageError: it is not the name of an image, cannot be bootstrapped, or has another OS than the plan.
    """
    if not reference.startswith(PREFIX):
        digest = reference.partition("@")[2]
        why = values.reference(reference) or (values.digest(digest) if "@" in reference else None)
        if why is not None:
            raise UsageError(f"--base {reference!r:.100}: {why}", hint="--base debian:bookworm-slim")
        return
    suite = suite_of(reference)
    if SUITES.get(plan.resolution.os) != suite:
        raise UsageError(f"--base {reference} is not {plan.resolution.os}, the OS of the plan", hint="--os debian12")


def bootstrapped(reference: str, plan: BuildPlan, mirror: str | None) -> LockedBase:
    """Return the base `bootstrap:debian/bookworm` including the plan's system packages.

    Raises:
        UsageError: as `check`.
        EnvironmentProblem: apt is not installed, or its mirror does not answer.
    """
    check(reference, plan)
    suite = suite_of(reference)
    packages = apt.packages(suite, plan.resolution.platform, mirror, plan.system)
    return LockedBase(kind="bootstrap", reference=reference, suite=suite, packages=packages)


def registered(reference: str, digest: str) -> LockedBase:
    """Return the base for an image in a registry; the reference is the plan's, without digest or a mirror's host."""
    return LockedBase(kind="registry", reference=reference.partition("@")[0], digest=digest)


def nothing() -> LockedBase:
    """Return the empty base: the image contains only the environment."""
    return LockedBase(kind="none", reference=NONE)


def suite_of(reference: str) -> str:
    """Return the suite of `bootstrap:debian/bookworm`.

    Raises:
        UsageError: it cannot be bootstrapped.
    """
    suite = reference.removeprefix(f"{PREFIX}debian/")
    if suite not in SUITES.values():
        raise UsageError(
            f"--base {reference!r:.100} cannot be bootstrapped",
            hint=f"--base {', '.join(f'{PREFIX}debian/{name}' for name in SUITES.values())}, or an image's name",
        )
    return suite
