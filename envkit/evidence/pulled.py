"""The wheels that pip downloads with a wheel of torch, as on the day of its release.

Some requirements have no exact version (sympy, triton since 2.14), so they are solved as of the release date: the
result for a wheel never changes. uv solves them, as it solves locks.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from envkit.ground.cache import EVIDENCE
from envkit.ground.errors import ConflictError, UsageError
from envkit.lock import uv
from envkit.lock.wheel_choice import IndexWheel, parse_pylock, ranks_of

if TYPE_CHECKING:
    from pathlib import Path

    from envkit.evidence.index import Index, WheelFile

SCHEMA = "envkit.pulled-evidence/1"
_GLIBC = "2.36"  # of debian12, the default OS; wheels that need an older one are compatible too


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulled:
    """The wheels that are installed with a wheel of torch."""

    python: str  # the Python for which they were chosen: '3.11'
    day: str  # newer files were ignored
    wheels: tuple[IndexWheel, ...]  # sorted by name, all with a size

    @property
    def size(self) -> int:
        """Bytes of all wheels."""
        return sum(wheel.size or 0 for wheel in self.wheels)

    @property
    def sha256(self) -> str:
        """SHA-256 of the names, versions, hashes and sizes."""
        rows = [(wheel.name, wheel.version, wheel.sha256, wheel.size) for wheel in self.wheels]
        return hashlib.sha256(json.dumps(rows).encode()).hexdigest()

    @property
    def quote(self) -> str:
        """Each wheel with its size in bytes."""
        return "; ".join(f"{wheel.name} {wheel.version} {wheel.size}" for wheel in self.wheels)


def read_pulled(index: Index, file: WheelFile, platform: str, *, cache: Path | None = None) -> Pulled | None:
    """Solve the requirements of a wheel of torch; None if the index lacks a package, a size or an upload time.

    Args:
        index: the package index.
        file: a wheel of torch.
        platform: the platform of the wheel, such as 'linux-64'.
        cache: XDG_CACHE_HOME/envkit, for the results by the wheel's SHA-256; None: not cached.

    Raises:
        EnvironmentProblem: uv is missing, or the index does not answer.
        TimeLimitError: uv did not finish in time.
    """
    if None in (file.sha256, file.size, file.uploaded) or not file.pythons:
        return None
    key = f"{file.sha256}-pulled"
    rows = None if cache is None else EVIDENCE.read(cache, key, SCHEMA)
    if rows is None:
        rows = _solved(index, file, platform)
        if rows is not None and cache is not None:
            EVIDENCE.write(cache, key, SCHEMA, rows)
    if rows is None:
        return None
    return Pulled(python=file.pythons[0], day=file.uploaded or "", wheels=tuple(IndexWheel(**row) for row in rows))


def _solved(index: Index, file: WheelFile, platform: str) -> list[dict[str, Any]] | None:
    python = file.pythons[0].removesuffix("t")
    # Requires-Python may have a patch release (>=3.6.2), which '3.6' alone would not satisfy.
    target = uv.Target(platform=platform, glibc=_GLIBC, python=f"{python}.99")
    try:
        text, _ = uv.compile_wheels(
            [f"torch=={file.version}"], target, uv.Limits(chosen={}),
            # The whole day: a `WheelFile` does not have the time of its upload.
            uv.Index(url=index.url, ca_bundle=index.ca_bundle), as_of=f"{file.uploaded}T23:59:59Z",
        )  # fmt: skip
    except (ConflictError, UsageError):  # a package is not on the index, or the index has no upload times
        return None
    wheels = parse_pylock(text, ranks_of(platform, _GLIBC, python))
    if any(wheel.size is None for wheel in wheels):
        return None
    rest = [wheel for wheel in wheels if wheel.name != "torch"]
    # The result is for this wheel only if uv chose exactly this file of torch.
    return [asdict(wheel) for wheel in rest] if file.sha256 in {wheel.sha256 for wheel in wheels} else None
