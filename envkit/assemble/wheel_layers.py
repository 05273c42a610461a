"""Wheels into layers: grouped, taken from the cache or transcoded on all cores."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from envkit.assemble import cache as layer_cache
from envkit.assemble import pool
from envkit.assemble.groups import Package, groups
from envkit.assemble.layer import LayerWriter
from envkit.assemble.model import Scheme
from envkit.assemble.stack import write_trees
from envkit.assemble.wheel import open_wheel
from envkit.image.spec import MTIME, LayerDigest

if TYPE_CHECKING:
    from envkit.assemble.cache import Cached, LayerCache
    from envkit.ground.progress import Reporter

_THREADED_FROM = 64 << 20  # bytes; a smaller layer is done before a second core helps


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelFile:
    """A wheel on this machine, whose bytes were checked against `sha256`."""

    path: Path
    name: str  # normalised
    sha256: str
    size: int  # bytes


def wheel_layers(
    wheels: Sequence[WheelFile],
    *,
    scheme: Scheme,
    cache: LayerCache,
    budget: int,
    reporter: Reporter,
    mtime: int = MTIME,
    workers: int | None = None,
) -> tuple[Cached, ...]:
    """The layers of the wheels from the bottom up, at most `budget`.

    Raises:
        IntegrityError: a wheel is not sound.
        EnvironmentProblem: the disk is full, or a file cannot be read.
    """
    by_name = {wheel.name: wheel for wheel in wheels}
    packages = [Package(name=wheel.name, size=wheel.size) for wheel in by_name.values()]
    jobs = [tuple(by_name[package.name] for package in group) for group in groups(packages, budget)]
    meter = pool.Meter(reporter, None)
    share = sum(package.size for package in packages) / (workers or pool.cores())

    def layer(job: tuple[WheelFile, ...]) -> Cached:
        name = layer_cache.key(tuple(wheel.sha256 for wheel in job), scheme, mtime=mtime)

        def write(sink: IO[bytes]) -> LayerDigest:
            threaded = _size(job) > max(share, _THREADED_FROM)  # more than one core's share: the rest would wait for it
            return write_layer(job, sink, scheme=scheme, mtime=mtime, threaded=threaded, meter=meter)

        return cache.get(name) or cache.make(name, write)

    return tuple(pool.run(jobs, layer, size=_size, meter=meter, workers=workers))


def write_layer(
    wheels: Sequence[WheelFile],
    sink: IO[bytes],
    *,
    scheme: Scheme,
    mtime: int = MTIME,
    threaded: bool = False,
    meter: pool.Meter | None = None,
) -> LayerDigest:
    """One layer with all of the wheels, in their order."""
    count = None if meter is None else meter.add
    with (
        contextlib.ExitStack() as opened,
        LayerWriter(sink, mtime=mtime, threaded=threaded, on_bytes=count) as writer,
    ):
        write_trees([opened.enter_context(open_wheel(wheel.path, scheme)) for wheel in wheels], writer)
        return writer.close()


def _size(job: Sequence[WheelFile]) -> int:
    return sum(wheel.size for wheel in job)
