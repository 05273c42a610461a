"""One small wheel of an image changes: rebuild and push by the embedded engine, and by Docker with its layer cache.

    python -m benchmarks.build_change_one [runs]

The image is the test world's CPU image with one small wheel in several versions. Both sides have built and pushed the
first version. The time is from the lock of a later version to its image in the registry. The bytes received by the
registry are compared with those of the image's first push.
"""

from __future__ import annotations

import base64
import hashlib
import statistics
import sys
import zipfile
from pathlib import Path

from benchmarks import _sides
from benchmarks._report import Figure, finish
from envkit.ground.host import cores

CPU = 'companions: []\nrequest: {os: debian12, python: "3.11", cpu: true}\n'
NAME = "envkit_bench_small"


def main() -> int:
    """Run the benchmark; return 0 if every goal holds."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    with _sides.workspace("docker", "registry", "base", "channel", "miniconda") as here:
        wheels = here.folder / "wheels"
        wheels.mkdir()
        for version in range(runs + 1):
            _wheel(wheels, f"1.{version}")
        here.serve_wheels(wheels)
        for version in range(runs + 1):
            here.lock(f"v{version}", f"{CPU}pip: [{NAME.replace('_', '-')}==1.{version}]\n")
        here.pull_bases("v0")
        sides = {"embedded": _embedded, "docker": _docker}
        first, seconds, sent = {}, {side: list[float]() for side in sides}, {side: list[int]() for side in sides}
        for side, make in sides.items():
            before = here.received()
            make(here, 0)
            first[side] = here.received() - before
        for version in range(1, runs + 1):
            for side, make in sides.items():
                before = here.received()
                seconds[side].append(make(here, version))
                sent[side].append(here.received() - before)
                print(
                    f"{side:<9} {seconds[side][-1]:6.2f} s, the registry received {sent[side][-1] / 1e6:8.3f} MB "
                    f"of {first[side] / 1e6:.1f} MB"
                )
    wall = {side: statistics.median(column) for side, column in seconds.items()}
    part = max(sent["embedded"]) / first["embedded"] * 100
    docker_part = max(sent["docker"]) / first["docker"] * 100
    return finish(
        "build_change_one",
        [
            Figure(
                name="rebuild and push",
                figure=wall["docker"] / wall["embedded"],
                unit="x",
                better="higher",
                goal=30,
                against=f"docker build + push {wall['docker']:.2f} s, embedded {wall['embedded']:.2f} s, "
                f"{cores()} cores, {runs} runs side by side",
            ),
            Figure(
                name="bytes the registry received",
                figure=part,
                unit="%",
                better="lower",
                goal=1,
                against=f"of the whole image; docker push: {docker_part:.0f} %",
            ),
        ],
    )


def _embedded(here: _sides.Workspace, version: int) -> float:
    return here.embedded(f"v{version}", f"registry:{here.registry}/embedded:{version}", "kept")


def _docker(here: _sides.Workspace, version: int) -> float:
    tag = f"{here.registry}/docker:{version}"
    return here.docker_build(f"v{version}", tag, cache=version > 0) + here.docker_push(tag)


def _wheel(folder: Path, version: str) -> None:
    """Write a pure wheel with one module, which has the version."""
    described = f"{NAME}-{version}.dist-info"
    files = {
        f"{NAME}/__init__.py": f'VERSION = "{version}"\n',
        f"{described}/METADATA": f"Metadata-Version: 2.1\nName: {NAME.replace('_', '-')}\nVersion: {version}\n",
        f"{described}/WHEEL": "Wheel-Version: 1.0\nGenerator: bench\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = [f"{name},sha256={_hash(text)},{len(text)}" for name, text in files.items()]
    files[f"{described}/RECORD"] = "\n".join([*rows, f"{described}/RECORD,,", ""])
    with zipfile.ZipFile(folder / f"{NAME}-{version}-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            archive.writestr(name, text)


def _hash(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


if __name__ == "__main__":
    sys.exit(main())
