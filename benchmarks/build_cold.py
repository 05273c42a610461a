"""torch 2.7.1 for CUDA 12.6 from wheels, from lock to an image in a registry: the embedded engine, and Docker.

    python -m benchmarks.build_cold [FOLDER]

FOLDER holds the wheels; without it pip downloads them once (2.8 GB). Downloads are local for both: the embedded engine
reads the folder, and pip inside `docker build` meets it as an index on loopback. Neither has a cache. Docker's base
images are pulled before. Python comes from the test world's conda channel on both sides.

The assembling alone, with the wheels hashed against the lock, is set against the least that any program must do with
the same bytes: see `benchmarks.wheel_layers`, which measures that ratio without the rest of the image.
"""

from __future__ import annotations

import shutil
import statistics
import sys
from pathlib import Path

from benchmarks import _sides, wheel_layers
from benchmarks._report import Figure, finish
from envkit.assemble.stage import cores

DEFINITION = """companions: []
template: miniconda
request: {os: debian12, python: "3.11", torch: "2.7.1", cuda: "12.6", source: pypi}
"""
RATIO_RUNS = 5
NEEDED = 22 << 30  # bytes: Docker keeps the environment twice, in its build stage and in the image, and packs it once


def wheels_of(arguments: list[str]) -> Path:
    """The folder of torch's wheels: the one that was named, else one that pip fills once."""
    return Path(arguments[0]).resolve() if arguments else wheel_layers._downloaded()  # noqa: SLF001


def main() -> int:
    """Measure, print, and say by the exit code whether every goal holds."""
    folder = wheels_of(sys.argv[1:])
    own = {"ENVKIT_WHEEL_DIR": str(folder)}
    with _sides.place("docker", "registry", "base", "channel", "miniconda") as here:
        free = shutil.disk_usage(here.folder).free
        if free < NEEDED:
            raise SystemExit(f"{here.folder} has {free / 1e9:.0f} GB free, and this needs {NEEDED / 1e9:.0f} GB")
        here.serve_wheels(folder)
        here.lock("large", DEFINITION)
        here.pull_bases("large")
        embedded = here.embedded("large", f"registry:{here.registry}/embedded:1", "cold", own)
        print(f"embedded: {embedded:.1f} s to a registry")
        shutil.rmtree(here.folder / "cold")
        tag = f"{here.registry}/docker:1"
        built = here.docker_build("large", tag, cache=False)
        print(f"docker: {built:.1f} s to build")
        sent = here.docker_push(tag)
        print(f"docker: {sent:.1f} s to push")
    wheel_layers.one("floor", folder)
    samples: dict[str, list[tuple[float, float, float]]] = {side: [] for side in wheel_layers.SIDES}
    for _ in range(RATIO_RUNS):
        for side, rows in samples.items():
            rows.append(wheel_layers.one(side, folder))
            print(f"{side:<9} {rows[-1][0]:6.2f} s")
    floor = statistics.median(row[0] for row in samples["floor"])
    return finish(
        "build_cold",
        [
            Figure(
                name="lock to registry",
                figure=(built + sent) / embedded,
                unit="x",
                better="higher",
                goal=12,
                against=f"docker build {built:.1f} s + push {sent:.1f} s, embedded {embedded:.1f} s, {cores()} cores",
            ),
            Figure(
                name="assemble / floor",
                figure=wheel_layers.paired(samples, 0),
                unit="x",
                better="lower",
                goal=1.4,
                against=f"inflate + SHA-256, {floor:.2f} s, {RATIO_RUNS} runs side by side",
            ),
        ],
    )


if __name__ == "__main__":
    sys.exit(main())
