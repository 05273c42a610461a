"""A file system that is full, a real one: under the cache, and under the output."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.engines.conformance.commands import check_cache, error, files, place_at
from tests.engines.conformance.sources import Sources
from tests.engines.faults import Proxy
from tests.world.places import UnavailableError

pytestmark = pytest.mark.engine


@pytest.fixture
def tiny() -> Iterator[Path]:
    """A file system of its own, of 400 MB."""
    folder = Path(tempfile.mkdtemp(prefix="envkit-tests-"))  # where no other test run clears up
    words = ["mount", "-t", "tmpfs", "-o", "size=400m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(words, capture_output=True, check=False).returncode:
        raise UnavailableError("no file system can be mounted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)
    folder.rmdir()


def _fill(folder: Path, *, but: int) -> Path:
    """Fill a file system up to so many bytes."""
    status = os.statvfs(folder)
    ballast = folder / "ballast"
    with ballast.open("wb") as stream:
        os.posix_fallocate(stream.fileno(), 0, status.f_bavail * status.f_frsize - but)
    return ballast


@pytest.mark.requirement("R26")
@pytest.mark.parametrize("left", [0, pytest.param(24576, marks=pytest.mark.long)])
def test_a_full_disk_under_the_cache(
    tiny: Path, tmp_path: Path, wheels_files: Path, *, served: Sources, proxy: Proxy, left: int
) -> None:
    place = place_at(wheels_files, tmp_path, tiny / "cache", served, proxy)
    output, cache = files(place.output), files(place.cache)
    ballast = _fill(tiny, but=left)
    done = place.envkit("--no-cache")
    assert done.returncode == 9, done.stderr
    assert "full" in error(done)
    assert str(tiny) in error(done)
    assert files(place.output) == output
    ballast.unlink()
    check_cache(place.cache, cache)
    assert place.envkit("--no-cache").returncode == 0
    assert files(place.output / "blobs") == _files_of(output, "blobs/")


def _files_of(files: Mapping[str, str], below: str) -> dict[str, str]:
    return {name.removeprefix(below): digest for name, digest in files.items() if name.startswith(below)}


@pytest.mark.requirement("R26", "R57")
@pytest.mark.long
def test_a_full_disk_under_the_output(
    tiny: Path, tmp_path: Path, wheels_files: Path, served: Sources, proxy: Proxy
) -> None:
    place = place_at(wheels_files, tmp_path, tmp_path / "cache", served, proxy)
    output = tiny / "out" / "image"
    first = place.envkit("--output", f"oci:{output}")
    assert first.returncode == 0, first.stderr
    kept, cache = files(output), files(place.cache)
    ballast = _fill(tiny, but=1 << 20)
    done = place.envkit("--output", f"oci:{output}", "--label", "com.example.run=2")
    assert done.returncode == 9, done.stderr
    assert str(tiny) in error(done)
    ballast.unlink()
    assert files(output) == kept
    assert [path.name for path in output.parent.iterdir()] == [output.name]
    check_cache(place.cache, cache)
