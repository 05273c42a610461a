"""The engine `embedded`: images without a daemon, and without running anything in them."""

from __future__ import annotations

import importlib.util
import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

from envkit.build import journal, surroundings
from envkit.build.builder import check_base, check_tags
from envkit.build.embedded import base_stage
from envkit.build.embedded.assemble import Site, assemble
from envkit.build.embedded.cache import LayerCache, cache_dir
from envkit.build.embedded.deliver import deliver
from envkit.build.embedded.outputs import Output, parse_output
from envkit.build.embedded.transport import Transport
from envkit.build.log import BuildLog
from envkit.build.model import BuildOptions, BuiltImage, Probe
from envkit.errors import LockError
from envkit.lock.base import NONE
from envkit.lock.model import CONDA_PUBLIC
from envkit.lock.places import Places
from envkit.lock.request import require_fit
from envkit.lock.store import digest_of
from envkit.render import sources
from envkit.settings import state_dir

if TYPE_CHECKING:
    from envkit.lock.model import Lock, LockedBase
    from envkit.plan.model import BuildPlan
    from envkit.progress import Reporter
    from envkit.settings import Mirrors

NAME = "embedded"
_MACHINES = ("x86_64", "aarch64")
_LIBRARIES = {"isal": "isal", "rattler": "py-rattler"}


class EmbeddedBuilder:
    """A `Builder` that assembles images itself.

    Args:
        state: folder for notes, and for images that no `--output` sends elsewhere.
        cache: folder of layers and downloads; by default below XDG_CACHE_HOME.
    """

    name = NAME

    def __init__(self, *, state: Path | None = None, cache: Path | None = None) -> None:
        self._state = state_dir() if state is None else state
        self._folder = cache_dir().parent if cache is None else cache

    def probe(self) -> Probe:
        """Whether it works on this machine; see `Builder`."""
        system, machine = os.uname().sysname, os.uname().machine
        if system != "Linux" or machine not in _MACHINES:
            return Probe(
                name=NAME, available=False, detail=f"embedded: needs Linux on x86_64 or aarch64, not {machine}"
            )
        for module, package in _LIBRARIES.items():
            if importlib.util.find_spec(module) is None:
                return Probe(
                    name=NAME,
                    available=False,
                    detail=f"embedded: the library {package} is missing",
                    hint=f"pip install {package}",
                )
        return Probe(name=NAME, available=True, detail="embedded: assembles images itself, no daemon needed")

    def locked_base(self, plan: BuildPlan, options: BuildOptions, reporter: Reporter) -> LockedBase:
        """The base for a lock; see `Builder`."""
        mirrors, _ = surroundings.certificates(options.mirrors, os.environ, reporter)
        with Transport(ca_bundle=mirrors.ca_bundle) as transport:
            return base_stage.to_lock(plan, options.base, mirrors=mirrors, transport=transport, reporter=reporter)

    def build(self, plan: BuildPlan, lock: Lock | None, options: BuildOptions, reporter: Reporter) -> BuiltImage:
        """Assemble the lock's image and hand it to `options.output`; see `Builder`.

        Raises:
            UsageError: a tag or the output is at fault, or the base lacks what the plan wants of the system.
            LockError: there is no lock, or it is one of another plan or base.
        """
        began = time.monotonic()
        check_tags(options.tags)
        output = parse_output(options.output) if options.output else self._own_place(plan, options.tags)
        if lock is None:
            raise LockError("the embedded engine assembles what a lock names, and there is none", hint="envkit lock")
        require_fit(lock, plan)
        check_base(lock, options.base)
        if lock.base.kind == NONE and options.base != NONE:
            raise LockError(
                "the lock names no base to stand on",
                hint="envkit lock --base IMAGE; --base none assembles the environment alone",
            )
        for left in journal.abandoned(self._state, NAME):
            journal.end_processes(left)
            journal.forget(left)
        mirrors, _ = surroundings.certificates(options.mirrors, os.environ, reporter)
        with BuildLog(options.log_file, reporter) as log, Transport(ca_bundle=mirrors.ca_bundle) as transport:
            site = Site(
                cache=LayerCache(self._folder / "layers"),
                folder=self._folder,
                places=places_of(plan, mirrors),
                mirrors=mirrors,
                transport=transport,
                log=log,
                reporter=reporter,
                state=self._state,
                wheel_dir=options.wheel_dir,
                deadline=began + options.timeout_s if options.timeout_s else None,
                anew=options.no_cache,
            )
            made = assemble(plan, lock, site, extra_labels=options.labels)
            if output.reference is not None:  # what a registry gets stays here as well, to be proved
                pushed = deliver(made.image, output, options.tags, transport, reporter, place=made.place)
                reporter.note(f"pushed {pushed}")
                output = self._own_place(plan, options.tags)
            place = deliver(made.image, output, options.tags, transport, reporter, place=made.place)
            made.settle()
        return BuiltImage(
            id=made.image.id,
            tags=options.tags,
            engine=NAME,
            size=made.image.size,
            base=made.base,
            plan_digest=plan.digest,
            lock=digest_of(lock),
            labels=tuple(made.labels.items()),
            duration_s=time.monotonic() - began,
            log_file=log.path,
            place=place,
            digest=made.image.digest,
        )

    def _own_place(self, plan: BuildPlan, tags: tuple[str, ...]) -> Output:
        """A layout of the image's own, which the next image of the same name replaces."""
        name = re.sub(r"[^A-Za-z0-9._-]+", "_", tags[0] if tags else plan.name)
        return Output(kind="oci", path=self._state / "images" / name)


def places_of(plan: BuildPlan, mirrors: Mirrors) -> Places:
    """Where the artefacts of a plan's lock are fetched from.

    Raises:
        UsageError: a mirror is not a URL.
    """
    own = plan.resolution.source == "pytorch"
    alias = mirrors.conda_channel_alias
    return Places(
        conda_alias=sources.url(alias, "conda_channel_alias") if alias else CONDA_PUBLIC,
        torch_index=sources.wheel_index(plan, mirrors) if own else None,
        torch_public=plan.resolution.index if own else None,
        python_index=sources.python_index(mirrors),
        debian_mirror=mirrors.debian_mirror,
        ca_bundle=mirrors.ca_bundle,
    )
