"""Which image a build starts from: by digest where a registry answers, else one at hand, else a bootstrapped one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from envkit.build.bootstrap import SUITES, bootstrap, parse
from envkit.build.model import BaseImage, BuildOptions, Engine, LocalImage, split_tag
from envkit.errors import LockError, SurroundingsError, UsageError
from envkit.lock import base as lock_base

if TYPE_CHECKING:
    from pathlib import Path

    from envkit.build.log import BuildLog
    from envkit.lock.model import LockedBase
    from envkit.plan.model import BuildPlan
    from envkit.progress import Reporter
    from envkit.settings import Mirrors

_HUB = "docker.io/"
_PINNED = re.compile(r".+@sha256:[0-9a-f]{64}")
_SUITE_OF = {system: suite for (_, suite), system in SUITES.items()}


class Bases:
    """Finds base images for one build; each is looked up once."""

    def __init__(self, engine: Engine, options: BuildOptions, log: BuildLog, reporter: Reporter, state: Path) -> None:
        self._engine, self._options, self._log, self._reporter = engine, options, log, reporter
        self._state = state
        self._known: dict[tuple[str, str, str], BaseImage] = {}

    def find(self, wanted: str, *, asked: str, system: str) -> BaseImage:
        """The base for an image of the plan.

        Args:
            wanted: the plan's reference, registry written out.
            asked: `auto`, an image's name, or `bootstrap:debian/bookworm`.
            system: the plan's operating system, for the fall-back.

        Raises:
            UsageError: `asked` is neither.
            EngineError: the registry answers and has no such image.
            SurroundingsError: no registry answers and there is no other way.
        """
        key = (wanted, asked, system)
        if key not in self._known:
            found = self._look_up(wanted, asked, system)
            self._known[key] = self._bootstrapped(found) if isinstance(found, str) else found
        return self._known[key]

    def to_lock(self, plan: BuildPlan, asked: str) -> LockedBase:
        """The same choice as a lock holds it; nothing is made or pulled.

        An image that was built on this machine has no digest in any registry: the lock leaves the base out then.

        Raises:
            As `find`.
        """
        found = self._look_up(plan.base, asked, plan.resolution.os)
        if isinstance(found, str):
            mirror = self._options.mirrors.debian_mirror
            return lock_base.bootstrapped(f"{lock_base.PREFIX}debian/{found}", plan, mirror)
        if found.digest is None:
            self._reporter.note(f"base image: {found.name} is in no registry, so the lock does not hold it")
            return lock_base.nothing()
        return lock_base.registered(found.name, found.digest)

    def locked(self, base: LockedBase) -> BaseImage:
        """The base that a lock names.

        Raises:
            LockError: the lock names none.
            SurroundingsError: it has to be bootstrapped, and that is not possible here.
        """
        if base.kind == "bootstrap" and base.suite:
            return self._bootstrapped(base.suite)
        if base.digest is None:
            raise LockError(f"the lock's base {base.reference} has no digest", hint="envkit lock writes it anew")
        reference = mirrored(base.reference, self._options.mirrors)
        pinned = f"{reference}@{base.digest}"
        return BaseImage(reference=pinned, digest=base.digest, origin="registry", name=base.reference)

    def _look_up(self, wanted: str, asked: str, system: str) -> BaseImage | str:
        """The image, or the suite of Debian that it is made from."""
        if asked.startswith("bootstrap:"):
            return parse(asked)[1]
        return self._automatic(wanted, system) if asked == "auto" else self._named(asked)

    def _automatic(self, wanted: str, system: str) -> BaseImage | str:
        reference = mirrored(wanted, self._options.mirrors)
        try:
            return self._registered(reference, wanted)
        except SurroundingsError as error:
            reason = error
        local = self._engine.local(reference)
        if local is not None:
            self._reporter.note(f"base image: {reference} as it is here, because no registry answers")
            return _local(reference, wanted, local)
        if system not in _SUITE_OF:
            raise reason
        self._reporter.note(
            f"base image: no registry answers for {reference}, so it is made from Debian's own packages"
        )
        return _SUITE_OF[system]

    def _named(self, name: str) -> BaseImage:
        """What `--base` names: an image at hand first, as every container client does it, then the registry's."""
        if name.startswith("-") or any(char.isspace() for char in name):
            raise UsageError(f"--base {name!r:.100} is not an image's name", hint="--base debian:bookworm-slim")
        local = self._engine.local(name)
        if local is not None:
            return _local(name, name, local)
        return self._registered(name, name)

    def _registered(self, reference: str, name: str) -> BaseImage:
        if _PINNED.fullmatch(reference):
            return BaseImage(reference=reference, digest=reference.rpartition("@")[2], origin="registry", name=name)
        self._reporter.step(f"look up {reference}")
        digest = self._engine.digest(reference)
        return BaseImage(reference=f"{reference}@{digest}", digest=digest, origin="registry", name=name)

    def _bootstrapped(self, suite: str) -> BaseImage:
        name, _ = bootstrap(
            suite,
            self._options.mirrors.debian_mirror,
            self._engine,
            self._log,
            self._reporter,
            state=self._state,
            anew=self._options.no_cache,
        )
        return BaseImage(reference=name, digest=None, origin="bootstrap", name=name)


def mirrored(reference: str, mirrors: Mirrors) -> str:
    """A reference, with Docker Hub replaced by the mirror that serves its images."""
    if mirrors.registry and reference.startswith(_HUB):
        return f"{mirrors.registry}/{reference.removeprefix(_HUB)}"
    return reference


def _local(reference: str, name: str, image: LocalImage) -> BaseImage:
    """An image at hand, pinned to the digest under which the engine got it, where there is one."""
    repository, tag = split_tag(reference.partition("@")[0])
    digests = dict(one.split("@", 1) for one in image.digests if "@" in one)
    # Engines write Docker Hub's names short or long.
    short = repository.removeprefix(f"{_HUB}library/").removeprefix(_HUB)
    digest = digests.get(repository) or digests.get(short)
    pinned = f"{repository}:{tag}@{digest}" if digest and "@" not in reference else reference
    return BaseImage(reference=pinned, digest=digest, origin="local", name=name)
