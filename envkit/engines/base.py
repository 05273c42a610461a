"""Find the base image of a build: by digest from a registry, else a local image, else one built of Debian packages."""

from __future__ import annotations

import hashlib
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from envkit.engines import bootstrap
from envkit.engines.bootstrap import RootOptions
from envkit.engines.journal import Journal
from envkit.engines.model import BaseImage, BuildOptions, Engine, LocalImage
from envkit.ground.errors import EnvironmentProblem, LockError, UsageError
from envkit.ground.paths import cache_dir
from envkit.image.name import pinned_digest, registry_of, split_tag
from envkit.lock import apt
from envkit.lock.base import PREFIX, SUITES, suite_of

if TYPE_CHECKING:
    from envkit.engines.log import BuildLog
    from envkit.ground.progress import Reporter
    from envkit.ground.settings import Mirrors
    from envkit.lock.model import LockedBase

REPOSITORY = "localhost/envkit-base"  # with a registry, so that no engine looks for it on Docker Hub
_HUB = "docker.io/"
_ENV = {"PATH": bootstrap.PATH}


class Bases:
    """Finds base images for one build and looks up each only once. `deadline` is on the monotonic clock."""

    def __init__(
        self,
        engine: Engine,
        options: BuildOptions,
        log: BuildLog,
        reporter: Reporter,
        state: Path,
        *,
        deadline: float | None = None,
    ) -> None:
        self._engine, self._options, self._log, self._reporter = engine, options, log, reporter
        self._state, self._deadline = state, deadline
        self._known: dict[tuple[str, str, str], BaseImage] = {}

    def find(self, planned: str, *, requested: str, system: str) -> BaseImage:
        """Return the base for an image of the plan.

        Args:
            planned: the plan's reference, including the registry.
            requested: `auto`, an image's name, or `bootstrap:debian/bookworm`.
            system: the plan's operating system, which determines the fallback.

        Raises:
            UsageError: `requested` is none of these.
            EngineError: the registry answers, but does not have the image.
            EnvironmentProblem: no registry answers and there is no fallback.
        """
        key = (planned, requested, system)
        if key not in self._known:
            resolved = self._look_up(planned, requested, system)
            self._known[key] = self._bootstrapped(resolved) if isinstance(resolved, str) else resolved
        return self._known[key]

    def locked(self, base: LockedBase) -> BaseImage:
        """Return the base that a lock names.

        Raises:
            LockError: the lock has no digest for it.
            As `envkit.engines.bootstrap.make`, if it has to be bootstrapped.
        """
        if base.kind == "bootstrap":
            return self._of_lock(base)
        if base.digest is None:
            raise LockError(f"the lock's base {base.reference} has no digest", hint="run envkit lock again")
        reference = mirrored(base.reference, self._options.mirrors)
        pinned = f"{reference}@{base.digest}"
        return BaseImage(reference=pinned, digest=base.digest, origin="registry", name=base.reference)

    def _look_up(self, planned: str, requested: str, system: str) -> BaseImage | str:
        """Return the image, or the Debian suite to build it from."""
        if requested.startswith(PREFIX):
            return suite_of(requested)
        return self._automatic(planned, system) if requested == "auto" else self._named(requested)

    def _automatic(self, planned: str, system: str) -> BaseImage | str:
        reference = mirrored(planned, self._options.mirrors)
        try:
            return self._registered(reference, planned)
        except EnvironmentProblem as error:
            reason = error
        local = self._engine.local(reference)
        if local is not None:
            self._reporter.note(f"base image: using the local {reference}, because no registry answers")
            return local_base(reference, planned, local)
        if system not in SUITES:
            raise reason
        self._reporter.note(f"base image: no registry answers for {reference}; building it from Debian packages")
        return SUITES[system]

    def _named(self, name: str) -> BaseImage:
        """Return the image that `--base` names: a local one first, as container clients do, then the registry's."""
        if name.startswith("-") or any(char.isspace() for char in name):
            raise UsageError(f"--base {name!r:.100} is not an image's name", hint="--base debian:bookworm-slim")
        local = self._engine.local(name)
        if local is not None:
            return local_base(name, name, local)
        return self._registered(name, name)

    def _registered(self, reference: str, name: str) -> BaseImage:
        if (pinned := pinned_digest(reference)) is not None:
            return BaseImage(reference=reference, digest=pinned, origin="registry", name=name)
        self._reporter.step(f"look up {reference}")
        digest = self._engine.digest(reference)
        return BaseImage(reference=f"{reference}@{digest}", digest=digest, origin="registry", name=name)

    def _bootstrapped(self, suite: str) -> BaseImage:
        """Return a base of the suite's current packages, which is built once and kept in the engine's storage."""
        mirror, notes = self._options.mirrors.debian_mirror, Journal(self._state, self._engine.name)
        lines = apt.sources(suite, mirror)
        # The tag contains a hash of these, so another mirror or a changed recipe gives a new base.
        recipe = "\n".join((suite, *lines, *bootstrap.RECIPE))
        name = f"{REPOSITORY}:debian-{suite}-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"
        kept = self._kept(name)
        if kept is not None:
            return kept
        self._reporter.step(f"build the base image from Debian {suite} packages")
        with notes, tempfile.TemporaryDirectory(prefix="envkit-", ignore_cleanup_errors=True) as folder:
            notes.folder(Path(folder))
            Path(folder).chmod(0o755)  # the engine's client and apt's own user have to be able to enter it
            tar = bootstrap.make(
                suite, (), Path(folder), RootOptions(mirror=mirror, log=self._log, limit_s=self._left()), notes
            )
            self._engine.import_base(tar, name, _ENV)
        return BaseImage(reference=name, digest=None, origin="bootstrap", name=name)

    def _of_lock(self, base: LockedBase) -> BaseImage:
        """Return a base of the lock's packages: the same root as in the embedded engine's images, from its cache."""
        from envkit.engines.debian_root import from_packages, layer_key  # noqa: PLC0415
        from envkit.engines.layer_cache import LayerCache  # noqa: PLC0415 - only for such locks
        from envkit.image.layout import blob_of  # noqa: PLC0415

        name = f"{REPOSITORY}:debian-{base.suite}-{layer_key(base)[:12]}"
        kept = self._kept(name)
        if kept is not None:
            return kept
        made = from_packages(
            base,
            LayerCache(cache_dir()),
            RootOptions(mirror=self._options.mirrors.debian_mirror, log=self._log, limit_s=self._left()),
            self._reporter,
            state=self._state,
            no_cache=self._options.no_cache,
            engine=self._engine.name,
        )
        self._reporter.step(f"import the base image into {self._engine.name}")
        self._engine.import_base(blob_of(made.layers[0]), name, _ENV)
        return BaseImage(reference=name, digest=None, origin="bootstrap", name=name)

    def _kept(self, name: str) -> BaseImage | None:
        image = None if self._options.no_cache else self._engine.local(name)
        if image is None:
            return None
        self._reporter.note(f"base image: {name} from an earlier build (--no-cache rebuilds it)")
        return BaseImage(reference=name, digest=None, origin="bootstrap", name=name)

    def _left(self) -> float | None:
        return None if self._deadline is None else max(self._deadline - time.monotonic(), 0.0)


def mirrored(reference: str, mirrors: Mirrors) -> str:
    """Return a reference in which the mirror, if there is one, replaces Docker Hub. Hub's names may be short."""
    bare = reference.removeprefix(_HUB)
    name = bare.partition("@")[0]
    if not mirrors.registry or (bare == reference and registry_of(name) is not None):
        return reference
    return f"{mirrors.registry}/{bare}" if "/" in name else f"{mirrors.registry}/library/{bare}"


def local_base(reference: str, name: str, image: LocalImage) -> BaseImage:
    """Return a local image as a base, pinned to the digest under which the engine pulled it, if it has one."""
    repository, tag = split_tag(reference.partition("@")[0])
    digests = dict(repo_digest.split("@", 1) for repo_digest in image.digests if "@" in repo_digest)
    # Some engines shorten Docker Hub's names, others do not.
    short = repository.removeprefix(f"{_HUB}library/").removeprefix(_HUB)
    digest = digests.get(repository) or digests.get(short)
    pinned = f"{repository}:{tag or 'latest'}@{digest}" if digest and "@" not in reference else reference
    return BaseImage(reference=pinned, digest=digest, origin="local", name=name)
