"""`envkit inspect` on an engine's image, and on the archive that the engine saves: the same packages."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.world.world import World

pytestmark = [pytest.mark.engine, pytest.mark.long]


@pytest.fixture(params=["docker", "podman"])
def engine(request: pytest.FixtureRequest, place: World) -> str:
    """An engine that has the Debian base."""
    place.require(request.param, "registry", "base")
    assert place.base is not None
    if request.param == "podman":
        subprocess.run(["podman", "pull", "--quiet", place.base], check=True, capture_output=True)
    return str(request.param)


@pytest.fixture
def base(place: World) -> str:
    """The name of the base in the engine, which is not one of a registry to envkit."""
    assert place.base is not None
    return place.base


def inspect(*words: str) -> Any:
    argv = [sys.executable, "-m", "envkit", "inspect", *words, "--json", "-q"]
    return json.loads(subprocess.run(argv, check=True, capture_output=True, text=True).stdout)


def test_an_image_in_an_engine_and_its_archive(engine: str, base: str, tmp_path: Path) -> None:
    asked = subprocess.run(
        [engine, "image", "inspect", "--format", "{{.Id}}", base], check=True, capture_output=True, text=True
    )
    ident = f"sha256:{asked.stdout.strip().removeprefix('sha256:')}"
    told = inspect(ident, "--runner", engine)
    assert (told["packages_from"], told["packages"]["deb"] > 50) == ("container", True)
    listed = inspect(ident, "--runner", engine, "--licenses")
    assert (listed["packages_from"], listed["packages"]) == ("layers", told["packages"])
    rows = {one["name"]: one for one in listed["listing"]["packages"]}
    assert "GPL-3" in rows["bash"]["license"]
    subprocess.run([engine, "save", "--output", str(tmp_path / "image.tar"), base], check=True, capture_output=True)
    saved = inspect(f"docker-archive:{tmp_path / 'image.tar'}", "--packages")
    assert saved["listing"]["packages"] == listed["listing"]["packages"]
