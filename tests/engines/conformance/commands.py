"""`envkit build --engine embedded` as a process, and what it must leave as it was."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.engines.conformance.sources import Sources
from tests.engines.faults import Proxy


@dataclass(frozen=True)
class Place:
    """A folder with a plan and its lock, a cache, and an output that holds an image already."""

    folder: Path
    variables: Mapping[str, str]

    @property
    def cache(self) -> Path:
        return Path(self.variables["XDG_CACHE_HOME"]) / "envkit"

    @property
    def output(self) -> Path:
        return self.folder / "out" / "image"

    def words(self, *more: str) -> list[str]:
        argv = [sys.executable, "-m", "envkit", "build", "--plan", "plan.json", "--locked", "envkit.lock"]
        argv += ["--engine", "embedded", "--output", f"oci:{self.output}", "--no-verify", "--progress", "plain"]
        return [*argv, *more]

    def envkit(self, *more: str, **variables: str) -> subprocess.CompletedProcess[str]:
        own = {**self.variables, **variables}
        return subprocess.run(
            self.words(*more), cwd=self.folder, env=own, capture_output=True, text=True, check=False, timeout=120
        )


def place_at(files: Path, folder: Path, cache: Path, served: Sources, proxy: Proxy) -> Place:
    """A folder with plan and lock of another one, where an image has been built."""
    for name in ("plan.json", "envkit.lock"):
        (folder / name).write_bytes((files / name).read_bytes())
    shutil.copytree(files / "project", folder / "project")
    kept = {name: value for name, value in os.environ.items() if name != "ENVKIT_PYTHON_INDEX"}
    own = {"XDG_CACHE_HOME": str(cache), "XDG_STATE_HOME": str(folder / "state"), "HOME": str(folder)}
    place = Place(folder, {**kept, **served.settings(proxy.address), **own})
    done = place.envkit()
    assert done.returncode == 0, done.stderr
    return place


def files(folder: Path) -> dict[str, str]:
    """Every file below a folder with the SHA-256 of its contents; links of an unpacked base lead anywhere."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink():
            with path.open("rb") as stream:
                found[str(path.relative_to(folder))] = hashlib.file_digest(stream, "sha256").hexdigest()
    return found


def whole(output: Path) -> str:
    """The manifest's digest of a layout that lacks nothing and in which every blob is what its name says."""
    assert all(name.rpartition("/")[2] == digest for name, digest in files(output / "blobs").items())
    rows = json.loads((output / "index.json").read_bytes())["manifests"]
    manifest = json.loads((output / "blobs" / rows[0]["digest"].replace(":", "/")).read_bytes())
    for one in (manifest["config"], *manifest["layers"]):
        assert (output / "blobs" / one["digest"].replace(":", "/")).stat().st_size == one["size"]
    return str(rows[0]["digest"])


def check_cache(folder: Path, before: Mapping[str, str]) -> None:
    """Nothing that was there is gone or changed (notes are written again), and nothing new is a half."""
    now = files(folder)
    assert {name: now.get(name) for name in before if not name.endswith(".json")} == {
        name: digest for name, digest in before.items() if not name.endswith(".json")
    }
    assert set(before) <= set(now)
    for name, digest in now.items():
        top, _, rest = name.partition("/")
        if name.startswith("layers/blobs/") or (top in ("downloads", "blobs") and not rest.endswith(".part")):
            assert name.rpartition("/")[2] == digest, name
    assert not [name for name in now if name.startswith("layers/new/")]


def error(done: subprocess.CompletedProcess[str]) -> str:
    """The line that says what happened."""
    assert "Traceback" not in done.stderr
    return next(line for line in done.stderr.splitlines() if line.startswith("error: "))
