"""Find the base for a lock: an image by digest, or a list of Debian packages. Nothing is downloaded or built."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from envkit.engines.base import local_base, mirrored
from envkit.ground.errors import EngineError, EnvironmentProblem
from envkit.ground.platforms import of_machine
from envkit.image.name import parse_reference
from envkit.lock import base as lock_base
from envkit.lock.base import NONE, PREFIX, SUITES
from envkit.registry.registry import Registry

if TYPE_CHECKING:
    from envkit.engines.model import LocalImage
    from envkit.ground.progress import Reporter
    from envkit.ground.settings import Mirrors
    from envkit.lock.model import Lock, LockedBase
    from envkit.plan.model import BuildPlan
    from envkit.registry.transport import Transport

FindLocal = Callable[[str], "LocalImage | None"]
"""Looks up an image by name in an engine's own storage. Never pulls and never raises."""


def preferred_base(plan: BuildPlan, requested: str) -> str:
    """Return the base for a lock of the embedded engine: Debian packages if the plan needs some, else `requested`.

    The embedded engine runs nothing in the image, so system packages have to be in the base already.
    """
    suite = SUITES.get(plan.resolution.os)
    # The base of a devel image has the CUDA toolkit, which a base of Debian packages lacks.
    if requested == "auto" and plan.system and suite is not None and plan.flavor != "devel":
        return f"{PREFIX}debian/{suite}"
    return requested


def to_lock(
    plan: BuildPlan,
    requested: str,
    *,
    mirrors: Mirrors,
    transport: Transport,
    reporter: Reporter,
    local: FindLocal | None = None,
) -> LockedBase:
    """Return the base for a lock, for any engine.

    Digests come from the registry itself, so no engine is needed. A local image that was not pulled from a registry has
    no digest; the lock then has no base.

    Args:
        plan: the plan to build.
        requested: `auto`, an image's name, `bootstrap:debian/bookworm`, or `none`.
        mirrors: the user's mirrors.
        transport: connections.
        reporter: receives a note if a fallback is used.
        local: looks up an image in the storage of the engine that will build. None = the embedded engine, which has no
            storage and prefers a base that contains the plan's system packages.

    Raises:
        UsageError: `requested` cannot be a base of this plan.
        EngineError: the registry does not have the image, or refuses access.
        EnvironmentProblem: neither a registry nor a Debian mirror answers.
    """
    base = preferred_base(plan, requested) if local is None else requested
    if base == NONE:
        return lock_base.nothing()
    if base.startswith(PREFIX):
        return lock_base.bootstrapped(base, plan, mirrors.debian_mirror)
    name = plan.base if base == "auto" else base
    reference = parse_reference(mirrored(name, mirrors), what=f"--base {name!r:.200}")
    if base != "auto" and local is not None:  # a local image first, as container clients do
        image = local(name)
        if image is not None:
            return _of_storage(name, name, image, reporter)
    if reference.digest is not None:
        return lock_base.registered(name, reference.digest)
    reporter.step(f"look up {reference}")
    try:
        manifest = Registry.of(reference, transport).manifest(reference)
    except EnvironmentProblem as error:
        if requested != "auto":
            raise
        return _without_registry(plan, error, mirrors=mirrors, reporter=reporter, local=local)
    if manifest is None:
        raise EngineError(f"there is no image {reference}", hint="check the image's name and tag, or --base IMAGE")
    return lock_base.registered(name, manifest.digest)


def _without_registry(
    plan: BuildPlan, error: EnvironmentProblem, *, mirrors: Mirrors, reporter: Reporter, local: FindLocal | None
) -> LockedBase:
    """Return the plan's base if no registry answers: the engine's local copy, else Debian packages."""
    reference = mirrored(plan.base, mirrors)
    image = local(reference) if local is not None else None
    if image is not None:
        reporter.note(f"{error.message}; using the local {reference} as the base")
        return _of_storage(plan.base, reference, image, reporter)
    suite = SUITES.get(plan.resolution.os)
    if suite is None:
        raise error
    reporter.note(f"{error.message}; building the base from Debian packages")
    return lock_base.bootstrapped(f"{PREFIX}debian/{suite}", plan, mirrors.debian_mirror)


def _of_storage(name: str, reference: str, image: LocalImage, reporter: Reporter) -> LockedBase:
    digest = local_base(reference, name, image).digest
    if digest is None:
        reporter.note(f"base image: {name} was not pulled from a registry, so it is not in the lock")
        return lock_base.nothing()
    return lock_base.registered(name, digest)


def check_platform(lock: Lock, machine: str) -> None:
    """Check that a base of packages is for this machine, because the packages' scripts have to run here.

    Raises:
        EnvironmentProblem: the lock is for another platform.
    """
    here = of_machine(machine)
    if lock.base.kind == "bootstrap" and (here is None or lock.platform != here.name):
        raise EnvironmentProblem(
            f"{lock.base.reference} for {lock.platform} cannot be built on {machine}",
            hint="use --base IMAGE to take an image for that platform from a registry",
        )
