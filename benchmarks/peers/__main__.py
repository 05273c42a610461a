"""Ask envkit and other tools everyday questions, print the results, and write docs/peers.md.

    python -m benchmarks.peers [--only ID ...] [--write] [--page]

--only asks only these questions; --write saves the results, those of other questions stay, and writes the page;
--page writes it from saved results.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

from benchmarks._report import Figure, finish, tell
from benchmarks.peers.model import OWN, Question, Result, load, well_ranked
from benchmarks.peers.page import Run, page
from benchmarks.peers.runner import bench

RESULTS = Path(__file__).with_name("results.json")
PAGE = Path(__file__).parents[2] / "docs" / "peers.md"
GOAL = 21


def main() -> int:
    """Run the benchmark and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="ID")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--page", action="store_true")
    options = parser.parse_args()
    if options.page:
        return _write(Run.read(json.loads(RESULTS.read_text())))
    run = _run(options.only)
    if options.write:
        run = _with_kept(run)
        tree = {"date": run.date, "versions": run.versions, "results": run.results}
        RESULTS.write_text(json.dumps(tree, default=asdict, indent=2, ensure_ascii=False) + "\n")
        _write(run)
    good = well_ranked(list(run.ranks().values()))
    against = f"{len(run.versions) - 1} tools, {len(run.results)} questions"
    return finish(
        "peers", [Figure(name="first or equal", figure=good, unit="", better="higher", goal=GOAL, against=against)]
    )


def _run(only: list[str] | None) -> Run:
    tools, questions = load()
    asked = [question for question in questions if not only or question.id in only]
    with bench(tools) as (runner, versions):
        results = {}
        for question in asked:
            results[question.id] = runner.ask(question)
            _tell(question, results[question.id])
    run = Run(date=dt.datetime.now(dt.UTC).date().isoformat(), versions=versions, results=results)
    for question in asked:
        tell(f"{question.id:<14} {OWN}: {run.ranks()[question.id]}")
    return run


def _with_kept(run: Run) -> Run:
    """Return a run with the saved results of the questions that it did not ask, in the order of the file."""
    results = {**Run.read(json.loads(RESULTS.read_text())).results, **run.results}
    return replace(run, results={question.id: results[question.id] for question in load()[1] if question.id in results})


def _tell(question: Question, rows: Mapping[str, Result]) -> None:
    tell(f"{question.id}: {question.asks}")
    for name, result in rows.items():
        took = "not run" if result.seconds is None else f"{result.seconds:6.2f} s"
        tell(f"  {name:<16} {result.steps} commands  {took:<9}  {result.wrong or 'right'}")


def _write(run: Run) -> int:
    tools, questions = load()
    PAGE.write_text(page(tools, questions, run))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
