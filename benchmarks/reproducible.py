"""Two builds of one lock with everything else varied, and their manifest digests.

    python -m benchmarks.reproducible [OTHER-PYTHON]

Varied together: clock (faketime), umask, time zone, locale, hash seed, home, folder, CPUs (all or one), the cache
(cold, then warm) and, as root, the user. OTHER-PYTHON is another interpreter that has envkit's libraries; it makes one
more build. If digests differ, the first differing file is printed.
"""

from __future__ import annotations

import gzip
import itertools
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import _sides
from benchmarks._report import Figure, finish
from tests.world import apt

DEFINITION = 'companions: []\nrequest: {os: debian12, python: "3.11", cpu: true}\n'
NOBODY = 65534
# The one capability that lets this user run an interpreter in another user's home.
_READ = "dac_read_search"
AS_NOBODY = [
    *("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"),
    *(f"--inh-caps=-all,+{_READ}", f"--ambient-caps=+{_READ}", f"--bounding-set=-all,+{_READ}"),
]
VARIED = {"TZ": "Asia/Kathmandu", "LC_ALL": "C", "PYTHONHASHSEED": "7"}


def main() -> int:
    """Build and compare; return 0 if all digests are equal."""
    other = Path(sys.argv[1]).absolute() if len(sys.argv) > 1 else None
    with _sides.workspace("registry", "base", "channel") as here:
        here.lock("cpu", DEFINITION)
        here.folder.chmod(0o755)
        late = [apt.require("faketime", "faketime"), "2031-03-04 05:06:07", "taskset", "-c", "0"]
        builds = [
            ("plain", _build(here, "plain", [], {}, 0o022)),
            ("plain, warm cache", _build(here, "plain", [], {}, 0o022)),
            ("all varied, cold cache", _build(here, "an other place", late, VARIED, 0o077)),
            ("all varied, warm cache", _build(here, "an other place", late, VARIED, 0o077)),
        ]
        if os.geteuid() == 0:
            builds.append(("user nobody", _build(here, "nobody", AS_NOBODY, VARIED, 0o027, owner=NOBODY)))
        if other is not None:
            builds.append((f"another Python, {other}", _build(here, "python", [], {}, 0o002, python=str(other))))
        for name, layout in builds:
            print(f"{_digest(layout)}  {name}")
        first = builds[0][1]
        for name, layout in builds[1:]:
            if _digest(layout) != _digest(first):
                print(f"{name}: {difference(first, layout)}")
        kinds = {_digest(layout) for _, layout in builds}
        against = f"{len(builds)} builds" + ("" if other else "; no other Python was given")
    return finish(
        "reproducible",
        [Figure(name="manifest digests", figure=len(kinds), unit="", better="lower", goal=1, against=against)],
    )


def _build(
    here: _sides.Workspace,
    name: str,
    before: list[str],
    env: dict[str, str],
    umask: int,
    *,
    owner: int | None = None,
    python: str = sys.executable,
) -> Path:
    """Build into a layout in the folder NAME; if the folder was used before, its cache is warm."""
    folder = here.folder / name
    folder.mkdir(exist_ok=True)
    layout = folder / f"layout{sum(1 for _ in folder.glob('layout*'))}"
    if owner is not None:
        os.chown(folder, owner, owner)
    own = {"HOME": str(folder), "XDG_CACHE_HOME": str(folder / "cache"), "XDG_STATE_HOME": str(folder / "state")}
    argv = [*before, python, "-m", "envkit", *here.embedded_command(str(here.folder / "cpu"), f"oci:{layout}")]
    done = subprocess.run(
        argv, cwd=folder, env=here.env | own | env, capture_output=True, text=True, check=False, umask=umask
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(argv)} exited {done.returncode}:\n{done.stderr[-1500:]}")
    return layout


def difference(left: Path, right: Path) -> str:
    """Return the first difference of two layouts."""
    manifests = [_manifest(layout) for layout in (left, right)]
    pairs = itertools.zip_longest(*(manifest["layers"] for manifest in manifests))
    for number, pair in enumerate(pairs, 1):
        if None in pair:
            return f"layer {number} is in only one image"
        if pair[0]["digest"] == pair[1]["digest"]:
            continue
        blobs = (_blob(layout, layer["digest"]) for layout, layer in zip((left, right), pair, strict=True))
        for first, second in itertools.zip_longest(*(_members(blob) for blob in blobs)):
            if first != second:
                return f"layer {number}: {first} and {second}"
        return f"layer {number}: equal members, packed differently"
    configs = [
        json.loads(_blob(layout, manifest["config"]["digest"]).read_text())
        for layout, manifest in zip((left, right), manifests, strict=True)
    ]
    for key in sorted(set(configs[0]) | set(configs[1])):
        if configs[0].get(key) != configs[1].get(key):
            return f"the configuration's {key}: {configs[0].get(key)} and {configs[1].get(key)}"
    return "only the manifests"


def _members(blob: Path) -> Iterator[tuple[object, ...]]:
    with gzip.open(blob) as plain, tarfile.open(fileobj=plain, mode="r|") as tar:
        for member in tar:
            file = tar.extractfile(member)
            body = hash(file.read()) if file else None
            yield member.name, member.type, member.mode, member.uid, member.mtime, member.linkname, member.size, body


def _digest(layout: Path) -> str:
    return str(json.loads((layout / "index.json").read_text())["manifests"][0]["digest"])


def _manifest(layout: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(_blob(layout, _digest(layout)).read_text())
    return document


def _blob(layout: Path, digest: str) -> Path:
    return layout / "blobs" / digest.replace(":", "/")


if __name__ == "__main__":
    sys.exit(main())
