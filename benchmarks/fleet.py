"""24 CPU images of a matrix by one command, compared with 24 separate commands, each with its own empty cache.

    python -m benchmarks.fleet [PYTHONS TORCHES BASES]

The matrix is 3 Pythons x 4 versions of torch x 2 bases unless smaller numbers are given; the content of the images is
described in `benchmarks._variety`. Both sides solve, build with the embedded engine and push to one registry on
loopback, which starts empty, into a repository each; neither verifies the images. A separate command may reuse what
earlier ones pushed to the registry, as in practice, and nothing else. All commands are run; none is estimated.

Bytes pushed are those of the blobs sent, compared with the total size of all images. Peak memory is the proportional
set size of the command and all its processes, sampled.
"""

from __future__ import annotations

import functools
import http.server
import itertools
import json
import os
import shutil
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import _sides, _variety
from benchmarks._report import Figure, finish
from benchmarks.memory import _pss, _tree
from envkit.ground.host import cores
from tests.world import processes

DEFINITION = """schema: envkit.image/1
title: Benchmark
companions: [numpy]
request: {os: debian12, cpu: true}
"""
SECONDS = 0.25  # between two samples of the memory
_PORT = 8950


def main() -> int:
    """Run the benchmark; return 0 if every goal holds."""
    sizes = [int(text) for text in sys.argv[1:]] or [3, 4, 2]
    pythons, torches = _variety.PYTHONS[: sizes[0]], _variety.TORCHES[: sizes[1]]
    with _sides.workspace("registry", "base", "channel") as here:
        bases = _variety.push_bases(_sides._own_registry(here.folder / "bases", here.stack), here.folder, sizes[2])  # noqa: SLF001
        here.env["ENVKIT_CONDA_CHANNEL_ALIAS"] = _served(here, _variety.packed(here.folder, pythons, torches))
        (here.folder / "cpu.yaml").write_text(DEFINITION)
        axes = {"python": list(pythons), "torch": list(torches), "base": bases}
        tree = {"schema": "envkit.matrix/1", "image": "./cpu.yaml", "axes": axes}
        (here.folder / "matrix.yaml").write_text(json.dumps(tree))
        together, peak, document = _fleet(here)
        images = document["images"]
        total = sum(_size(here.registry, "fleet", image["digest"]) for image in images)
        sent = sum(image["figures"]["sent_bytes"] for image in images)
        print(
            f"one command: {together:.1f} s for {len(images)} images of {total / 1e6:.0f} MB in total, "
            f"{sent / 1e6:.0f} MB sent, {here.received() / 1e6:.0f} MB in the registry, peak {peak:.0f} MB"
        )
        separate = 0.0
        for number, combination in enumerate(itertools.product(pythons, torches, bases)):
            separate += _separate(here, number, combination)
            print(f"separate: {number + 1} images in {separate:.1f} s")
    count = len(images)
    return finish(
        "fleet",
        [
            Figure(
                name="wall time",
                figure=together / separate,
                unit="x",
                better="lower",
                goal=0.25,
                against=f"{count} separate builds {separate:.1f} s, together {together:.1f} s, {cores()} cores",
            ),
            Figure(
                name="bytes pushed",
                figure=sent / total,
                unit="x",
                better="lower",
                goal=0.3,
                against=f"{sent / 1e6:.0f} MB of {total / 1e6:.0f} MB, the sum of the sizes of {count} images",
            ),
            Figure(
                name="peak memory",
                figure=peak,
                unit="MB",
                better="lower",
                goal=500 * (document["jobs"] + 1),
                against=f"PSS of all processes, sampled; 500 MB for each of {document['jobs']} builds and the command",
            ),
        ],
    )


def _fleet(here: _sides.Workspace) -> tuple[float, float, Any]:
    """Run the one command; return its seconds, the peak MB of its processes, and its document."""
    argv = [
        sys.executable, "-m", "envkit", "build", "--matrix", "matrix.yaml", "--engine", "embedded", "--no-verify",
        "--output", f"registry:{here.registry}/fleet", "-o", "fleet.json", "--progress", "quiet",
    ]  # fmt: skip
    env = here.env | {"XDG_CACHE_HOME": str(here.folder / "one"), "XDG_STATE_HOME": str(here.folder / "one" / "state")}
    start, peak = time.perf_counter(), 0.0
    with (
        (here.folder / "fleet.log").open("w") as log,
        subprocess.Popen(argv, cwd=here.folder, env=env, stdout=log, stderr=log) as child,
    ):
        while child.poll() is None:
            peak = max(peak, sum(map(_pss, _tree(child.pid))))
            time.sleep(SECONDS)
    elapsed = time.perf_counter() - start
    if child.returncode:
        raise SystemExit(f"{' '.join(argv)} exited {child.returncode}:\n{(here.folder / 'fleet.log').read_text()}")
    return elapsed, peak, json.loads((here.folder / "fleet.json").read_text())


def _separate(here: _sides.Workspace, number: int, combination: Sequence[str]) -> float:
    """Run one separate build; return its seconds. Its cache is removed afterwards."""
    python, torch, base = combination
    own = here.folder / f"own{number}"
    seconds = here.envkit(
        "build", "cpu.yaml", "--python", python, "--torch", torch, "--base", base, "--engine", "embedded",
        "--no-verify", "--output", f"registry:{here.registry}/separate:{number}",
        env={"XDG_CACHE_HOME": str(own), "XDG_STATE_HOME": str(own / "state")},
    )  # fmt: skip
    shutil.rmtree(own)
    return seconds


def _size(registry: str, repository: str, digest: str) -> int:
    """Return the bytes of an image's layers and configuration, from its manifest."""
    kind = {"Accept": "application/vnd.oci.image.manifest.v1+json"}
    asked = urllib.request.Request(f"http://{registry}/v2/{repository}/manifests/{digest}", headers=kind)
    with urllib.request.urlopen(asked) as answer:  # noqa: S310 - this benchmark's own registry
        tree = json.load(answer)
    return sum(int(blob["size"]) for blob in (*tree["layers"], tree["config"]))


def _served(here: _sides.Workspace, folder: Path) -> str:
    """Serve a folder on loopback; return its address."""
    answer = functools.partial(_sides.Quiet, directory=os.fspath(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", processes.free_port(_PORT)), answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    here.stack.callback(server.shutdown)
    return f"http://127.0.0.1:{server.server_port}"


if __name__ == "__main__":
    sys.exit(main())
