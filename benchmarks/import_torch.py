"""Seconds of `import torch` in an image of the embedded engine, of Docker with pip, and of conda packages.

    python -m benchmarks.import_torch [RUNS]

The first two images are made from the same lock: torch's CPU wheels on a conda Python, assembled by the embedded engine
or installed by pip in `docker build`. The third has torch as a conda package, assembled by the embedded engine. All run
in Docker, in turn, RUNS times (10) after one run each that fills the page cache; the time is taken inside, from before
the import to after it. `docker-daemon` outputs are checked by Docker's own ID, so what runs is what was assembled.

Goal: at most 1.1 times the image of Docker with pip. Bytecode makes the difference: without it, every start of a Python
compiles what it imports.
"""

from __future__ import annotations

import statistics
import subprocess
import sys

from benchmarks import _sides
from benchmarks._report import Figure, finish, tell
from tests.world.world import Part

GOAL = 1.1
RUNS = 10
WHEELS = """companions: []
template: miniconda
request: {os: debian12, python: "3.11", torch: "2.13.0", cpu: true, source: pytorch}
"""
CONDA = """companions: []
request: {os: debian12, python: "3.11", cpu: true, source: conda-forge}
"""
_IMPORT = "import time; begin = time.perf_counter(); import torch; print(time.perf_counter() - begin)"
_PARTS: tuple[Part, ...] = ("docker", "registry", "base", "channel", "miniconda")


def seconds(space: _sides.Workspace, image: str) -> float:
    """Return the seconds of one import in a new container."""
    argv = [space.client, "run", "--rm", "--network", "none", image, "python", "-c", _IMPORT]
    return float(subprocess.run(argv, env=space.env, check=True, capture_output=True, text=True).stdout)


def main() -> int:
    """Build the images, run them in turn, and return 0 if the goal holds."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else RUNS
    with _sides.workspace(*_PARTS) as space:
        space.lock("wheels", WHEELS)
        space.lock("conda", CONDA)
        images = {name: f"localhost/import-torch/{name}:1" for name in ("embedded", "docker", "conda")}
        space.images += [images["embedded"], images["conda"]]
        for name, definition in (("embedded", "wheels"), ("conda", "conda")):
            took = space.embedded(definition, f"docker-daemon:{images[name]}", "cache")
            tell(f"{name}: {took:.0f} s to build and load")
        space.pull_bases("wheels")
        tell(f"docker: {space.docker_build('wheels', images['docker'], cache=False):.0f} s to build")
        taken: dict[str, list[float]] = {name: [] for name in images}
        for turn in range(runs + 1):
            for name, image in images.items():
                took = seconds(space, image)
                if turn:
                    taken[name].append(took)
        middle = {name: statistics.median(values) for name, values in taken.items()}
        for name, values in taken.items():
            tell(f"{name}: {middle[name]:.2f} s ({min(values):.2f} to {max(values):.2f}, {runs} runs)")
    against = f"docker with pip {middle['docker']:.2f} s, embedded {middle['embedded']:.2f} s, {runs} runs in turn"
    figures = [
        Figure(name=name, figure=middle[name] / middle["docker"], unit="x", better="lower", goal=GOAL, against=against)
        for name in ("embedded", "conda")
    ]
    return finish("import_torch", figures)


if __name__ == "__main__":
    sys.exit(main())
