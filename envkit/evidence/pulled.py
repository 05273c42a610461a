"""What pip downloads with a wheel of torch: everything that it requires, as on the day of its release.

Some requirements name no exact version (sympy, triton from 2.14 on), so the day decides: the same wheel has the same
answer for ever. uv solves it, as it solves locks.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from envkit.ground import json_cache
from envkit.ground.errors import ConflictError, UsageError
from envkit.lock import uv
from envkit.lock.wheel_choice import IndexWheel, parse_pylock, ranks_of

if TYPE_CHECKING:
    from pathlib import Path

    from envkit.evidence.index import Index, WheelFile

SCHEMA = "envkit.pulled-evidence/1"
_GLIBC = "2.36"  # of debian12, the default OS; wheels that need less are taken as well


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulled:
    """The wheels that are installed with a wheel of torch."""

    python: str  # that they were chosen for: '3.11'
    day: str  # newer files were not considered
    wheels: tuple[IndexWheel, ...]  # sorted by name, all with a size

    @property
    def size(self) -> int:
        """Bytes of all of them."""
        return sum(wheel.size or 0 for wheel in self.wheels)

    @property
    def sha256(self) -> str:
        """Of their names, versions, hashes and sizes."""
        rows = [(wheel.name, wheel.version, wheel.sha256, wheel.size) for wheel in self.wheels]
        return hashlib.sha256(json.dumps(rows).encode()).hexdigest()

    @property
    def quote(self) -> str:
        """Each wheel with its bytes."""
        return "; ".join(f"{wheel.name} {wheel.version} {wheel.size}" for wheel in self.wheels)


def read_pulled(index: Index, file: WheelFile, platform: str, *, cache: Path | None = None) -> Pulled | None:
    """Solve what a wheel of torch pulls; None where the index does not say it.

    An index says it if it has every package, with sizes and upload times.

    Args:
        index: where the files are.
        file: a wheel of torch.
        platform: of the wheel, 'linux-64'.
        cache: folder where the answer is kept by the wheel's SHA-256; None = nowhere.

    Raises:
        EnvironmentProblem: uv is missing, or the index does not answer.
        TimeLimitError: no end in time.
    """
    if None in (file.sha256, file.size, file.uploaded) or not file.pythons:
        return None
    key = f"{file.sha256}-pulled"
    kept = None if cache is None else json_cache.read(cache, key, SCHEMA)
    if kept is None:
        kept = _solved(index, file, platform)
        if kept is not None and cache is not None:
            json_cache.write(cache, key, SCHEMA, kept)
    if kept is None:
        return None
    return Pulled(python=file.pythons[0], day=file.uploaded or "", wheels=tuple(IndexWheel(**row) for row in kept))


def _solved(index: Index, file: WheelFile, platform: str) -> list[dict[str, Any]] | None:
    python = file.pythons[0].removesuffix("t")
    # Requires-Python may name a patch release (>=3.6.2), which a version without one does not satisfy.
    target = uv.Target(platform=platform, glibc=_GLIBC, python=f"{python}.99")
    try:
        text, _ = uv.compile_wheels(
            [f"torch=={file.version}"], target, uv.Limits(chosen={}),
            uv.Index(url=index.url, ca_bundle=index.ca_bundle), as_of=f"{file.uploaded}T23:59:59Z",
        )  # fmt: skip
    except (ConflictError, UsageError):  # a package is not on the index, or the index has no upload times
        return None
    wheels = parse_pylock(text, ranks_of(platform, _GLIBC, python))
    if any(wheel.size is None for wheel in wheels):
        return None
    rest = [wheel for wheel in wheels if wheel.name != "torch"]
    # The answer is about this very wheel only if it is the one that uv chose.
    return [asdict(wheel) for wheel in rest] if file.sha256 in {wheel.sha256 for wheel in wheels} else None
