"""A lock and its plan as an image: base, conda packages, wheels, and a small layer on top. Nothing runs in it."""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING

from envkit.assemble import base as base_image
from envkit.assemble import top_layer
from envkit.assemble.background import Background
from envkit.assemble.base import NO_BASE
from envkit.assemble.compress import GZIP
from envkit.assemble.layer import WRITER_VERSION
from envkit.assemble.layer_plan import groups, report_clobbered
from envkit.assemble.stage import Made, Progress, make_layers
from envkit.assemble.wheel import Scheme
from envkit.assemble.wheels import Wheels
from envkit.build.bootstrap import RootOptions
from envkit.build.debian_root import from_packages
from envkit.build.labels import image_labels
from envkit.build.locked_base import check_platform
from envkit.build.model import BaseImage
from envkit.image import spec
from envkit.image.layout import link
from envkit.image.spec import MTIME, LayerDigest
from envkit.lock.built import wheels_of
from envkit.plan.definition import kind_of

if TYPE_CHECKING:
    import threading
    from collections.abc import Mapping, Sequence

    from envkit.assemble.base_files import BaseFiles
    from envkit.assemble.conda import CondaLayers
    from envkit.assemble.top_layer import Item
    from envkit.build.layer_cache import Cached, LayerCache
    from envkit.build.log import BuildLog
    from envkit.ground.progress import Reporter
    from envkit.ground.settings import Mirrors
    from envkit.lock.model import CondaPackage, Lock, Wheel
    from envkit.lock.places import Places
    from envkit.plan.model import BuildPlan
    from envkit.registry.transport import Transport

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
    no_cache: bool = False  # take no layer from the cache
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
        """Put a layer's blob at a path: as a hard link to the cache's file where that is possible."""
        if layer.digest in self.kept:
            key, cached = self.kept[layer.digest]
            self.cache.place(key, cached, target)
        else:
            link(layer, target)

    def settle(self) -> None:
        """Renew the stamps of the cached layers after delivery, which may have removed other names of their files."""
        for key, cached in self.kept.values():
            self.cache.settle(key, cached)


def assemble(plan: BuildPlan, lock: Lock, site: Site, *, extra_labels: Sequence[tuple[str, str]] = ()) -> Assembled:
    """Assemble the image of a lock. Equal plans and locks give equal bytes.

    Args:
        plan: what the image is.
        lock: its artifacts, solved for this plan.
        site: where and with what.
        extra_labels: on top of the plan's.

    Raises:
        UsageError: the base lacks what the plan wants of the system.
        LockError: the lock cannot be had any more.
        IntegrityError: an artifact is not what the lock says, or is not sound.
        EngineError: a server refuses, or a package needs what this engine does not do.
        EnvironmentProblem: disk, permission, a program or a server is missing.
        TimeLimitError: the deadline is over.
    """
    base, debian = NO_BASE, None
    kept: dict[str, tuple[str, Cached]] = {}
    with contextlib.ExitStack() as beside:
        if lock.base.kind == "bootstrap":
            check_platform(lock, os.uname().machine)
            debian = beside.enter_context(Background(partial(_debian, lock, site), site.reporter))
        elif lock.base.kind != "none":
            base = _of_registry(lock, site)
        # The base comes first because its number of layers limits those of the packages; Debian's root is always one.
        below = (1 if debian is not None else len(base.layers)) + bool(plan.copy)
        for_conda, for_wheels = budgets(below, conda=bool(lock.conda), wheels=bool(lock.wheels))
        conda = beside.enter_context(Background(partial(_conda, plan, lock, site, for_conda), site.reporter))

        def check() -> None:
            conda.check()
            if debian is not None:
                debian.check()

        wheels = _wheels(plan, lock, site)
        of_wheels = make_layers(
            wheels,
            groups(lock.wheels, for_wheels),
            cache=site.cache,
            progress=Progress(site.reporter, check, deadline=site.deadline, quiet=True),
            reporter=site.reporter,
            compression=site.compression,
            no_cache=site.no_cache,
        )
        of_conda = conda.result()
        if debian is not None:
            base, key, cached = debian.result()
            kept[base.layers[0].digest] = key, cached
    report_clobbered([*of_conda.contents, *wheels.listings(of_wheels)], site.reporter)
    packages: tuple[Made[CondaPackage] | Made[Wheel], ...] = (*of_conda.layers, *of_wheels)
    layers = []
    for made in packages:
        names = [f"{package.name} {package.version}" for package in made.packages]
        layers.append(spec.layer(made.cached.layer, made.cached.path, made_by(names), site.compression))
        kept[layers[-1].digest] = made.key, made.cached
    files = base_image.files_of(base, lock, plan)
    own = top_layer.copied_items(plan)
    layers += [_small(own, "envkit: files of the project", files, site, kept)] if own else []
    top = top_layer.items(plan, lock, files)
    layers.append(_small(top, "envkit: environment, entry script, user, plan and lock", files, site, kept))
    base_record = BaseImage(
        reference=lock.base.reference, digest=lock.base.digest, origin=lock.base.kind, name=lock.base.reference
    )
    labels = image_labels(plan, base_record, extra_labels, os.environ, lock)
    image = spec.image(base, layers, spec.runtime_of(plan), labels, lock.platform)
    return Assembled(image=image, base=base_record, labels=labels, cache=site.cache, kept=kept)


def budgets(below: int, *, conda: bool, wheels: bool) -> tuple[int, int]:
    """Layers for conda packages and for wheels, on a base of so many layers and with one layer on top."""
    left = max(LAYERS - below - 1, min(_LEAST, spec.MAX_LAYERS - below - 1))
    if conda and wheels:
        return left - left // 2, left // 2
    return (left, 0) if conda else (0, left)


def scheme_of(plan: BuildPlan, lock: Lock) -> Scheme:
    """Return where wheels belong: in conda's Python, or in a virtual environment."""
    conda = kind_of(plan.template) != "wheels"
    return Scheme(python=lock.python, prefix=plan.prefix, headers=f"include/python{lock.python}" if conda else None)


def made_by(names: Sequence[str]) -> str:
    """Return what a layer's history says: `envkit: torch 2.7.1`, or the first few of many."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"envkit: {', '.join(names[:_NAMED])}{more}"


def _of_registry(lock: Lock, site: Site) -> spec.Base:
    """Return the base that a registry has, its layers fetched; builds beside this one fetch it once."""
    with site.cache.flights.all([f"base {lock.base.digest}"], site.transport.policy.check):
        return base_image.fetch_base(
            lock.base,
            lock.platform,
            mirrors=site.mirrors,
            transport=site.transport,
            folder=site.folder / "blobs",
            reporter=site.reporter,
            offline=site.offline,
        )


def _debian(lock: Lock, site: Site, reporter: Reporter, stop: threading.Event) -> tuple[spec.Base, str, Cached]:
    """Make the base of Debian's packages, while others download."""
    return from_packages(
        lock.base,
        site.cache,
        RootOptions(
            mirror=site.mirrors.debian_mirror,
            log=site.log,
            limit_s=None if site.deadline is None else max(0.0, site.deadline - time.monotonic()),
            stop=stop,
        ),
        reporter,
        state=site.state,
        no_cache=site.no_cache,
    )


def _wheels(plan: BuildPlan, lock: Lock, site: Site) -> Wheels:
    return Wheels(
        site.folder,
        own=site.wheel_dir,
        built=wheels_of(lock, site.folder),
        places=site.places,
        transport=site.transport,
        reporter=site.reporter,
        scheme=scheme_of(plan, lock),
        compression=site.compression,
        offline=site.offline,
    )


def _conda(  # noqa: PLR0917 - the last two are those of every background task
    plan: BuildPlan, lock: Lock, site: Site, budget: int, reporter: Reporter, stop: threading.Event
) -> CondaLayers:
    """Make the layers of the conda packages, while others download."""
    from envkit.assemble import conda  # noqa: PLC0415 - py-rattler, for these packages alone

    return conda.conda_layers(
        lock.conda,
        reporter,
        stop,
        cache=site.cache,
        folder=site.folder / "conda",
        archives=partial(
            conda.downloaded,
            places=site.places,
            transport=site.transport,
            folder=site.folder / "downloads",
            offline=site.offline,
        ),
        budget=budget,
        prefix=plan.prefix,
        no_cache=site.no_cache,
        compression=site.compression,
    )


def _small(
    files: Mapping[str, Item], made_by: str, base: BaseFiles, site: Site, kept: dict[str, tuple[str, Cached]]
) -> spec.Layer:
    """Make a layer of a few files, or take it from the cache."""
    key = hashlib.sha256(f"own {WRITER_VERSION} {MTIME} {sorted(files.items())!r}".encode()).hexdigest()

    def write(sink: IO[bytes]) -> LayerDigest:
        return top_layer.write(files, base, sink)

    cached = site.cache.make(key, write)
    made = spec.layer(cached.layer, cached.path, made_by)
    kept[made.digest] = key, cached
    return made
