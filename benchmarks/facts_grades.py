"""Count how certain the files are that an answer names: torch, torchvision and torchaudio of every build with wheels.

    python -m benchmarks.facts_grades [--before COMMIT]

proved      an index's list of the files, or bytes of one of them, is in the evidence with its SHA-256
documented  a source lists the file
unknown     of torch: the row is inferred or has no Pythons; of a companion: no file is known, so that the answer leaves
            the package out

With `--before`, the same is counted in the facts of a commit. Facts from before the table of companions have one
version of torchvision and torchaudio for a build, and no files: there, a companion is proved by the file list of its
Pythons, documented by a sentence about it, and otherwise unknown, although the answer named it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks._report import Figure, finish, tell
from envkit.facts import evidence
from envkit.facts.check import name_of
from envkit.facts.load import load
from envkit.facts.model import Facts
from envkit.facts.tables import BY_NAME
from envkit.ground.platforms import PLATFORMS
from envkit.resolve.companions import COMPANIONS, companion
from envkit.resolve.index import WHEEL_SOURCES, index

PACKAGES = ("torch", *COMPANIONS)
GRADES = ("proved", "documented", "unknown")
_FACTS = "envkit/facts"
# How a commit without the table of companions has them.
_KEY = ("torch", "cuda", "source", "platform")
Grades = Mapping[tuple[str, str], Counter[str]]
"""Package and platform -> how many builds have each grade."""


def now(facts: Facts) -> Grades:
    """Return the grades of the files that answers name."""
    proved = {table: _proved(row.to_json() for row in evidence.read(table)) for table in ("builds", "companions")}
    known = index(facts)
    files = {row for row, _ in proved["companions"]}
    counted = _empty()
    for build in facts.builds:
        if build.source not in WHEEL_SOURCES:
            continue
        sure = (name_of(BY_NAME["builds"], build), "pythons") in proved["builds"]
        counted["torch", build.platform][_grade(sure, build.pythons, build.confidence)] += 1
        for name in COMPANIONS:
            row = companion(build, name, None, known)
            sure = row is not None and name_of(BY_NAME["companions"], row) in files
            counted[name, build.platform][_grade(sure, row and row.pythons, None)] += 1
    return counted


def before(commit: str) -> Grades:
    """Return the grades of the files that answers named with the facts of a commit without a table of companions.

    Raises:
        subprocess.CalledProcessError: there is no such commit, or it has no facts.
    """
    table = json.loads(_show(commit, f"{_FACTS}/snapshot.json"))["tables"]["builds"]
    lines = [json.loads(line) for line in _show(commit, f"{_FACTS}/data/evidence/builds.jsonl").splitlines()]
    proved, said = _proved(lines), {(line["row"], line["field"]) for line in lines}
    counted = _empty()
    for row in (dict(zip(table["columns"], values, strict=True)) for values in table["rows"]):
        if row["source"] not in WHEEL_SOURCES:
            continue
        own = " ".join("cpu" if row[field] is None else row[field] for field in _KEY)
        counted["torch", row["platform"]][_grade((own, "pythons") in proved, row["pythons"], row["confidence"])] += 1
        for name in COMPANIONS:
            sure = row[name] is not None and (own, f"{name}_pythons") in proved
            counted[name, row["platform"]][_grade(sure, (own, name) in said, None)] += 1
    return counted


def _empty() -> dict[tuple[str, str], Counter[str]]:
    return {(package, platform): Counter() for package in PACKAGES for platform in PLATFORMS}


def _grade(sure: bool, source: object, confidence: str | None) -> str:
    if sure:
        return "proved"
    return "documented" if source and confidence is None else "unknown"


def _proved(lines: Iterable[Mapping[str, Any]]) -> set[tuple[str, str]]:
    """Return the rows and fields with evidence of a file."""
    return {(line["row"], line["field"]) for line in lines if line["kind"] in evidence.OF_FILES and line.get("sha256")}


def _show(commit: str, path: str) -> str:
    here = Path(__file__).parents[1]
    done = subprocess.run(["git", "show", f"{commit}:{path}"], cwd=here, check=True, capture_output=True, text=True)
    return done.stdout


def lines(grades: Mapping[str, Grades]) -> Iterator[str]:
    """Yield a table with a column for each grade and each state of the facts."""
    heads = "".join(f"  {state + ': ' + ', '.join(GRADES):<40}" for state in grades)
    yield f"{'package':<12} {'platform':<14}{heads}"
    for package, platform in _empty():
        counts = (state[package, platform] for state in grades.values())
        cells = "".join(f"  {', '.join(str(count[grade]) for grade in GRADES):<40}" for count in counts)
        yield f"{package:<12} {platform:<14}{cells}".rstrip()


def main() -> int:
    """Run the benchmark and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before")
    options = parser.parse_args()
    own = now(load())
    for line in lines({options.before: before(options.before), "now": own} if options.before else {"now": own}):
        tell(line)
    rows = sum(own["torch", platform].total() for platform in PLATFORMS)
    return finish("facts_grades", [
        Figure(
            name=f"{package} with a source", figure=100 * (1 - unknown / rows), unit="%", better="higher", goal=95,
            against=f"{rows} builds, {unknown} without",
        )
        for package in ("torch", "torchvision")
        for unknown in [sum(own[package, platform]["unknown"] for platform in PLATFORMS)]
    ])  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main())
