"""`envkit lock --update torch` on a lock of a year ago, against `uv pip compile -P torch`: packages moved, and seconds.

    python -m benchmarks.lock_update [DAYS]

The old lock is solved with nothing newer than DAYS days ago (365 if not given), so it needs an index that publishes
upload times. Both tools start from its versions and get the same requirements. Only metadata is downloaded.
"""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from packaging.utils import canonicalize_name

from benchmarks._report import Figure, finish, tell
from benchmarks.one_solve import Answer, by_uv
from envkit.lock.store import read_lock

LINES = ("einops", "transformers", "accelerate", "torchmetrics", "pandas", "requests")
_FLAGS = ("--source", "pypi", "--template", "wheels", "--base", "none")
_YEAR = 365
_LIMIT_S = 600


def versions_of(folder: Path) -> dict[str, str]:
    """Return the wheels of the folder's lock by name."""
    return {wheel.name: wheel.version for wheel in read_lock(folder / "envkit.lock").wheels}


def locked(folder: Path, *options: str) -> float:
    """Solve the lock of a folder's requirements.txt; return the seconds.

    Raises:
        SystemExit: it has no solution.
    """
    argv = [sys.executable, "-m", "envkit", "lock", "requirements.txt", *_FLAGS, *options]
    began = time.monotonic()
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    if done.returncode != 0:
        raise SystemExit(f"envkit lock {' '.join(options)}: {done.stderr}")
    return time.monotonic() - began


def updated_by_uv(folder: Path, old: dict[str, str], python: str) -> Answer:
    """Return what uv chooses for the same requirements with the old versions as preferences, torch excepted.

    Raises:
        SystemExit: it has no solution.
    """
    # What every image has beside the lines of the file.
    (folder / "requirements.txt").write_text("".join(f"{line}\n" for line in ("torch", "torchvision", "numpy", *LINES)))
    pins = "".join(f"{name}=={version}\n" for name, version in sorted(old.items()))
    (folder / "old.txt").write_text(pins)
    answer = by_uv(folder, python, "--output-file", "old.txt", "-P", "torch")
    if isinstance(answer, str):
        raise SystemExit(f"uv: {answer}")
    return answer


def moved(old: dict[str, str], new: dict[str, str]) -> set[str]:
    """Return the names whose version changed, and those that joined or left."""
    return {canonicalize_name(name) for name in old.keys() | new.keys() if old.get(name) != new.get(name)}


def main() -> int:
    """Update one lock with both tools; return 0 if they move equally many packages."""
    days = int(sys.argv[1]) if sys.argv[1:] else _YEAR
    day = (dt.datetime.now(dt.UTC) - dt.timedelta(days=days)).date().isoformat()
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "requirements.txt").write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
        first = locked(folder, "--as-of", day)
        old, python = versions_of(folder), read_lock(folder / "envkit.lock").python
        kept = locked(folder)
        unchanged = moved(old, versions_of(folder))
        seconds = locked(folder, "--update", "torch")
        new = versions_of(folder)
        uv = updated_by_uv(folder, old, python)
    own, other = moved(old, new), moved(old, uv.versions)
    tell(f"lock of {day}: torch {old['torch']}, Python {python}, {len(old)} packages, {first:.0f} s")
    tell(f"envkit lock: {len(unchanged)} packages moved, {kept:.0f} s")
    tell(f"envkit lock --update torch: torch {new['torch']}, {len(own)} packages moved, {seconds:.0f} s")
    tell(f"uv pip compile -P torch: torch {uv.versions['torch']}, {len(other)} packages moved, {uv.seconds:.0f} s")
    tell(f"only envkit moved: {', '.join(sorted(own - other)) or 'none'}")
    tell(f"only uv moved: {', '.join(sorted(other - own)) or 'none'}")
    return finish(
        "lock_update",
        [
            Figure(
                name="difference in packages moved", figure=len(own ^ other), unit="", better="lower", goal=0,
                against="uv pip compile -P torch",
            ),
        ],
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
