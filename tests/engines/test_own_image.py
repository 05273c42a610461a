"""`make image`: envkit, built into an image by its own embedded engine, runs there."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from envkit import __version__
from envkit.ground.naming import FILE_STEM
from envkit.run import runners
from tests.world.places import REPOSITORY, UnavailableError

pytestmark = [pytest.mark.engine, pytest.mark.long]
LIMIT_MB = 150


def usable_runner() -> str:
    """A runner of images that are files; Docker and Podman would keep the image."""
    if shutil.which("mmdebstrap") is None:
        raise UnavailableError("mmdebstrap is not installed")
    faults = {name: runners.make(name).probe() for name in ("bubblewrap", "proot")}
    found = [name for name, fault in faults.items() if fault is None]
    if not found:
        raise UnavailableError("; ".join(map(str, faults.values())))
    return found[0]


def test_the_image_of_envkit_runs_envkit(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, REPOSITORY / "ci" / "image" / "build.py", tmp_path / "image"],
        env={**os.environ, "ENVKIT_RUNNER": usable_runner(), "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=800,
    )
    assert done.returncode == 0, done.stderr
    assert f"\nenvkit {__version__}\n" in f"\n{done.stdout}"
    assert "torch   2.7.1        last release with CUDA 11.8 builds" in done.stdout
    layout = tmp_path / "image" / "layout"
    size = sum(path.stat().st_size for path in layout.rglob("*") if path.is_file())
    assert size < LIMIT_MB * 1_000_000
    wheels = {path.name.partition("-")[0].lower() for path in (tmp_path / "image" / "site").glob("*.dist-info")}
    assert wheels == {FILE_STEM}
    assert '"torch' not in (tmp_path / "image" / "plan.json").read_text().partition('"family":')[2][:20]
