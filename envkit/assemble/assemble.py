"""A lock and its plan as an image: base, conda packages, wheels, and a small layer on top. Nothing runs in it."""

from __future__ import annotations

import hashlib
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING

from envkit.assemble import base_stage, own_layer
from envkit.assemble.base import NO_BASE
from envkit.assemble.beside import Beside
from envkit.assemble.compression import GZIP
from envkit.assemble.debian_root import from_packages
from envkit.assemble.model import WRITER_VERSION, Scheme
from envkit.assemble.wheel_stage import WheelStage
from envkit.build.labels import image_labels
from envkit.build.model import BaseImage
from envkit.ground.process import StoppedError
from envkit.image import spec
from envkit.image.layout import link
from envkit.image.spec import MTIME, LayerDigest
from envkit.plan.definition import kind_of

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping, Sequence

    from envkit.assemble.base_files import BaseFiles
    from envkit.assemble.cache import Cached, LayerCache
    from envkit.build.log import BuildLog
    from envkit.ground.progress import Reporter
    from envkit.ground.settings import Mirrors
    from envkit.lock.model import Lock
    from envkit.lock.places import Places
    from envkit.plan.model import BuildPlan
    from envkit.registry.transport import Transport

Held = tuple[tuple[str, tuple[str, ...]], ...]  # packages, and the paths that each brings
LAYERS = 40  # in all: engines take 127, and each costs a registry's client a request
_LEAST = 16  # for packages, however many the base has
_NAMED = 4  # packages that a layer's history names


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Where an image is assembled, and with what."""

    cache: LayerCache
    folder: Path  # below it lie downloads, blobs of bases, and what conda packages are installed into
    places: Places
    mirrors: Mirrors
    transport: Transport
    log: BuildLog
    reporter: Reporter
    state: Path | None = None  # folder for notes on what is being made
    wheel_dir: Path | None = None  # wheels of the user's
    deadline: float | None = None  # on the monotonic clock
    offline: bool = False
    anew: bool = False  # take no layer from the cache
    compression: str = GZIP  # of the layers of packages; what comes from elsewhere stays as it is


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembled:
    """An image whose layers are files of the cache."""

    image: spec.Image
    base: BaseImage
    labels: Mapping[str, str]
    cache: LayerCache
    kept: Mapping[str, tuple[str, Cached]] = field(default_factory=dict)  # digest -> key in the cache, and the layer

    def place(self, layer: spec.Layer, target: Path) -> None:
        """Put a layer's blob at a path: as a further name of the cache's file where that is possible."""
        if layer.digest in self.kept:
            key, cached = self.kept[layer.digest]
            self.cache.place(key, cached, target)
        else:
            link(layer, target)

    def settle(self) -> None:
        """The image was delivered: what stood there before, with names for the same files, is gone."""
        for key, cached in self.kept.values():
            self.cache.settle(key, cached)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Conda:
    """The layers of conda packages, what each package holds, and the layers' names in the cache."""

    layers: list[spec.Layer]
    held: Held
    kept: dict[str, tuple[str, Cached]]


def assemble(plan: BuildPlan, lock: Lock, site: Site, *, extra_labels: Sequence[tuple[str, str]] = ()) -> Assembled:
    """Assemble the image of a lock. Equal plans and locks give equal bytes.

    Args:
        plan: what the image is.
        lock: its artefacts, solved for this plan.
        site: where and with what.
        extra_labels: on top of the plan's.

    Raises:
        UsageError: the base lacks what the plan wants of the system.
        LockError: the lock cannot be had any more.
        IntegrityError: an artefact is not what the lock says, or is not sound.
        EngineError: a server refuses, or a package needs what this engine does not do.
        EnvironmentProblem: disk, permission, a program or a server is missing.
        TimeLimitError: the deadline is over.
    """
    kept: dict[str, tuple[str, Cached]] = {}
    base, layers = _stacked(plan, lock, site, kept)
    layers.append(_own(plan, lock, base_stage.files_of(base, lock, plan), site, kept))
    told = BaseImage(
        reference=lock.base.reference, digest=lock.base.digest, origin=lock.base.kind, name=lock.base.reference
    )
    labels = image_labels(plan, told, extra_labels, os.environ, lock)
    image = spec.image(base, layers, spec.runtime_of(plan), labels, lock.platform)
    return Assembled(image=image, base=told, labels=labels, cache=site.cache, kept=kept)


def budgets(below: int, *, conda: bool, wheels: bool) -> tuple[int, int]:
    """Layers for conda packages and for wheels, on a base of so many layers and with one layer on top."""
    left = max(LAYERS - below - 1, min(_LEAST, spec.MAX_LAYERS - below - 1))
    if conda and wheels:
        return left - left // 2, left // 2
    return (left, 0) if conda else (0, left)


def scheme_of(plan: BuildPlan, lock: Lock) -> Scheme:
    """Where wheels belong: in conda's Python, or in a virtual environment."""
    conda = kind_of(plan.template) != "wheels"
    return Scheme(python=lock.python, prefix=plan.prefix, headers=f"include/python{lock.python}" if conda else None)


def made_by(names: Sequence[str]) -> str:
    """What a layer's history says: `envkit: torch 2.7.1`, or the first few of many."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"envkit: {', '.join(names[:_NAMED])}{more}"


def _stacked(
    plan: BuildPlan, lock: Lock, site: Site, kept: dict[str, tuple[str, Cached]]
) -> tuple[spec.Base, list[spec.Layer]]:
    """The base, and the layers of the packages. A base is made from Debian's packages while others download."""
    if lock.base.kind == "bootstrap":
        base_stage.check_platform(lock, os.uname().machine)
        with Beside(lambda talk, stop: _from_packages(lock, site, talk, stop), site.reporter) as beside:
            layers = _packages(plan, lock, site, kept, below=1, watch=beside.check)
            base, key, cached = beside.result()
        kept[base.layers[0].digest] = key, cached
        return base, layers
    base = NO_BASE
    if lock.base.kind != "none":
        with site.cache.flights.all([f"base {lock.base.digest}"], site.transport.policy.check):
            base = base_stage.from_registry(
                lock.base,
                lock.platform,
                mirrors=site.mirrors,
                transport=site.transport,
                folder=site.folder / "blobs",
                reporter=site.reporter,
                offline=site.offline,
            )
    return base, _packages(plan, lock, site, kept, below=len(base.layers), watch=_nothing)


def _nothing() -> None:
    """No work runs beside."""


def _packages(
    plan: BuildPlan,
    lock: Lock,
    site: Site,
    kept: dict[str, tuple[str, Cached]],
    *,
    below: int,
    watch: Callable[[], None],
) -> list[spec.Layer]:
    """Layers of conda packages, and of wheels on top of them, made side by side; `below` counts the base's."""
    for_conda, for_wheels = budgets(below, conda=bool(lock.conda), wheels=bool(lock.wheels))
    with Beside(lambda talk, stop: _conda(plan, lock, site, for_conda, talk=talk, stop=stop), site.reporter) as conda:

        def check() -> None:
            watch()
            conda.check()

        def held() -> Held:
            return conda.result().held

        wheels = _wheels(lock, site, plan, for_wheels, kept=kept, watch=check, below=held)
        made = conda.result()
    kept |= made.kept
    return [*made.layers, *wheels]


def _from_packages(lock: Lock, site: Site, reporter: Reporter, stop: threading.Event) -> tuple[spec.Base, str, Cached]:
    return from_packages(
        lock.base,
        mirror=site.mirrors.debian_mirror,
        cache=site.cache,
        log=site.log,
        reporter=reporter,
        state=site.state,
        anew=site.anew,
        limit_s=None if site.deadline is None else max(0.0, site.deadline - time.monotonic()),
        stop=stop,
    )


def _conda(plan: BuildPlan, lock: Lock, site: Site, budget: int, *, talk: Reporter, stop: threading.Event) -> _Conda:
    if not lock.conda:
        return _Conda(layers=[], held=(), kept={})
    from envkit.assemble.conda import conda_layers  # noqa: PLC0415 - py-rattler, for these packages alone
    from envkit.assemble.conda_fetch import archives  # noqa: PLC0415

    def check() -> None:
        if stop.is_set():
            raise StoppedError

    def fetch(packages: Sequence[object]) -> Mapping[str, Path]:
        talk.step(f"download {len(packages)} conda packages")
        return archives(
            packages,  # type: ignore[arg-type]
            places=site.places,
            transport=site.transport,
            folder=site.folder / "downloads",
            reporter=talk,
            offline=site.offline,
            check=check,
        )

    talk.step(f"assemble {len(lock.conda)} conda packages")
    layers: list[spec.Layer] = []
    held: list[tuple[str, tuple[str, ...]]] = []
    kept: dict[str, tuple[str, Cached]] = {}
    for made in conda_layers(
        lock.conda,
        cache=site.cache,
        folder=site.folder / "conda",
        fetch=fetch,
        budget=budget,
        reporter=talk,
        prefix=plan.prefix,
        anew=site.anew,
        compression=site.compression,
        stop=stop,
    ):
        names = [f"{one.name} {one.version}" for one in made.packages]
        held += zip(names, made.paths, strict=True)
        layers.append(spec.layer(made.cached.layer, made.cached.path, made_by(names), site.compression))
        kept[layers[-1].digest] = made.key, made.cached
    return _Conda(layers=layers, held=tuple(sorted(held)), kept=kept)


def _wheels(
    lock: Lock,
    site: Site,
    plan: BuildPlan,
    budget: int,
    *,
    kept: dict[str, tuple[str, Cached]],
    watch: Callable[[], None],
    below: Callable[[], Held],
) -> list[spec.Layer]:
    stage = WheelStage(
        cache=site.cache,
        downloads=site.folder / "downloads",
        own=site.wheel_dir,
        places=site.places,
        transport=site.transport,
        reporter=site.reporter,
        scheme=scheme_of(plan, lock),
        deadline=site.deadline,
        watch=watch,
        offline=site.offline,
        anew=site.anew,
        compression=site.compression,
        below=below,
    )
    layers = []
    for made in stage.layers(lock.wheels, budget):
        names = [f"{wheel.name} {wheel.version}" for wheel in made.wheels]
        layers.append(spec.layer(made.cached.layer, made.cached.path, made_by(names), site.compression))
        kept[layers[-1].digest] = made.key, made.cached
    return layers


def _own(plan: BuildPlan, lock: Lock, base: BaseFiles, site: Site, kept: dict[str, tuple[str, Cached]]) -> spec.Layer:
    found = own_layer.items(plan, lock, base)
    told = hashlib.sha256(f"own {WRITER_VERSION} {MTIME} {sorted(found.items())!r}".encode()).hexdigest()

    def write(sink: IO[bytes]) -> LayerDigest:
        return own_layer.write(found, base, sink)

    cached = site.cache.make(told, write)
    made = spec.layer(cached.layer, cached.path, "envkit: environment, entry script, user, plan and lock")
    kept[made.digest] = told, cached
    return made
