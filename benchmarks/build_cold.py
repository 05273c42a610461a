"""From the lock of torch 2.7.1 for CUDA 12.6 to an image in a registry: the embedded engine, Docker and Buildah.

    python -m benchmarks.build_cold [FOLDER] [--sides envkit,docker,buildah]

FOLDER has the wheels; without it pip downloads them once (2.8 GB). All downloads are local: the embedded engine reads
the folder, and pip and uv in the builds get it as an index on loopback. No side has a cache. Base images are pulled
before. On every side Python comes from the test world's conda channel.

docker: `docker build` of the rendered context with pip, and `docker push`. buildah: the same context with uv instead of
pip, and a push with zstd.

Assembling alone, with the wheels checked against the lock, is compared with the least work that any program must do on
the same bytes: see `benchmarks.wheel_layers`, which measures this ratio without the rest of the image.
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
# Bytes: a builder has the environment twice, in its build stage and in the image, and once more compressed.
NEEDED = 22 << 30
NAME = "large"
OWN = "envkit"
GOALS = {"docker": 12.0, "buildah": 8.0}  # how many times as fast the embedded engine must be
SIDES = (OWN, *GOALS)
_PARTS: tuple[Part, ...] = ("registry", "base", "channel", "miniconda")


def wheels_of(folder: Path | None) -> Path:
    """Return the folder of torch's wheels: the given one, or else one that pip fills once."""
    return folder.resolve() if folder else wheel_layers._downloaded()  # noqa: SLF001


def embedded(here: _sides.Workspace, wheels: Path) -> float:
    """Return the seconds of the embedded engine."""
    own = {"ENVKIT_WHEEL_DIR": str(wheels)}
    took = here.embedded(NAME, f"registry:{here.registry}/embedded:1", "cold", own)
    shutil.rmtree(here.folder / "cold")
    print(f"embedded: {took:.1f} s to a registry")
    return took


def docker(here: _sides.Workspace, _: Path) -> float:
    """Return the seconds of `docker build` with pip, and of `docker push`."""
    here.pull_bases(NAME)
    tag = f"{here.registry}/docker:1"
    built = here.docker_build(NAME, tag, cache=False)
    sent = here.docker_push(tag)
    here.remove_images()
    print(f"docker: {built:.1f} s to build, {sent:.1f} s to push")
    return built + sent


def buildah(here: _sides.Workspace, _: Path) -> float:
    """Return the seconds of buildah with uv, and of its push with zstd."""
    context, tag = here.folder / NAME, f"{here.registry}/buildah:1"
    with _buildah.buildah(here.folder, lambda argv: here.run(argv)[0]) as tool:
        tool.pull(_buildah.bases((context / "Dockerfile").read_text()))
        built = tool.build(context, tag)
        sent = tool.push(tag)
    print(f"buildah ({tool.driver}): {built:.1f} s to build, {sent:.1f} s to push")
    return built + sent


RUN: dict[str, Callable[[_sides.Workspace, Path], float]] = {OWN: embedded, "docker": docker, "buildah": buildah}


def sides(text: str) -> tuple[str, ...]:
    """Return the sides listed in `--sides`, in the order in which they are run."""
    named = text.split(",")
    if unknown := set(named) - set(SIDES):
        raise argparse.ArgumentTypeError(f"unknown side {', '.join(sorted(unknown))}; use {', '.join(SIDES)}")
    return tuple(side for side in SIDES if side in named)


def times(chosen: Sequence[str], wheels: Path) -> dict[str, float]:
    """Return the seconds of each side from lock to registry."""
    with _sides.workspace(*(("docker",) if "docker" in chosen else ()), *_PARTS) as here:
        free = shutil.disk_usage(here.folder).free
        if free < NEEDED:
            raise SystemExit(f"{here.folder} has {free / 1e9:.0f} GB free; this needs {NEEDED / 1e9:.0f} GB")
        here.serve_wheels(wheels)
        here.lock(NAME, DEFINITION)
        return {side: RUN[side](here, wheels) for side in chosen}


def ratios(took: dict[str, float]) -> list[Figure]:
    """Return the speedup of the embedded engine over each other side that ran."""
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
    """Return the time of assembling over that of the least work that any program must do on the wheels."""
    wheel_layers.measured("floor", folder)
    samples: dict[str, list[tuple[float, float, float]]] = {side: [] for side in wheel_layers.SIDES}
    for _ in range(RATIO_RUNS):
        for side, rows in samples.items():
            rows.append(wheel_layers.measured(side, folder))
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
    """Run the benchmark; return 0 if every goal holds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, metavar="FOLDER")
    parser.add_argument("--sides", type=sides, default=SIDES, metavar="NAMES")
    options = parser.parse_args()
    wheels = wheels_of(options.folder)
    took = times(options.sides, wheels)
    if OWN not in took:
        return 0  # without the embedded engine there is nothing to compare with
    return finish("build_cold", [*ratios(took), over_floor(wheels)])


if __name__ == "__main__":
    raise SystemExit(main())
