"""The conda packages of a lock: download them, install them with py-rattler, and make layers of them.

Each package is installed by itself, so a layer depends only on its own packages, the prefix, and the paths that later
packages of the lock also have. Link scripts are never run.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import threading
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from envkit.assemble import conda_install, conda_package
from envkit.assemble.conda_package import FOLDER, Interpreter, Listing, placed
from envkit.assemble.layer_plan import groups, overlaps
from envkit.assemble.layer_pool import Made, Progress, layer_key, make_layers
from envkit.assemble.wheel import Scheme
from envkit.ground.cache import CONDA_LISTINGS
from envkit.ground.errors import EngineError
from envkit.ground.process import StoppedError
from envkit.lock.model import CondaPackage
from envkit.plan.model import PREFIX
from envkit.registry.download import fetch, from_url

if TYPE_CHECKING:
    from envkit.assemble.bytecode import Compiler
    from envkit.assemble.layer import LayerWriter
    from envkit.assemble.layer_plan import Contents
    from envkit.assemble.layer_pool import Receive
    from envkit.engines.layer_cache import LayerCache
    from envkit.ground.progress import Reporter
    from envkit.lock.index_locations import IndexLocations
    from envkit.registry.download import Item
    from envkit.registry.transport import Transport

Group = tuple[CondaPackage, ...]
"""The packages of one layer."""

Archives = Callable[[Sequence[CondaPackage], "Reporter", Callable[[], None]], Mapping[str, Path]]
"""Returns the verified archives of packages by SHA-256. The last argument is called meanwhile and raises to stop."""

# Part of every cache key. Increase it when the same packages give other bytes.
_VERSION = 3
_LISTING = "envkit.conda-listing/2"
_NAMED = 20  # shared paths that are reported one by one; the rest is counted


@dataclass(frozen=True, slots=True, kw_only=True)
class CondaLayers:
    """The layers from the bottom up, and the files of each package ('numpy 2.4.6') in the image."""

    layers: tuple[Made[CondaPackage], ...] = ()
    contents: tuple[tuple[str, Contents], ...] = ()


def conda_layers(
    packages: Sequence[CondaPackage],
    reporter: Reporter,
    stop: threading.Event | None = None,
    *,
    cache: LayerCache,
    archives: Archives,
    budget: int,
    prefix: str = PREFIX,
    workers: int | None = None,
    no_cache: bool = False,
    compression: str = "gzip",
    compiler: Compiler | None = None,
    receive: Receive | None = None,
) -> CondaLayers:
    """Return the layers of the packages, at most `budget`.

    Args:
        packages: of one lock, in any order. A path of several packages belongs to the last one by name.
        reporter: gets the progress in bytes, and notes for the user.
        stop: another thread sets it to end the work.
        cache: the layer cache.
        archives: see `Archives` and `downloaded`.
        budget: the maximum number of layers.
        prefix: the path of the environment in the image.
        workers: threads; None = one per core.
        no_cache: ignore cached layers and listings.
        compression: of the blobs, one of `compress.COMPRESSIONS`.
        compiler: compiles the modules; None leaves them as sources.
        receive: see `make_layers`.

    Raises:
        IntegrityError: an archive is not that of the lock, or has contents that are not allowed in a package.
        EngineError: a package cannot be installed, or consists only of a script.
        LockError: the lock lacks the Python that its packages need.
        EnvironmentProblem: the disk is full, py-rattler is missing, or a server cannot be reached.
    """
    if not packages:
        return CondaLayers()

    def check() -> None:
        if stop is not None and stop.is_set():
            raise StoppedError

    reporter.step(f"assemble {len(packages)} conda packages")
    kind = CondaPackages(
        packages,
        cache=cache.root,
        archives=lambda missing: archives(missing, reporter, check),
        prefix=prefix,
        compression=compression,
        compiler=compiler,
    )
    kind.read_listings(cache, check, no_cache=no_cache)
    kind.report(reporter)
    layers = make_layers(
        kind,
        groups(kind.packages, budget),
        cache=cache,
        progress=Progress(reporter, check),
        reporter=reporter,
        compression=compression,
        no_cache=no_cache,
        workers=workers,
        receive=receive,
    )
    contents = {
        f"{package.name} {package.version}": kind.contents(package) for made in layers for package in made.packages
    }
    return CondaLayers(layers=layers, contents=tuple(sorted(contents.items(), key=lambda row: row[0])))


class CondaPackages:
    """The conda packages of one build; a `stage.Kind`. See `conda_layers` for the arguments."""

    name = "conda packages"
    threaded_from = 16 << 20

    def __init__(
        self,
        packages: Sequence[CondaPackage],
        *,
        cache: Path,
        archives: Callable[[Sequence[CondaPackage]], Mapping[str, Path]],
        prefix: str,
        compression: str,
        compiler: Compiler | None = None,
    ) -> None:
        # Sorted, because the last package by name keeps a shared path: equal locks give equal layers whatever their
        # order.
        self.packages = sorted(packages, key=lambda package: package.name)
        self._cache, self._fetch, self._prefix, self._compression = cache, archives, prefix, compression
        pythons = [package for package in self.packages if package.name == "python"]
        self._python = Interpreter(version=pythons[0].version, build=pythons[0].build) if pythons else None
        self._compiler = compiler
        self._archives: dict[str, Path] = {}  # by SHA-256
        self._paths: dict[str, tuple[conda_package.Path, ...]] = {}  # by name
        self._overlaps = overlaps(())

    def read_listings(self, cache: LayerCache, check: Callable[[], None], *, no_cache: bool) -> None:
        """Read the paths of every package from its cached listing or its archive, and resolve the overlaps."""
        listings = {package: None if no_cache else self._kept(package) for package in self.packages}
        unknown = [package for package in self.packages if listings[package] is None]
        if unknown:
            # A parallel build that needs the same packages waits here, and then finds the listings.
            with cache.flights.all([f"archive {package.sha256}" for package in unknown], check):
                listings |= {package: None if no_cache else self._kept(package) for package in unknown}
                listings |= self._describe([package for package in unknown if listings[package] is None])
        for owner, listing in listings.items():
            assert listing is not None
            self._paths[owner.name] = placed(owner, listing, self._python)
        self._overlaps = overlaps([(package.name, self._paths[package.name]) for package in self.packages])

    def report(self, reporter: Reporter) -> None:
        """Report the scripts that are not run and the paths that several packages have.

        Raises:
            EngineError: a package consists only of such a script.
        """
        for package in self.packages:
            for script in conda_package.scripts(package, self._paths[package.name]):
                if conda_package.is_only_scripts(package, self._paths[package.name]):
                    raise EngineError(
                        f"the conda package {package.name} {package.version} consists only of its script {script}, "
                        "which the embedded engine does not run",
                        hint="envkit build --engine docker",
                    )
                reporter.note(f"{package.name} {package.version}: {script} is not run during the build")
        for path, owners in self._overlaps.clobbered[:_NAMED]:
            reporter.note(f"{path} is in {', '.join(owners)}; the image has the file of {owners[-1]}")
        more = len(self._overlaps.clobbered) - _NAMED
        if more > 0:
            reporter.note(
                f"{more} more paths are in several packages; the image has the file of the last package by name"
            )

    def key(self, group: Group) -> str:
        """See `stage.Kind`."""
        # Only noarch Python packages depend on the Python; with it in every key, its update would renew all layers.
        python = self._python if any(package.noarch == "python" for package in group) else None
        rows = [json.dumps(self._row(package), sort_keys=True) for package in group]
        digests = [hashlib.sha256(row.encode()).hexdigest() for row in rows]
        scheme = Scheme(python=f"{python.minor} {python.site_packages}" if python else "", prefix=self._prefix)
        # Other versions of these two can give other bytes for the same package.
        made_by = f"conda {_VERSION} rattler {_rattler()} zlib {zlib.ZLIB_RUNTIME_VERSION}"
        # Likewise, only packages with modules depend on the interpreter that compiles them.
        compiler = self._compiler if any(map(self._has_modules, group)) else None
        return layer_key(
            (made_by, *digests),
            scheme,
            compression=self._compression,
            bytecode=None if compiler is None else compiler.key,
        )

    def provide(self, groups: Sequence[Group], progress: Progress, ready: Callable[[Group], object]) -> None:
        """Download the archives that are not here yet."""
        progress.check()
        self._fetch_missing([package for group in groups for package in group])
        for group in groups:
            ready(group)

    def write(self, group: Group, layer: LayerWriter, progress: Progress) -> None:
        """Install the packages and write the installed files."""
        with conda_install.staging(self._cache) as staging:
            staged = conda_install.install(
                [(package, self._paths[package.name]) for package in group],
                self._archives,
                staging,
                prefix=self._prefix,
                python=self._python,
                check=progress.check,
            )
            conda_install.write_packages(
                staged,
                self._overlaps.left_out,
                layer,
                prefix=self._prefix,
                compiled=None if self._compiler is None else partial(self._compiled, self._compiler, progress.check),
            )

    def made(self, group: Group) -> None:
        """Keep the archives: other images with packages of the same channel need them."""

    def contents(self, package: CondaPackage) -> Contents:
        """Return the paths that the package has in the image; a file of a wheel at one of them counts as different."""
        root, skipped = self._prefix.strip("/"), self._overlaps.left_out.get(package.name, frozenset())
        rows = self._paths[package.name]
        return {f"{root}/{row.path}": None for row in rows if row.kind != FOLDER and row.path not in skipped}

    def _modules(self) -> str:
        """Return the folder of Python's modules, relative to the prefix."""
        return f"lib/{self._python.minor_folder}" if self._python else "lib"

    def _compiled(
        self,
        compiler: Compiler,
        check: Callable[[], None],
        files: Mapping[str, Callable[[], bytes]],
        sizes: Mapping[str, int],
    ) -> Mapping[str, bytes]:
        return compiler.compile(files, sizes, f"{self._prefix.strip('/')}/{self._modules()}", check)

    def _has_modules(self, package: CondaPackage) -> bool:
        below = f"{self._modules()}/"
        return any(row.path.startswith(below) and row.path.endswith(".py") for row in self._paths[package.name])

    def _fetch_missing(self, packages: Sequence[CondaPackage]) -> None:
        missing = [package for package in packages if package.sha256 not in self._archives]
        if missing:
            self._archives |= self._fetch(missing)

    def _kept(self, package: CondaPackage) -> Listing | None:
        tree = CONDA_LISTINGS.read(self._cache, package.sha256, _LISTING)
        try:
            return None if tree is None else conda_package.from_json(tree)
        except ValueError:
            return None

    def _describe(self, packages: Sequence[CondaPackage]) -> dict[CondaPackage, Listing | None]:
        """Read the listings of archives and keep them for later builds."""
        if not packages:
            return {}
        self._fetch_missing(packages)
        with conda_install.staging(self._cache) as staging:
            listings = conda_install.describe(packages, self._archives, staging)
        for package, listing in listings.items():
            CONDA_LISTINGS.write(self._cache, package.sha256, _LISTING, listing.to_json())
        return dict(listings)

    def _row(self, package: CondaPackage) -> dict[str, object]:
        return {"package": package.to_json(), "left_out": sorted(self._overlaps.left_out.get(package.name, ()))}


def downloaded(
    packages: Sequence[CondaPackage],
    reporter: Reporter,
    check: Callable[[], None],
    *,
    indexes: IndexLocations,
    transport: Transport,
    folder: Path,
    offline: bool = False,
) -> Mapping[str, Path]:
    """Download the archives that are not in the folder; return all of them by SHA-256. `check` raises to stop.

    Raises:
        As `envkit.registry.download.fetch`.
    """
    reporter.step(f"download {len(packages)} conda packages")
    items = [item(package, indexes, transport) for package in packages]
    return fetch(items, folder, transport.policy, reporter.advance, offline=offline, check=check)


def item(package: CondaPackage, indexes: IndexLocations, transport: Transport) -> Item:
    """Return the download of one package."""
    return from_url(
        transport,
        name=f"{package.name} {package.version}",
        url=indexes.fetch_url(package.url),
        sha256=package.sha256,
        size=package.size,
    )


def _rattler() -> str:
    """Return the installer's version, which determines launchers, replaced prefixes and records."""
    try:
        return importlib.metadata.version("py-rattler")
    except importlib.metadata.PackageNotFoundError:
        return "none"
