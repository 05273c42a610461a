"""The base that a lock names: by digest, or as a list of Debian packages. Nothing is downloaded or made."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from envkit.build.base import at_hand as at_hand_base
from envkit.build.base import mirrored
from envkit.ground.errors import EngineError, EnvironmentProblem
from envkit.ground.platforms import of_machine
from envkit.image.reference import parse_reference
from envkit.lock import base as lock_base
from envkit.lock.base import NONE, PREFIX, SUITES
from envkit.registry.registry import Registry

if TYPE_CHECKING:
    from envkit.build.model import LocalImage
    from envkit.ground.progress import Reporter
    from envkit.ground.settings import Mirrors
    from envkit.lock.model import Lock, LockedBase
    from envkit.plan.model import BuildPlan
    from envkit.registry.transport import Transport

AtHand = Callable[[str], "LocalImage | None"]
"""Looks an image up by name in an engine's own storage; never pulls, never raises."""


def preferred_base(plan: BuildPlan, asked: str) -> str:
    """Return the base to lock for this engine: what was asked for, else the plan's, or packages where it installs some.

    Nothing runs in an image while it is assembled, so what the plan wants of the system has to be in the base already.
    """
    suite = SUITES.get(plan.resolution.os)
    if asked == "auto" and plan.system and suite is not None and plan.flavor != "devel":
        return f"{PREFIX}debian/{suite}"
    return asked


def to_lock(
    plan: BuildPlan,
    asked: str,
    *,
    mirrors: Mirrors,
    transport: Transport,
    reporter: Reporter,
    at_hand: AtHand | None = None,
) -> LockedBase:
    """Return the base for a lock, whichever engine will build it; nothing is downloaded or made.

    Digests come from the registry itself, so no engine is needed. An image of an engine's own storage that no
    registry knows has none: the lock leaves the base out then.

    Args:
        plan: what is to be built.
        asked: `auto`, an image's name, `bootstrap:debian/bookworm`, or `none`.
        mirrors: as set by the user.
        transport: connections.
        reporter: hears of a fall-back.
        at_hand: looks an image up in the storage of the engine that will build; None = the embedded engine, which
            has no storage, and which prefers a base with the plan's system packages in it.

    Raises:
        UsageError: `asked` names nothing that can be a base of this plan.
        EngineError: the registry has no such image, or refuses.
        EnvironmentProblem: no registry and no Debian mirror answers.
    """
    wanted = preferred_base(plan, asked) if at_hand is None else asked
    if wanted == NONE:
        return lock_base.nothing()
    if wanted.startswith(PREFIX):
        return lock_base.bootstrapped(wanted, plan, mirrors.debian_mirror)
    name = plan.base if wanted == "auto" else wanted
    reference = parse_reference(mirrored(name, mirrors), what=f"--base {name!r:.200}")
    if wanted != "auto" and at_hand is not None:  # first, as every container client does it
        image = at_hand(name)
        if image is not None:
            return _of_storage(name, name, image, reporter)
    if reference.digest is not None:
        return lock_base.registered(name, reference.digest)
    reporter.step(f"look up {reference}")
    try:
        manifest = Registry.of(reference, transport).manifest(reference)
    except EnvironmentProblem as error:
        if asked != "auto":
            raise
        return _without_registry(plan, error, mirrors=mirrors, reporter=reporter, at_hand=at_hand)
    if manifest is None:
        raise EngineError(f"there is no image {reference}", hint="check the image's name and tag, or --base IMAGE")
    return lock_base.registered(name, manifest.digest)


def _without_registry(
    plan: BuildPlan, error: EnvironmentProblem, *, mirrors: Mirrors, reporter: Reporter, at_hand: AtHand | None
) -> LockedBase:
    """Return the plan's base where no registry answers: the engine's own copy, else Debian's packages."""
    reference = mirrored(plan.base, mirrors)
    image = at_hand(reference) if at_hand is not None else None
    if image is not None:
        reporter.note(f"{error.message}; the base is {reference} as it is here")
        return _of_storage(plan.base, reference, image, reporter)
    suite = SUITES.get(plan.resolution.os)
    if suite is None:
        raise error
    reporter.note(f"{error.message}; the base is made from Debian's own packages")
    return lock_base.bootstrapped(f"{PREFIX}debian/{suite}", plan, mirrors.debian_mirror)


def _of_storage(name: str, reference: str, image: LocalImage, reporter: Reporter) -> LockedBase:
    digest = at_hand_base(reference, name, image).digest
    if digest is None:
        reporter.note(f"base image: {name} is in no registry, so the lock does not hold it")
        return lock_base.nothing()
    return lock_base.registered(name, digest)


def check_platform(lock: Lock, machine: str) -> None:
    """Refuse to make another machine's base from packages: their scripts would have to run here.

    Raises:
        EnvironmentProblem: the lock is for another platform than this machine's.
    """
    here = of_machine(machine)
    if lock.base.kind == "bootstrap" and (here is None or lock.platform != here.name):
        raise EnvironmentProblem(
            f"{lock.base.reference} for {lock.platform} cannot be made on {machine}",
            hint="--base IMAGE takes a registry's image for that platform",
        )
