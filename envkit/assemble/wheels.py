"""The wheels of a lock: find or download them, check their SHA-256, and make layers of them.

A listing of each wheel is cached, so a build that finds all its layers in the cache can still report the packages that
contain the same paths.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from envkit.assemble import bytecode
from envkit.assemble.layer import File, Generated, LayerWriter, Slice, Tree, write_trees
from envkit.assemble.layer_pool import download_size, layer_key
from envkit.assemble.wheel import data_of, open_wheel
from envkit.ground.cache import DOWNLOADS, LISTINGS
from envkit.ground.errors import EnvironmentProblem
from envkit.ground.host import cores
from envkit.ground.progress import counted
from envkit.ground.sizes import shown_size
from envkit.image.deflate import crc32
from envkit.lock.index_locations import authorization
from envkit.lock.model import Wheel
from envkit.registry.download import Item, fetch, from_url

if TYPE_CHECKING:
    from envkit.assemble.bytecode import Compiler
    from envkit.assemble.layer_plan import Contents
    from envkit.assemble.layer_pool import Made, Progress
    from envkit.assemble.wheel import Scheme
    from envkit.ground.progress import Reporter
    from envkit.lock.index_locations import IndexLocations
    from envkit.registry.transport import Transport

_LISTING = "envkit.wheel-listing/1"
_USUAL_RATIO = 2  # unpacked to packed size: an estimate for the progress bar until the wheel is opened
_PIECE = 1 << 20

Group = tuple[Wheel, ...]
"""The wheels of one layer."""


class Wheels:
    """The wheels of one build; a `stage.Kind`.

    Args:
        cache: XDG_CACHE_HOME/envkit.
        own: the user's folder of wheels, which is searched first.
        built: files of wheels that were built from source, by SHA-256; no index has them.
        indexes: the package sources and mirrors.
        transport: the connections.
        reporter: gets steps and the progress of downloads.
        scheme: the paths in the image.
        compression: of the layers, one of `compress.COMPRESSIONS`.
        offline: download nothing.
        compiler: compiles the modules; None leaves them as sources.
    """

    name = "wheels"
    threaded_from = 64 << 20

    def __init__(
        self,
        cache: Path,
        *,
        own: Path | None,
        built: Mapping[str, Path] = MappingProxyType({}),
        indexes: IndexLocations,
        transport: Transport,
        reporter: Reporter,
        scheme: Scheme,
        compression: str,
        offline: bool,
        compiler: Compiler | None = None,
    ) -> None:
        self._cache, self._downloads, self._own = cache, DOWNLOADS.at(cache), own
        self._indexes, self._transport, self._reporter = indexes, transport, reporter
        self._scheme, self._compression, self._offline = scheme, compression, offline
        self._compiler = compiler
        self._files = dict(built)  # by SHA-256

    def key(self, group: Group) -> str:
        """See `stage.Kind`."""
        return layer_key(
            tuple(wheel.sha256 for wheel in group),
            self._scheme,
            compression=self._compression,
            bytecode=None if self._compiler is None else self._compiler.key,
        )

    def find(self, wheels: Sequence[Wheel]) -> None:
        """Look for wheels in the user's folder; files with the right name but other bytes are ignored.

        Raises:
            EnvironmentProblem: the folder cannot be read.
        """
        if self._own is None:
            return
        self._reporter.step(f"look for wheels in {self._own}")
        if not self._own.is_dir():
            raise EnvironmentProblem(
                f"the wheel folder {self._own} cannot be read", hint="set ENVKIT_WHEEL_DIR to another folder"
            )
        with ThreadPoolExecutor(cores(), thread_name_prefix="envkit-hash") as pool:
            unknown = [wheel for wheel in wheels if wheel.sha256 not in self._files]
            ranked = sorted(unknown, key=lambda wheel: -wheel.size)
            paths = [self._own / wheel.file for wheel in ranked]
            for wheel, matches in zip(ranked, pool.map(_is_wheel, ranked, paths), strict=True):
                if matches:
                    self._files[wheel.sha256] = self._own / wheel.file

    def provide(self, groups: Sequence[Group], progress: Progress, ready: Callable[[Group], object]) -> None:
        """Find or download the wheels.

        Raises:
            IntegrityError: a download does not match the lock.
            EngineError: an index refuses.
            EnvironmentProblem: the disk is full, an index cannot be reached, or the user's folder cannot be read.
            TimeLimitError: the deadline has passed, or an index does not answer.
        """
        wheels = [wheel for group in groups for wheel in group]
        progress.expect(sum(wheel.size * _USUAL_RATIO for wheel in wheels))
        self.find(wheels)
        waiting = []
        for group in groups:
            if self._has(group):
                ready(group)
            else:
                waiting.append(group)
        missing = [wheel for wheel in wheels if wheel.sha256 not in self._files]
        if missing:
            self._download(missing, waiting, progress, ready)
        self._reporter.step(f"assemble {counted(len(groups), 'layer')} of {counted(len(wheels), 'wheel')}")

    def write(self, group: Group, layer: LayerWriter, progress: Progress) -> None:
        """Write the wheels' files as an installer would.

        Raises:
            IntegrityError: a wheel is damaged or invalid.
            EnvironmentProblem: a file cannot be read.
        """
        with contextlib.ExitStack() as opened:
            trees = [
                opened.enter_context(open_wheel(self._files[wheel.sha256], self._scheme, wheel.file)) for wheel in group
            ]
            for wheel, tree in zip(group, trees, strict=True):
                LISTINGS.write(self._cache, self.key((wheel,)), _LISTING, contents(tree))
            if self._compiler is not None:
                trees.append(_bytecode(trees, self._compiler, self._scheme, progress.check))
            unpacked = sum(file.size for tree in trees for file in tree.files)
            progress.expect(unpacked - download_size(group) * _USUAL_RATIO)  # replaces the estimate of `provide`
            write_trees(trees, layer)

    def made(self, group: Group) -> None:
        """Remove the downloads; files in the user's folder stay."""
        # The cached layer has their contents, and the wheels of torch with CUDA take gigabytes.
        for wheel in group:
            if self._files[wheel.sha256] == self._downloads / wheel.sha256:
                self._files[wheel.sha256].unlink(missing_ok=True)

    def listings(self, layers: Sequence[Made[Wheel]]) -> list[tuple[str, Contents]]:
        """Return the listings of the layers' wheels, as far as they are cached."""
        kept: list[tuple[str, Contents]] = []
        for wheel in (wheel for made in layers for wheel in made.packages):
            listing = LISTINGS.read(self._cache, self.key((wheel,)), _LISTING)
            if isinstance(listing, dict):
                kept.append((f"{wheel.name} {wheel.version}", listing))
        return kept

    def _has(self, group: Group) -> bool:
        return all(wheel.sha256 in self._files for wheel in group)

    def _download(
        self, wheels: Sequence[Wheel], waiting: list[Group], progress: Progress, ready: Callable[[Group], object]
    ) -> None:
        total = sum(wheel.size for wheel in wheels)
        self._reporter.step(f"download {counted(len(wheels), 'wheel')} ({shown_size(total)})")

        def on_bytes(done: int, total: int) -> None:
            progress.check()
            self._reporter.advance(done, total)

        def on_file(sha256: str) -> None:
            self._files[sha256] = self._downloads / sha256
            for group in [group for group in waiting if self._has(group)]:
                waiting.remove(group)
                ready(group)

        items = [item(wheel, self._indexes, self._transport) for wheel in wheels]
        policy = self._transport.policy
        fetch(items, self._downloads, policy, on_bytes, offline=self._offline, on_file=on_file, check=progress.check)


def item(wheel: Wheel, indexes: IndexLocations, transport: Transport) -> Item:
    """Return the download of a wheel."""
    url = indexes.fetch_url(wheel.url)
    return from_url(
        transport,
        name=f"{wheel.name} {wheel.version}",
        url=url,
        sha256=wheel.sha256,
        size=wheel.size,
        authorization=authorization(url, indexes.python_index),
    )


def contents(tree: Tree) -> dict[str, str | None]:
    """Return the listing of a wheel; see `layer_plan.Contents`."""
    return {file.path: _contents(file) for file in tree.files}


def _contents(file: File) -> str:
    # CRC-32s are enough for a note to the user, and a zip file has them without inflating.
    return f"{file.size} {int(file.executable)} {' '.join(f'{_crc(part):08x}' for part in file.parts)}"


def _crc(part: bytes | Slice | Generated) -> int:
    if isinstance(part, Slice):
        return part.crc
    return crc32(part.data if isinstance(part, Generated) else part)


def _bytecode(trees: Sequence[Tree], compiler: Compiler, scheme: Scheme, check: Callable[[], None]) -> Tree:
    """Return the bytecode of the packages' modules as one more package of the layer."""
    files = {file.path: file for tree in trees for file in tree.files}  # as in `write_trees`
    compiled = compiler.compile(
        {path: partial(data_of, file) for path, file in files.items()},
        {path: file.size for path, file in files.items()},
        scheme.modules,
        check,
    )
    made = (
        File(path=path, size=len(data), executable=False, parts=(Generated(data, bytecode.LEVEL),))
        for path, data in compiled.items()
        if path not in files  # RECORD has the hash of a wheel's own
    )
    return Tree(name="bytecode", version="", files=tuple(made), folders=())


def _is_wheel(wheel: Wheel, path: Path) -> bool:
    """Return whether the file has the SHA-256 of the lock."""
    try:
        if path.stat().st_size != wheel.size:
            return False
        digest = hashlib.sha256()
        with path.open("rb", buffering=0) as file:
            while piece := file.read(_PIECE):
                digest.update(piece)
    except OSError:
        return False
    return digest.hexdigest() == wheel.sha256
