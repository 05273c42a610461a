"""Conda packages of a lock into layers: from the cache, else installed by py-rattler and written on all cores.

Each package is installed by itself, so a layer depends on nothing but its own packages, the prefix, and what later
packages of the lock hold, too. Link scripts never run.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING

from envkit.assemble import cache as layer_cache
from envkit.assemble import conda_listing, conda_notes, conda_staging, pool
from envkit.assemble.compression import GZIP, recipe, writer
from envkit.assemble.conda_listing import FOLDER, Interpreter, Listing, placed
from envkit.assemble.conda_overlaps import Overlaps, overlaps
from envkit.assemble.conda_stack import write_packages
from envkit.assemble.groups import Package, groups
from envkit.assemble.model import Scheme
from envkit.ground.errors import EngineError
from envkit.ground.process import StoppedError
from envkit.image.spec import MTIME, LayerDigest
from envkit.plan.model import PREFIX

if TYPE_CHECKING:
    import threading

    from envkit.assemble.cache import Cached, LayerCache
    from envkit.ground.progress import Reporter
    from envkit.lock.model import CondaPackage

Job = tuple["CondaPackage", ...]
"""The packages of one layer."""

Fetch = Callable[[Sequence["CondaPackage"]], Mapping[str, Path]]
"""Gives the verified archives of packages by SHA-256; called only with those that are needed."""

# Part of every key. It changes with any change of the bytes that are made here from the same packages.
_VERSION = 2
_THREADED_FROM = 16 << 20  # bytes to download; a smaller layer is done before a second core helps
_NAMED = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A layer of conda packages, with its name in the cache."""

    packages: tuple[CondaPackage, ...]
    key: str
    cached: Cached
    paths: tuple[tuple[str, ...], ...]  # of each package, what it has in the image, without leading slash


def conda_layers(
    packages: Sequence[CondaPackage],
    *,
    cache: LayerCache,
    folder: Path,
    fetch: Fetch,
    budget: int,
    reporter: Reporter,
    prefix: str = PREFIX,
    mtime: int = MTIME,
    workers: int | None = None,
    stop: threading.Event | None = None,
    anew: bool = False,
    compression: str = GZIP,
) -> tuple[Made, ...]:
    """The layers of the packages from the bottom up, at most `budget`.

    Args:
        packages: of one lock, in any order; the one that sorts last has a path that several hold.
        cache: where layers are kept.
        folder: for what is installed meanwhile and for notes on packages; best on the cache's disk.
        fetch: see `Fetch` and `envkit.assemble.conda_fetch.archives`.
        budget: layers at most.
        reporter: hears the bytes written, and names what the user should know.
        prefix: where the environment lies in the image.
        mtime: of every file, in seconds since 1970.
        workers: threads; None = one per core.
        stop: ends the work when another thread sets it.
        anew: take no layer and no note from the cache.
        compression: of the blobs, one of `compression.COMPRESSIONS`.

    Raises:
        IntegrityError: an archive is not the lock's, or holds what no package may.
        EngineError: a package cannot be installed, or would be useless without the script that it runs.
        LockError: the lock lacks the Python that its packages need.
        EnvironmentProblem: the disk is full, py-rattler is missing, or a server is away.
    """
    work = _Work(
        cache=cache,
        folder=folder,
        fetch=fetch,
        prefix=prefix,
        mtime=mtime,
        compression=compression,
        ordered=sorted(packages, key=lambda one: one.name),
    )
    work.look(anew=anew, check=_watch(stop))
    work.tell(reporter)
    by_name = {one.name: one for one in work.ordered}
    grouped = groups([Package(name=one.name, size=one.size) for one in work.ordered], budget) if by_name else ()
    jobs = [tuple(sorted((by_name[one.name] for one in group), key=lambda one: one.name)) for group in grouped]
    meter = pool.Meter(reporter, None, stop)
    kept: dict[Job, Cached] = {} if anew else work.kept(jobs)
    while left := [job for job in jobs if job not in kept]:
        with cache.flights.free(map(work.key, left)) as free:
            mine = [job for job in left if work.key(job) in free]
            kept |= {} if anew else work.kept(mine)
            missing = [job for job in mine if job not in kept]
            work.want([one for job in missing for one in job])
            kept |= work.all(missing, meter, workers)
        if other := next((job for job in jobs if job not in kept), None):
            reporter.step("wait for layers of conda packages that another build makes")
            cache.flights.wait(work.key(other), lambda: meter.add(0))
            kept |= {} if anew else work.kept([other])
    return tuple(
        Made(packages=job, key=work.key(job), cached=kept[job], paths=tuple(map(work.leaves, job))) for job in jobs
    )


@dataclass(slots=True, kw_only=True)
class _Work:
    """One call: what is known of the packages so far."""

    cache: LayerCache
    folder: Path
    fetch: Fetch
    prefix: str
    mtime: int
    compression: str
    ordered: list[CondaPackage]
    archives: dict[str, Path] = field(default_factory=dict)
    paths: dict[str, tuple[conda_listing.Path, ...]] = field(default_factory=dict)  # by name
    overlaps: Overlaps = field(default_factory=lambda: Overlaps(left_out={}, clobbered=()))

    @property
    def python(self) -> Interpreter | None:
        """The lock's Python."""
        found = [one for one in self.ordered if one.name == "python"]
        return Interpreter(version=found[0].version, build=found[0].build) if found else None

    def want(self, packages: Sequence[CondaPackage]) -> None:
        """See that the packages' archives are here."""
        lacking = [one for one in packages if one.sha256 not in self.archives]
        if lacking:
            self.archives |= self.fetch(lacking)

    def look(self, *, anew: bool, check: Callable[[], None]) -> None:
        """Learn every package's paths, from its note or from its archive, and decide who has which."""
        notes = self.folder / "listings"
        listings = {one: None if anew else conda_notes.read(notes, one.sha256) for one in self.ordered}
        unknown = [one for one in self.ordered if listings[one] is None]
        if unknown:
            # Another build that needs the same packages waits, and then finds the notes.
            with self.cache.flights.all([f"archive {one.sha256}" for one in unknown], check):
                listings |= {one: None if anew else conda_notes.read(notes, one.sha256) for one in unknown}
                listings |= self._described(notes, [one for one in unknown if listings[one] is None])
        for one, found in listings.items():
            assert found is not None
            self.paths[one.name] = placed(one, found, self.python)
        self.overlaps = overlaps([(one.name, self.paths[one.name]) for one in self.ordered])

    def _described(self, notes: Path, packages: Sequence[CondaPackage]) -> dict[CondaPackage, Listing | None]:
        """What archives say of their contents, noted for later builds."""
        if not packages:
            return {}
        self.want(packages)
        with conda_staging.staging(self.folder / "staging") as staging:
            found = conda_staging.describe(packages, self.archives, staging)
        for one, listing in found.items():
            conda_notes.write(notes, one.sha256, listing)
        return dict(found)

    def tell(self, reporter: Reporter) -> None:
        """Name the scripts that do not run and the paths that several packages hold."""
        for one in self.ordered:
            for script in conda_listing.scripts(one, self.paths[one.name]):
                if conda_listing.is_only_scripts(one, self.paths[one.name]):
                    raise EngineError(
                        f"the conda package {one.name} {one.version} is nothing but its script {script}, which the "
                        "embedded engine does not run",
                        hint="envkit build --engine docker",
                    )
                reporter.note(f"{one.name} {one.version}: {script} does not run while the image is built")
        for path, owners in self.overlaps.clobbered[:_NAMED]:
            reporter.note(f"{path} is in {', '.join(owners)}; the image has that of {owners[-1]}")
        more = len(self.overlaps.clobbered) - _NAMED
        if more > 0:
            reporter.note(f"{more} more paths are in several packages; the image has that of the last by name")

    def key(self, job: Sequence[CondaPackage]) -> str:
        """The name of the layer of these packages."""
        python = self.python if any(one.noarch == "python" for one in job) else None
        rows = [json.dumps(self._row(one), sort_keys=True) for one in job]
        digests = [hashlib.sha256(row.encode()).hexdigest() for row in rows]
        scheme = Scheme(python=f"{python.minor} {python.site_packages}" if python else "", prefix=self.prefix)
        made_by = f"conda {_VERSION} rattler {_rattler()} zlib {zlib.ZLIB_RUNTIME_VERSION}"
        return layer_cache.key((made_by, *digests), scheme, mtime=self.mtime, recipe=recipe(self.compression))

    def _row(self, package: CondaPackage) -> dict[str, object]:
        return {"package": package.to_json(), "left_out": sorted(self.overlaps.left_out.get(package.name, ()))}

    def kept(self, jobs: Sequence[Job]) -> dict[Job, Cached]:
        """The layers that the cache has."""
        return {job: found for job in jobs if (found := self.cache.get(self.key(job))) is not None}

    def all(self, jobs: Sequence[Job], meter: pool.Meter, workers: int | None) -> dict[Job, Cached]:
        """Make layers on all cores."""
        threads = workers or pool.cores()
        with ThreadPoolExecutor(threads, thread_name_prefix="envkit-deflate") as packers:
            spare = packers if threads > 1 else None
            made = pool.run(jobs, lambda job: self.make(job, meter, spare), size=_size, meter=meter, workers=workers)
        return dict(zip(jobs, made, strict=True))

    def leaves(self, package: CondaPackage) -> tuple[str, ...]:
        """The paths that the package has in the image."""
        root, skipped = self.prefix.strip("/"), self.overlaps.left_out.get(package.name, frozenset())
        rows = self.paths[package.name]
        return tuple(f"{root}/{one.path}" for one in rows if one.kind != FOLDER and one.path not in skipped)

    def make(self, job: Sequence[CondaPackage], meter: pool.Meter, spare: Executor | None) -> Cached:
        """Install the packages and write their layer; `spare` are threads that compress, None on a single core."""

        def write(sink: IO[bytes]) -> LayerDigest:
            with conda_staging.staging(self.folder / "staging") as staging:
                staged = conda_staging.install(
                    [(one, self.paths[one.name]) for one in job],
                    self.archives,
                    staging,
                    prefix=self.prefix,
                    python=self.python,
                    check=lambda: meter.add(0),
                )
                lanes = spare is not None and _size(job) >= _THREADED_FROM
                kind = writer(self.compression)
                with kind(sink, mtime=self.mtime, threaded=lanes, on_bytes=meter.add, pool=spare) as layer:
                    write_packages(staged, self.overlaps.left_out, layer, prefix=self.prefix)
                    return layer.close()

        return self.cache.make(self.key(job), write)


def _watch(stop: threading.Event | None) -> Callable[[], None]:
    def check() -> None:
        if stop is not None and stop.is_set():
            raise StoppedError

    return check


def _size(job: Sequence[CondaPackage]) -> int:
    return sum(one.size for one in job)


def _rattler() -> str:
    """What installs has a say in the bytes: launchers, replaced prefixes, records."""
    try:
        return importlib.metadata.version("py-rattler")
    except importlib.metadata.PackageNotFoundError:
        return "none"
