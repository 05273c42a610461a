"""The engine `embedded`: builds images without a daemon; only the image's Python runs, to compile modules."""

from __future__ import annotations

import importlib.util
import os
import time
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from envkit import __version__
from envkit.assemble import sif
from envkit.assemble.assemble import AssemblyContext, assemble
from envkit.assemble.outputs import check_output, deliver, repositories
from envkit.engines import host_environment, journal, locked_base
from envkit.engines.builder import check_base, check_tags
from envkit.engines.debian_root import layer_key
from envkit.engines.layer_cache import Cached, LayerCache
from envkit.engines.log import BuildLog
from envkit.engines.model import BuildOptions, BuiltImage, Probe
from envkit.ground.cache import UNFINISHED_LAYERS
from envkit.ground.errors import EnvironmentProblem, LockError
from envkit.ground.naming import LABEL_PREFIX
from envkit.ground.paths import cache_dir, state_dir
from envkit.ground.platforms import of_machine
from envkit.ground.state import own_layout
from envkit.ground.store import Flights
from envkit.image import spec
from envkit.image.name import InLayout, InRegistry, InSif, OutputName
from envkit.lock.base import NONE
from envkit.lock.request import require_fit
from envkit.lock.store import digest_of
from envkit.registry.push import Pusher
from envkit.registry.registry import Registry
from envkit.registry.retry import Policy
from envkit.registry.tagging import check_target
from envkit.registry.transport import Transport
from envkit.render.locked import index_locations

if TYPE_CHECKING:
    from collections.abc import Callable

    from envkit.assemble.bytecode import Execute
    from envkit.assemble.layer_pool import Receive
    from envkit.ground.progress import Reporter
    from envkit.ground.settings import Mirrors
    from envkit.lock.model import Lock, LockedBase
    from envkit.plan.model import BuildPlan

NAME = "embedded"
_LIBRARIES = {"isal": "isal", "rattler": "py-rattler"}


class EmbeddedBuilder:
    """A `Builder` that assembles images itself.

    Args:
        state: folder for notes, and for images that are pushed or built without `--output`.
        cache: folder of layers and downloads; by default below XDG_CACHE_HOME.
        execute: runs the image's Python to compile its modules; None leaves them as sources.
    """

    name = NAME

    def __init__(
        self,
        *,
        state: Path | None = None,
        cache: Path | None = None,
        execute: Execute | None = None,
        receive: Receive | None = None,
    ) -> None:
        self._execute, self._receive = execute, receive
        self._state = state_dir() if state is None else state
        self._folder = cache_dir() if cache is None else cache
        self._mirrors: tuple[Mirrors, Mirrors] | None = None  # as set, and with the certificates to trust

    def probe(self) -> Probe:
        """Return whether the engine works on this machine; see `Builder`."""
        system, machine = os.uname().sysname, os.uname().machine
        if system != "Linux" or of_machine(machine) is None:
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
        """Return the base for a lock; see `Builder`."""
        mirrors = self._mirrors_of(options, reporter)
        with Transport(ca_bundle=mirrors.ca_bundle) as transport:
            return locked_base.to_lock(plan, options.base, mirrors=mirrors, transport=transport, reporter=reporter)

    def build(self, plan: BuildPlan, lock: Lock | None, options: BuildOptions, reporter: Reporter) -> BuiltImage:
        """Assemble the image of the lock and write it to `options.output`; see `Builder`.

        Raises:
            UsageError: a tag or the output is invalid, or the base lacks something that the plan needs.
            LockError: there is no lock, or it is for another plan or base.
        """
        began = time.monotonic()
        check_tags(options.tags)
        check_output(options)
        output = options.target or self._kept(plan, options.tags)
        if lock is None:
            raise LockError("there is no lock; the embedded engine needs one", hint="envkit lock")
        require_fit(lock, plan)
        check_base(lock, options.base)
        if lock.base.kind == NONE and options.base != NONE:
            raise LockError(
                "the lock has no base image",
                hint="envkit lock --base IMAGE; --base none builds an image with only the environment",
            )
        for note in journal.abandoned(self._state, NAME):
            journal.end_processes(note)
            journal.forget(note)
        mirrors = self._mirrors_of(options, reporter)
        deadline = began + options.timeout_s if options.timeout_s else None
        # Contexts end in reverse order: the pusher stops its transfers before their connections are closed.
        with (
            BuildLog(options.log_file, reporter) as log,
            Transport(ca_bundle=mirrors.ca_bundle, policy=Policy(deadline=deadline)) as transport,
            _pusher(output, plan, lock, options, self._folder, transport=transport, reporter=reporter) as pusher,
        ):
            context = AssemblyContext(
                cache=LayerCache(self._folder, partial(_offer, pusher) if pusher else None),
                indexes=index_locations(plan, mirrors),
                mirrors=mirrors,
                transport=transport,
                log=log,
                reporter=reporter,
                state=self._state,
                wheel_dir=options.wheel_dir,
                deadline=deadline,
                offline=options.offline,
                no_cache=options.no_cache,
                compression=options.compression,
                execute=self._execute,
                receive=self._receive,
            )
            _require_base(lock, context)
            made, pushed = assemble(plan, lock, context, extra_labels=options.labels), None
            if pusher is not None:
                pushed = pusher.finish(made.image, reporter)
                reporter.note(f"pushed {pushed.reference}")
            # What was pushed or converted is also kept here, so that it can be verified.
            kept = self._kept(plan, options.tags) if isinstance(output, InRegistry | InSif) else output
            location = deliver(made.image, kept, options.tags, reporter)
            if isinstance(output, InSif):
                assert isinstance(kept, InLayout)
                limit_s = None if deadline is None else max(deadline - time.monotonic(), 0.0)
                sif.write(kept.path, output.path, log, reporter, limit_s=limit_s)
                reporter.note(f"wrote {output.path}")
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
            place=location,
            pushed=pushed.reference if pushed else None,
            digest=made.image.digest,
            sent=pushed.sent if pushed else None,
        )

    def _mirrors_of(self, options: BuildOptions, reporter: Reporter) -> Mirrors:
        """Return the mirrors with the certificates to trust; the note about these is printed once."""
        if self._mirrors is None or self._mirrors[0] != options.mirrors:
            self._mirrors = options.mirrors, host_environment.certificates(options.mirrors, os.environ, reporter)[0]
        return self._mirrors[1]

    def _kept(self, plan: BuildPlan, tags: tuple[str, ...]) -> InLayout:
        """Return the image's layout in the state folder; the next image of the same name replaces it."""
        return InLayout(path=own_layout(self._state, tags[0] if tags else plan.name))


def _pusher(
    output: OutputName,
    plan: BuildPlan,
    lock: Lock,
    options: BuildOptions,
    cache: Path,
    *,
    transport: Transport,
    reporter: Reporter,
) -> AbstractContextManager[Pusher | None]:
    """Check that a registry accepts the image, and return its pusher; None for outputs that are not registries."""
    if not isinstance(output, InRegistry):
        return nullcontext()
    reference = output.reference
    registry = Registry.of(reference, transport)
    reporter.step(f"check {reference}")
    # These labels are known before the image is made; an image with other values is a different one.
    known = {"version": __version__, "plan": plan.digest, "lock": digest_of(lock)}
    labels = {f"{LABEL_PREFIX}.{name}": value for name, value in known.items()}
    free = check_target(reference, labels, registry, replace_tag=options.replace_tag)
    sources, target = repositories(reference, options.mount_from), reference.place
    flights = Flights(UNFINISHED_LAYERS.at(cache))

    def turn(digest: str, check: Callable[[], None]) -> AbstractContextManager[None]:
        """Let parallel builds send a layer that they share only once."""
        return flights.all([f"push {digest} to {target}"], check)

    # If the tag is taken, nothing is sent before `finish` has compared the digests: the push may be refused.
    return Pusher(reference, registry, sources=sources, replace_tag=options.replace_tag, ahead=free, turn=turn)


def _offer(pusher: Pusher, cached: Cached) -> None:
    # Only the blob is sent now. The history entry of the layer is part of the image's configuration.
    pusher.offer(spec.layer(cached.layer, cached.path, "envkit"))


def _require_base(lock: Lock, context: AssemblyContext) -> None:
    """Refuse an offline build whose base has to be made from Debian packages."""
    if context.offline and lock.base.kind == "bootstrap" and context.cache.get(layer_key(lock.base)) is None:
        raise EnvironmentProblem(
            f"offline, and {lock.base.reference} with its {len(lock.base.packages)} Debian packages is not in "
            f"{context.cache.root}",
            hint="run once without --offline",
        )
