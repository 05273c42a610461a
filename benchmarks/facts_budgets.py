"""The cost of reading facts from a Python index, compared with its budgets: bytes, requests, seconds and memory.

    python -m benchmarks.facts_budgets [--torch V] [--quick]

Each row is one command in its own process with the configured index and a cache folder that starts empty: `prove` for
one release, the same with machine code, an update with nothing new and with one new release, all releases (about
400 MB, a few minutes), and all releases again. `--quick` leaves out the last two.
Bytes and requests are as the command reports them. uv, which resolves the dependencies of a torch, has its own cache,
whose growth is also printed. Memory is the peak of the largest process (uv included) above that of `matrix list`.
The last rows are those of benchmarks/resolve: CPU time of a resolve in process.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import resolve
from benchmarks._report import Figure, finish, tell
from benchmarks.facts_restore import without
from envkit.cli.main import run
from envkit.evidence.update import RELEASES, VARIANTS
from envkit.facts import edited, load, snapshot
from envkit.facts.load import load as load_facts
from envkit.ground.versions import key

_ANSWERED = (0, 2)  # 2: something differs from the facts
_PLATFORMS = 2  # wheels of a release that are read


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """The cost of one command."""

    mb: float  # received
    requests: int
    seconds: float
    peak_mb: float  # of the largest process
    uv_mb: float  # growth of uv's cache


def measured(cache: Path, *arguments: str) -> tuple[Taken, dict[str, Any]]:
    """Run a Python module in its own process; return its cost and the JSON document that it printed."""
    before, began = _size(cache / "uv"), time.monotonic()
    argv = [sys.executable, "-m", *arguments]
    environ = os.environ | {"XDG_CACHE_HOME": str(cache), "UV_CACHE_DIR": str(cache / "uv")}
    with tempfile.TemporaryFile() as out, subprocess.Popen(argv, stdout=out, env=environ) as child:
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        text = out.read()
    if child.returncode not in _ANSWERED:
        raise SystemExit(f"{' '.join(argv)} exited {child.returncode}")
    tree: dict[str, Any] = json.loads(text)
    traffic = tree.get("proof", tree)
    return Taken(
        mb=traffic.get("bytes", 0) / 1e6, requests=traffic.get("requests", 0), seconds=time.monotonic() - began,
        peak_mb=usage.ru_maxrss / 1024, uv_mb=_size(cache / "uv") - before,
    ), tree  # fmt: skip


def _size(folder: Path) -> float:
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6


def update_without(torch: str) -> int:
    """Run `matrix update` on a copy of the tables that lacks a release, as if the release were new."""
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "facts" / "data"
        shutil.copytree(edited.DATA, data)
        for name in (RELEASES, VARIANTS):
            path = data / f"{name}.yaml"
            path.write_text(without(path.read_text(), torch))
        edited.DATA = data
        load.SNAPSHOT = snapshot.PATH = data.parent / "snapshot.json"
        snapshot.PATH.write_text(snapshot.text(snapshot.tree()))
        return run(["matrix", "update", "--json"])


def main() -> int:
    """Run the benchmark and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--torch", default=max(load_facts().releases, key=key))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--update-without", action="store_true", help="Only the update with one new release.")
    options = parser.parse_args()
    if options.update_without:
        return update_without(options.torch)
    with tempfile.TemporaryDirectory() as folder:
        figures = _read(Path(folder), options.torch, everything=not options.quick)
    facts = load_facts()
    figures += [
        _figure(f"resolve: {name}", resolve.slowest(name, requests, rows, 30), "ms", goal)
        for name, requests, rows, goal in (
            ("answer", resolve.ANSWERS, facts, 3),
            ("ten times the facts", resolve.ANSWERS, resolve.larger(facts, 10), 10),
            ("conflict", resolve.CONFLICTS, facts, 50),
        )
    ]
    return finish("facts_budgets", figures)


def _read(folder: Path, torch: str, *, everything: bool) -> list[Figure]:
    own, _ = measured(folder / "none", "envkit", "matrix", "list", "--json")
    tell(f"envkit alone: {own.peak_mb:.0f} MB, {own.seconds:.1f} s (matrix list)")
    named = f"torch=={torch}"
    proved, _ = measured(folder / "prove", "envkit", "matrix", "prove", named, "--json")
    deep, _ = measured(folder / "deep", "envkit", "matrix", "prove", named, "--deep", "--json")
    nothing, document = measured(folder / "prove", "envkit", "matrix", "update", "--json")
    if document["releases"]:
        tell(f"the index has releases that the facts lack: {', '.join(document['releases'])}")
    new, _ = measured(folder / "new", "benchmarks.facts_budgets", "--torch", torch, "--update-without")
    rows = [
        ("prove", proved, {"MB": 25, "s": 5, "MB above": 80}),
        ("update, nothing new", nothing, {"MB": 1, "s": 3, "requests": 20}),
        ("update, one new", new, {"MB": 30, "s": 10}),
    ]
    if everything:
        cold, document = measured(folder / "all", "envkit", "matrix", "check", "--online", "--json", "--quiet")
        tell(f"{len(document['proofs'])} releases, {sum(len(proof['values']) for proof in document['proofs'])} values")
        again, _ = measured(folder / "all", "envkit", "matrix", "check", "--online", "--json", "--quiet")
        rows += [
            ("everything", cold, {"MB": 500, "s": 900, "MB above": 150}),
            ("everything again", again, {"MB": 2}),
        ]
    for name, taken, _ in [*rows, ("prove --deep", deep, {})]:
        tell(
            f"{name}: {taken.mb:.2f} MB in {taken.requests} requests, {taken.seconds:.1f} s, "
            f"peak {taken.peak_mb:.0f} MB; uv's cache grew by {taken.uv_mb:.1f} MB"
        )
    figures = [
        _figure(f"{name}: {unit}", _value(taken, unit, own), unit.split()[0], goal)
        for name, taken, goals in rows
        for unit, goal in goals.items()
    ]
    more = (deep.mb - proved.mb) / _PLATFORMS
    return [*figures, _figure("prove --deep: more per file", more, "MB", 60)]


def _value(taken: Taken, unit: str, own: Taken) -> float:
    return {
        "MB": taken.mb, "s": taken.seconds, "requests": float(taken.requests), "MB above": taken.peak_mb - own.peak_mb,
    }[unit]  # fmt: skip


def _figure(name: str, figure: float, unit: str, goal: float) -> Figure:
    return Figure(name=name, figure=figure, unit=unit, better="lower", goal=goal, against="its budget")


if __name__ == "__main__":
    raise SystemExit(main())
