"""The test world's conda image from the same lock: the embedded engine, and Docker with the Miniconda stand-in.

    python -m benchmarks.build_conda [runs]

Both start cold. The embedded engine has an empty cache, so its time includes downloading packages and base from
loopback. Docker has its base images, runs with `--no-cache`, and also downloads packages from loopback.
"""

from __future__ import annotations

import statistics
import sys

from benchmarks import _sides
from benchmarks._report import Figure, finish
from envkit.ground.host import cores

DEFINITION = 'companions: []\nrequest: {os: debian12, python: "3.11", cpu: true}\n'


def main() -> int:
    """Run the benchmark; return 0 if every goal holds."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    rows: list[tuple[float, float, float, float]] = []
    with _sides.workspace("docker", "registry", "base", "channel", "miniconda") as here:
        here.lock("cpu", DEFINITION)
        here.pull_bases("cpu")
        for run in range(runs):
            layout = here.embedded("cpu", f"oci:layout{run}", f"cold{run}")
            pushed = here.embedded("cpu", f"registry:{here.registry}/embedded{run}:1", f"again{run}")
            tag = f"{here.registry}/docker{run}:1"
            built = here.docker_build("cpu", tag, cache=False)
            sent = here.docker_push(tag)
            here.remove_images()
            rows.append((layout, pushed, built, sent))
            print(
                f"embedded: {layout:.1f} s to a layout, {pushed:.1f} s to a registry; "
                f"docker: {built:.1f} s to build, {sent:.1f} s to push"
            )
    layout, pushed, built, sent = (statistics.median(column) for column in zip(*rows, strict=True))
    against = f"docker build --no-cache, classic builder, {cores()} cores, {runs} runs side by side"
    return finish(
        "build_conda",
        [
            Figure(name="image", figure=built / layout, unit="x", better="higher", goal=2, against=against),
            Figure(
                name="image in a registry",
                figure=(built + sent) / pushed,
                unit="x",
                better="higher",
                goal=2,
                against=f"{built + sent:.1f} s with docker push, and {pushed:.1f} s",
            ),
        ],
    )


if __name__ == "__main__":
    sys.exit(main())
