"""The wheels of a lock on this machine: in a folder of the user's, or downloaded; used only by their SHA-256."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Self

from envkit.assemble import pool
from envkit.assemble.wheel_layers import WheelFile
from envkit.ground.errors import EnvironmentProblem
from envkit.ground.paths import scratch
from envkit.lock.logins import authorization
from envkit.registry.download import Item, from_url

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from envkit.lock.model import Wheel
    from envkit.lock.places import Places
    from envkit.registry.transport import Transport

_PIECE = 1 << 20


class Wheelhouse:
    """Where wheels are; use it in a `with` statement.

    Args:
        downloads: folder of files named by their SHA-256.
        own: a folder that the user filled with wheels, looked at first.
    """

    def __init__(self, downloads: Path, own: Path | None) -> None:
        self._downloads, self._own = downloads, own
        self._held = scratch()
        self._names = self._held.__enter__()
        self._found: dict[str, Path] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._held.__exit__(kind, error, trace)

    def look(self, wheels: Sequence[Wheel]) -> None:
        """Find the wheels in the user's folder; a file of the right name with other bytes does not count.

        Raises:
            EnvironmentProblem: the folder cannot be read.
        """
        if self._own is None:
            return
        if not self._own.is_dir():
            raise EnvironmentProblem(
                f"the folder of wheels {self._own} cannot be read", hint="ENVKIT_WHEEL_DIR=DIR names another one"
            )
        with ThreadPoolExecutor(pool.cores(), thread_name_prefix="envkit-hash") as hashing:
            ranked = sorted(wheels, key=lambda wheel: -wheel.size)
            for wheel, path in zip(ranked, hashing.map(self._own_file, ranked), strict=True):
                if path is not None:
                    self._found[wheel.sha256] = path

    def has(self, wheel: Wheel) -> bool:
        """Whether the wheel was found, or has arrived."""
        return wheel.sha256 in self._found

    def arrived(self, wheel: Wheel) -> None:
        """The wheel is among the downloads now."""
        named = self._names / wheel.file
        named.symlink_to((self._downloads / wheel.sha256).absolute())
        self._found[wheel.sha256] = named

    def forget(self, wheel: Wheel) -> None:
        """Remove a download that its layer has made useless."""
        if self._found[wheel.sha256].is_symlink() and self._found[wheel.sha256].parent == self._names:
            (self._downloads / wheel.sha256).unlink(missing_ok=True)

    def file(self, wheel: Wheel) -> WheelFile:
        """The wheel as the layers take it."""
        return WheelFile(path=self._found[wheel.sha256], name=wheel.name, sha256=wheel.sha256, size=wheel.size)

    def _own_file(self, wheel: Wheel) -> Path | None:
        assert self._own is not None
        path = self._own / wheel.file
        try:
            if path.stat().st_size != wheel.size:
                return None
            digest = hashlib.sha256()
            with path.open("rb", buffering=0) as file:
                while piece := file.read(_PIECE):
                    digest.update(piece)
        except OSError:
            return None
        return path if digest.hexdigest() == wheel.sha256 else None


def item(wheel: Wheel, places: Places, transport: Transport) -> Item:
    """The download of a wheel."""
    url = places.fetch_url(wheel.url)
    return from_url(
        transport,
        name=f"{wheel.name} {wheel.version}",
        url=url,
        sha256=wheel.sha256,
        size=wheel.size,
        authorization=authorization(url, places.python_index),
    )
