"""The memory of a build of a large image: torch for CUDA 12.6 and all its libraries, from wheels.

    python -m benchmarks.memory [FOLDER]

FOLDER has the wheels; without it pip downloads them once. Python comes from the test world's channel, the base from its
registry. Measured are the peak resident set of the largest process and, sampled, the proportional set size of all
processes together, which counts a shared page once. The page cache is not included.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from benchmarks import _sides
from benchmarks._report import Figure, finish
from benchmarks.build_cold import DEFINITION, wheels_of

SECONDS = 0.1  # between two samples


def main() -> int:
    """Build and measure; return 0 if every goal holds."""
    folder = wheels_of(Path(sys.argv[1]) if sys.argv[1:] else None)
    with _sides.workspace("registry", "base", "channel") as here:
        here.serve_wheels(folder)
        here.lock("large", DEFINITION)
        started = time.perf_counter()
        largest, tree = _watched(here, folder)
        print(f"built in {time.perf_counter() - started:.1f} s")
        layout = here.folder / "layout"
        size = _unpacked(layout)
    print(f"the image is {size / 1e9:.2f} GB unpacked")
    against = f"an image of {size / 1e9:.1f} GB from {len(list(folder.glob('*.whl')))} wheels and conda packages"
    return finish(
        "memory",
        [
            Figure(name="largest process", figure=largest, unit="MB", better="lower", goal=500, against=against),
            Figure(name="all processes", figure=tree, unit="MB", better="lower", goal=500, against="PSS, sampled"),
        ],
    )


def _watched(here: _sides.Workspace, wheels: Path) -> tuple[float, float]:
    """Return the peak MB of the largest process of a build, and of all its processes together."""
    own = {"XDG_CACHE_HOME": str(here.folder / "cache"), "XDG_STATE_HOME": str(here.folder / "state")}
    argv = [sys.executable, "-m", "envkit", *here.embedded_command("large", "oci:layout"), "--progress", "quiet"]
    tree = 0.0
    env = here.env | own | {"ENVKIT_WHEEL_DIR": str(wheels)}
    with subprocess.Popen(argv, cwd=here.folder, env=env, stdout=subprocess.DEVNULL) as child:
        while True:
            pid, status, usage = os.wait4(child.pid, os.WNOHANG)
            if pid:
                break
            tree = max(tree, sum(map(_pss, _tree(child.pid))))
            time.sleep(SECONDS)
        child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"{' '.join(argv)} exited {child.returncode}")
    return usage.ru_maxrss / 1024, tree


def _tree(root: int) -> list[int]:
    pids, waiting = [], [root]
    while waiting:
        pid = waiting.pop()
        pids.append(pid)
        for listed in Path(f"/proc/{pid}/task").glob("*/children"):
            try:
                waiting += map(int, listed.read_text().split())
            except OSError:
                continue
    return pids


def _pss(pid: int) -> float:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:  # it has just ended
        return 0.0
    return sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:")) / 1024


def _unpacked(layout: Path) -> int:
    """Return the bytes of all layers, decompressed by the gzip command."""
    index = json.loads((layout / "index.json").read_text())
    digest = index["manifests"][0]["digest"].replace(":", "/")
    total = 0
    for layer in json.loads((layout / "blobs" / digest).read_text())["layers"]:
        blob = layout / "blobs" / layer["digest"].replace(":", "/")
        with (
            subprocess.Popen(["gzip", "-dc", str(blob)], stdout=subprocess.PIPE) as plain,
            subprocess.Popen(["wc", "-c"], stdin=plain.stdout, stdout=subprocess.PIPE, text=True) as count,
        ):
            total += int(count.communicate()[0])
    return total


if __name__ == "__main__":
    sys.exit(main())
