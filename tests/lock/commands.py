"""The real command line as a process, and the loopback sources that meet what the shipped images ask for."""

import atexit
import io
import json
import os
import random
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from envkit.lock import request
from envkit.plan.model import BuildPlan
from tests.lock.served import Dist, Pkg, Site, put_channel, put_index
from tests.support.forked import CommandLine
from tests.support.plans import shipped_plan

LIMIT_S = 120

CPU = shipped_plan("cpu")
CU126 = shipped_plan("cu126", source="pytorch")


# What an interpreter reads when it starts, so that it needs a process of its own.
_AT_START = ("PYTHON", "LC_", "LANG", "TZ")


@cache
def _forked() -> CommandLine:
    started = CommandLine().__enter__()
    atexit.register(started.__exit__)
    return started


def envkit(
    folder: Path, *arguments: str, env: Mapping[str, str] | None = None, umask: int = -1
) -> subprocess.CompletedProcess[str]:
    """Run `envkit` in a folder, with everything imported before unless the variables are those of a start."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("ENVKIT_", "LC_", "LANG", "TZ"))}
    argv, variables = ["envkit", *arguments], kept | dict(env or {})
    if any(name.startswith(_AT_START) for name in env or {}):
        argv = [sys.executable, "-m", *argv]
        return subprocess.run(
            argv, cwd=folder, env=variables, umask=umask, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
    with tempfile.TemporaryDirectory() as name:
        output = Path(name)
        answer = _forked().run(arguments, folder, output, variables, wall=LIMIT_S, umask=umask)
        out, err = ((output / stream).read_text() for stream in ("stdout", "stderr"))
    return subprocess.CompletedProcess(argv, answer["exit"], out, err)


def read_layout(layout: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Return the configuration of an image in an OCI layout, and its files by path."""

    def blob(named: Mapping[str, Any]) -> bytes:
        return (layout / "blobs" / "sha256" / str(named["digest"]).removeprefix("sha256:")).read_bytes()

    tree = json.loads(blob(json.loads((layout / "index.json").read_bytes())["manifests"][0]))
    files: dict[str, bytes] = {}
    for layer in tree["layers"]:
        with tarfile.open(fileobj=io.BytesIO(blob(layer))) as archive:
            for entry in archive:
                content = archive.extractfile(entry) if entry.isfile() else None
                if content:
                    files[entry.name] = content.read()
    config: dict[str, Any] = json.loads(blob(tree["config"]))
    return config["config"], files


def conda_rows(plan: BuildPlan) -> list[Pkg]:
    """One package for each conda spec of a plan, and one that all of them need."""
    found = [Pkg("shared", "1")]
    for spec in request.conda_specs(plan):
        name, _, rest = spec.partition(">=")[0].partition("=")
        version, _, build = rest.partition("=")
        made = "3.11.7" if name == "python" else version or "999"
        depends = ("shared",) if name == "python" else ("python 3.11.*",)
        found.append(Pkg(name, made, depends, build.replace("*", "_0") or "0"))
    return found


def wheel_rows(plan: BuildPlan) -> list[Dist]:
    """One wheel for each torch requirement of a plan, and the one that torch needs."""
    found = [Dist("nvidia-cublas-cu12", "12.6.4")]
    for line in plan.family:
        wanted = Requirement(line)
        version = next((one.version for one in wanted.specifier if one.operator == "=="), "999")
        found.append(Dist(wanted.name, version, ("nvidia-cublas-cu12",) if wanted.name == "torch" else ()))
    return found


def serve_images(site: Site, *, order: int = 0) -> dict[str, str]:
    """Serve what the images `cpu` and `cu126` need, rows shuffled by `order`; returns the settings."""
    shuffle = random.Random(order).shuffle
    packages = {(one.name, one.version): one for one in (*conda_rows(CPU), *conda_rows(CU126))}
    rows, wheels = list(packages.values()), wheel_rows(CU126)
    shuffle(rows)
    shuffle(wheels)
    put_channel(site, "conda-forge", rows)
    put_index(site, "/whl/cu126", wheels)
    return {"ENVKIT_CONDA_CHANNEL_ALIAS": site.url, "ENVKIT_PYTORCH_INDEX": f"{site.url}/whl"}
