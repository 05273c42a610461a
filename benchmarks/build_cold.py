"""torch 2.7.1 for CUDA 12.6 from wheels, from lock to an image in a registry: the embedded engine, and its rivals.

    python -m benchmarks.build_cold [FOLDER] [--sides envkit,docker,buildah]

FOLDER holds the wheels; without it pip downloads them once (2.8 GB). Downloads are local for all: the embedded engine
reads the folder, and pip and uv inside the builds meet it as an index on loopback. None has a cache. Base
images are pulled before. Python comes from the test world's conda channel on every side.

docker: `docker build` of the rendered context, with pip, and `docker push`. buildah: the same context with uv in
pip's place, and a push with zstd.

The assembling alone, with the wheels hashed against the lock, is set against the least that any program must do with
the same bytes: see `benchmarks.wheel_layers`, which measures that ratio without the rest of the image.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import _buildah, _sides, wheel_layers
from benchmarks._report import Figure, finish
from envkit.ground.host import cores
from tests.world.world import Part

DEFINITION = """companions: []
template: miniconda
request: {os: debian12, python: "3.11", torch: "2.7.1", cuda: "12.6", source: pypi}
"""
RATIO_RUNS = 5
NEEDED = (
    22 << 30
)  # bytes: a builder keeps the environment twice, in its build stage and in the image, and packs it once
NAME = "large"
OWN = "envkit"
GOALS = {"docker": 12.0, "buildah": 8.0}  # how many times faster the embedded engine has to be
SIDES = (OWN, *GOALS)
_PARTS: tuple[Part, ...] = ("registry", "base", "channel", "miniconda")


def wheels_of(folder: Path | None) -> Path:
    """The folder of torch's wheels: the one that was named, else one that pip fills once."""
    return folder.resolve() if folder else wheel_layers._downloaded()  # noqa: SLF001


def embedded(here: _sides.Place, wheels: Path) -> float:
    """Seconds of the embedded engine."""
    own = {"ENVKIT_WHEEL_DIR": str(wheels)}
    took = here.embedded(NAME, f"registry:{here.registry}/embedded:1", "cold", own)
    shutil.rmtree(here.folder / "cold")
    print(f"embedded: {took:.1f} s to a registry")
    return took


def docker(here: _sides.Place, _: Path) -> float:
    """Seconds of `docker build` with pip, and `docker push`."""
    here.pull_bases(NAME)
    tag = f"{here.registry}/docker:1"
    built = here.docker_build(NAME, tag, cache=False)
    sent = here.docker_push(tag)
    here.remove_images()
    print(f"docker: {built:.1f} s to build, {sent:.1f} s to push")
    return built + sent


def buildah(here: _sides.Place, _: Path) -> float:
    """Seconds of buildah with uv, and its push with zstd."""
    context, tag = here.folder / NAME, f"{here.registry}/buildah:1"
    with _buildah.buildah(here.folder, lambda argv: here.run(argv)[0]) as tool:
        tool.pull(_buildah.bases((context / "Dockerfile").read_text()))
        built = tool.build(context, tag)
        sent = tool.push(tag)
    print(f"buildah ({tool.driver}): {built:.1f} s to build, {sent:.1f} s to push")
    return built + sent


RUN: dict[str, Callable[[_sides.Place, Path], float]] = {OWN: embedded, "docker": docker, "buildah": buildah}


def sides(text: str) -> tuple[str, ...]:
    """The sides that `--sides` names, in the order in which they are run."""
    named = text.split(",")
    if unknown := set(named) - set(SIDES):
        raise argparse.ArgumentTypeError(f"unknown side {', '.join(sorted(unknown))}; use {', '.join(SIDES)}")
    return tuple(side for side in SIDES if side in named)


def times(chosen: Sequence[str], wheels: Path) -> dict[str, float]:
    """Seconds from lock to registry of each side."""
    with _sides.place(*(("docker",) if "docker" in chosen else ()), *_PARTS) as here:
        free = shutil.disk_usage(here.folder).free
        if free < NEEDED:
            raise SystemExit(f"{here.folder} has {free / 1e9:.0f} GB free, and this needs {NEEDED / 1e9:.0f} GB")
        here.serve_wheels(wheels)
        here.lock(NAME, DEFINITION)
        return {side: RUN[side](here, wheels) for side in chosen}


def ratios(took: dict[str, float]) -> list[Figure]:
    """The embedded engine against each rival that ran."""
    return [
        Figure(
            name=f"lock to registry, {side}",
            figure=took[side] / took[OWN],
            unit="x",
            better="higher",
            goal=goal,
            against=f"{side} {took[side]:.1f} s, embedded {took[OWN]:.1f} s, {cores()} cores",
        )
        for side, goal in GOALS.items()
        if side in took
    ]


def over_floor(folder: Path) -> Figure:
    """Assembling over the least that any program must do with the wheels."""
    wheel_layers.one("floor", folder)
    samples: dict[str, list[tuple[float, float, float]]] = {side: [] for side in wheel_layers.SIDES}
    for _ in range(RATIO_RUNS):
        for side, rows in samples.items():
            rows.append(wheel_layers.one(side, folder))
            print(f"{side:<9} {rows[-1][0]:6.2f} s")
    floor = statistics.median(row[0] for row in samples["floor"])
    return Figure(
        name="assemble / floor",
        figure=wheel_layers.paired(samples, 0),
        unit="x",
        better="lower",
        goal=1.4,
        against=f"inflate + SHA-256, {floor:.2f} s, {RATIO_RUNS} runs side by side",
    )


def main() -> int:
    """Measure, print, and say by the exit code whether every goal holds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, metavar="FOLDER")
    parser.add_argument("--sides", type=sides, default=SIDES, metavar="NAMES")
    options = parser.parse_args()
    wheels = wheels_of(options.folder)
    took = times(options.sides, wheels)
    if OWN not in took:
        return 0  # seconds alone: there is nothing to hold them against
    return finish("build_cold", [*ratios(took), over_floor(wheels)])


if __name__ == "__main__":
    raise SystemExit(main())
