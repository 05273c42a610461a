"""Assemble the image of a plan and its lock: base, conda packages, wheels and a small top layer.

Only its Python runs, in a sandbox, to compile modules.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING

from envkit.assemble import base as base_image
from envkit.assemble import top_layer
from envkit.assemble.background import Background
from envkit.assemble.base import NO_BASE
from envkit.assemble.bytecode import VARIABLES, Compiler, interpreter_of
from envkit.assemble.compress import GZIP
from envkit.assemble.layer import WRITER_VERSION
from envkit.assemble.layer_plan import groups, report_clobbered
from envkit.assemble.layer_pool import Made, Progress, make_layers
from envkit.assemble.wheel import Scheme
from envkit.assemble.wheels import Wheels
from envkit.engines.bootstrap import RootOptions
from envkit.engines.debian_root import from_packages
from envkit.engines.labels import image_labels
from envkit.engines.locked_base import check_platform
from envkit.engines.model import BaseImage
from envkit.ground.cache import BASES, DOWNLOADS, run_folder
from envkit.ground.progress import Silent
from envkit.image import spec
from envkit.image.layout import write_layout
from envkit.image.spec import MTIME, LayerDigest
from envkit.lock.built import wheels_of
from envkit.plan.definition import kind_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from envkit.assemble.base_files import BaseFiles
    from envkit.assemble.bytecode import Execute
    from envkit.assemble.conda import CondaLayers
    from envkit.assemble.layer_pool import Receive
    from envkit.assemble.top_layer import Item
    from envkit.engines.layer_cache import LayerCache
    from envkit.engines.log import BuildLog
    from envkit.ground.progress import Reporter
    from envkit.ground.settings import Mirrors
    from envkit.lock.index_locations import IndexLocations
    from envkit.lock.model import CondaPackage, Lock, Wheel
    from envkit.plan.model import BuildPlan
    from envkit.registry.transport import Transport

LAYERS = 40  # per image; engines allow 127, but every layer costs a registry client a request
_LEAST = 16  # layers for packages, even on a base with many layers
_NAMED = 4  # packages listed in a layer's history entry


@dataclass(frozen=True, slots=True, kw_only=True)
class AssemblyContext:
    """The folders, connections and settings that an image is assembled with."""

    cache: LayerCache
    indexes: IndexLocations
    mirrors: Mirrors
    transport: Transport
    log: BuildLog
    reporter: Reporter
    state: Path | None = None  # folder for notes on running builds
    wheel_dir: Path | None = None  # the user's own wheels
    deadline: float | None = None  # on the monotonic clock
    offline: bool = False
    no_cache: bool = False  # make every layer again
    compression: str = GZIP  # of package layers; layers of the base keep theirs
    execute: Execute | None = None  # compiles modules; None leaves them as sources
    receive: Receive | None = None  # gets the layers of packages while they are made


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembled:
    """An assembled image; its layers are files in the layer cache or blobs of the base."""

    image: spec.Image
    base: BaseImage
    labels: Mapping[str, str]


def assemble(
    plan: BuildPlan, lock: Lock, context: AssemblyContext, *, extra_labels: Sequence[tuple[str, str]] = ()
) -> Assembled:
    """Assemble the image of a lock. Equal plans and locks give equal bytes.

    Args:
        plan: describes the image.
        lock: the artifacts, solved for this plan.
        context: folders, connections and settings.
        extra_labels: labels in addition to those of the plan.

    Raises:
        UsageError: the base lacks system packages or programs that the plan needs.
        LockError: an artifact of the lock is no longer available.
        IntegrityError: an artifact does not match the lock, or is damaged.
        EngineError: a server refuses, or a package needs something that this engine does not do.
        EnvironmentProblem: the disk is full, permission or a program is missing, or a server is unreachable.
        TimeLimitError: the deadline has passed.
    """
    base = NO_BASE
    debian: Background[spec.Base] | None = None

    def base_when_ready(check: Callable[[], object]) -> spec.Base:
        return base if debian is None else debian.wait(check)

    # The tasks end first: they use the folders.
    with contextlib.ExitStack() as folders, contextlib.ExitStack() as tasks:
        compiler = _compiler(plan, lock, context, base_when_ready, folders)
        if lock.base.kind == "bootstrap":
            check_platform(lock, os.uname().machine)
            debian = tasks.enter_context(Background(partial(_debian, lock, context), context.reporter))
        elif lock.base.kind != "none":
            base = _registry_base(lock, context)
        # The base comes first: its layers count against the limit for packages. A Debian root is always one layer.
        # The layer with files of the project is above the packages, but counts, too.
        below = (1 if debian is not None else len(base.layers)) + bool(plan.copy)
        for_conda, for_wheels = budgets(below, conda=bool(lock.conda), wheels=bool(lock.wheels))
        conda = tasks.enter_context(
            Background(partial(_conda, plan, lock, context, for_conda, compiler), context.reporter)
        )

        def check() -> None:
            conda.check()
            if debian is not None:
                debian.check()

        wheels = _wheels(plan, lock, context, compiler)
        wheel_layers = make_layers(
            wheels,
            groups(lock.wheels, for_wheels),
            cache=context.cache,
            progress=Progress(context.reporter, check, deadline=context.deadline, quiet=True),
            reporter=context.reporter,
            compression=context.compression,
            no_cache=context.no_cache,
            receive=context.receive,
        )
        conda_layers = conda.result()
        if debian is not None:
            base = debian.result()
    report_clobbered([*conda_layers.contents, *wheels.listings(wheel_layers)], context.reporter)
    packages: tuple[Made[CondaPackage] | Made[Wheel], ...] = (*conda_layers.layers, *wheel_layers)
    layers = []
    for made in packages:
        names = [f"{package.name} {package.version}" for package in made.packages]
        layers.append(spec.layer(made.cached.layer, made.cached.path, made_by(names), context.compression))
    files = base_image.files_of(base, lock, plan)
    copied = top_layer.copied_items(plan)
    layers += [_small(copied, "envkit: files of the project", files, context)] if copied else []
    top = top_layer.items(plan, lock, files)
    layers.append(_small(top, "envkit: environment, entry script, user, plan and lock", files, context))
    base_record = _base_record(lock)
    labels = image_labels(plan, base_record, extra_labels, os.environ, lock)
    image = spec.image(base, layers, spec.runtime_of(plan), labels, lock.platform)
    return Assembled(image=image, base=base_record, labels=labels)


def budgets(below: int, *, conda: bool, wheels: bool) -> tuple[int, int]:
    """Return how many layers conda packages and wheels may use, above `below` layers and below one top layer."""
    left = max(LAYERS - below - 1, min(_LEAST, spec.MAX_LAYERS - below - 1))
    if conda and wheels:
        return left - left // 2, left // 2
    return (left, 0) if conda else (0, left)


def scheme_of(plan: BuildPlan, lock: Lock) -> Scheme:
    """Return where the files of wheels are installed: in conda's Python or in a virtual environment."""
    conda = kind_of(plan.template) != "wheels"
    return Scheme(python=lock.python, prefix=plan.prefix, headers=f"include/python{lock.python}" if conda else None)


def made_by(names: Sequence[str]) -> str:
    """Return a layer's history entry: `envkit: torch 2.7.1`; of many packages only the first few are listed."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"envkit: {', '.join(names[:_NAMED])}{more}"


def _registry_base(lock: Lock, context: AssemblyContext) -> spec.Base:
    """Fetch the base image from its registry; parallel builds fetch it only once."""
    with context.cache.flights.all([f"base {lock.base.digest}"], context.transport.policy.check):
        return base_image.fetch_base(
            lock.base,
            lock.platform,
            mirrors=context.mirrors,
            transport=context.transport,
            folder=BASES.at(context.cache.root),
            reporter=context.reporter,
            offline=context.offline,
        )


def _debian(lock: Lock, context: AssemblyContext, reporter: Reporter, stop: threading.Event) -> spec.Base:
    """Make the base from Debian packages, in the background."""
    return from_packages(
        lock.base,
        context.cache,
        RootOptions(
            mirror=context.mirrors.debian_mirror,
            log=context.log,
            limit_s=None if context.deadline is None else max(0.0, context.deadline - time.monotonic()),
            stop=stop,
        ),
        reporter,
        state=context.state,
        no_cache=context.no_cache,
    )


def _compiler(
    plan: BuildPlan,
    lock: Lock,
    context: AssemblyContext,
    base: Callable[[Callable[[], object]], spec.Base],
    until: contextlib.ExitStack,
) -> Compiler | None:
    """Return the compiler of the image's modules; None if they stay as sources.

    `base` waits for the base; its argument raises to stop. Folders are removed when `until` closes.
    """
    interpreter = interpreter_of(plan, lock)
    if interpreter is None or context.execute is None:
        return None

    def layout(check: Callable[[], object]) -> Path:
        """Write an image of the base and the interpreter, which has no bytecode of its own yet."""
        below = base(check)
        if lock.base.kind != "bootstrap":
            base_image.files_of(below, lock, plan)  # without Python in the base, the reason is said here
        pythons = tuple(package for package in lock.conda if package.name == "python")
        conda = _conda(plan, replace(lock, conda=pythons), context, 1, None, Silent(), threading.Event()).layers
        layers = [spec.layer(row.cached.layer, row.cached.path, "python", context.compression) for row in conda]
        runtime = spec.Runtime(env=VARIABLES, user="65534:65534", workdir="/", entrypoint=(), cmd=())
        image = spec.image(below, layers, runtime, {}, lock.platform)
        folder = until.enter_context(run_folder(context.cache.root)) / "python"
        write_layout(image, folder)
        return folder

    return Compiler(
        interpreter,
        layout=layout,
        execute=context.execute,
        platform=lock.platform,
        machine=os.uname().machine,
        reporter=context.reporter,
    )


def _wheels(plan: BuildPlan, lock: Lock, context: AssemblyContext, compiler: Compiler | None) -> Wheels:
    return Wheels(
        context.cache.root,
        own=context.wheel_dir,
        built=wheels_of(lock, context.cache.root),
        indexes=context.indexes,
        transport=context.transport,
        reporter=context.reporter,
        scheme=scheme_of(plan, lock),
        compression=context.compression,
        offline=context.offline,
        compiler=compiler,
    )


def _conda(  # noqa: PLR0917 - every background task ends with the last two
    plan: BuildPlan,
    lock: Lock,
    context: AssemblyContext,
    budget: int,
    compiler: Compiler | None,
    reporter: Reporter,
    stop: threading.Event,
) -> CondaLayers:
    """Make the layers of the conda packages, in the background."""
    from envkit.assemble import conda  # noqa: PLC0415 - py-rattler is needed only for conda packages

    return conda.conda_layers(
        lock.conda,
        reporter,
        stop,
        cache=context.cache,
        archives=partial(
            conda.downloaded,
            indexes=context.indexes,
            transport=context.transport,
            folder=DOWNLOADS.at(context.cache.root),
            offline=context.offline,
        ),
        budget=budget,
        prefix=plan.prefix,
        no_cache=context.no_cache,
        compression=context.compression,
        compiler=compiler,
        receive=context.receive,
    )


def _base_record(lock: Lock) -> BaseImage:
    return BaseImage(
        reference=lock.base.reference, digest=lock.base.digest, origin=lock.base.kind, name=lock.base.reference
    )


def _small(files: Mapping[str, Item], made_by: str, base: BaseFiles, context: AssemblyContext) -> spec.Layer:
    """Make a layer of a few files and put it into the cache."""
    key = hashlib.sha256(f"own {WRITER_VERSION} {MTIME} {sorted(files.items())!r}".encode()).hexdigest()

    def write(sink: IO[bytes]) -> LayerDigest:
        return top_layer.write(files, base, sink)

    # Never taken from the cache: whether parent folders are written depends on the base, which is not part of the key.
    cached = context.cache.make(key, write)
    return spec.layer(cached.layer, cached.path, made_by)
