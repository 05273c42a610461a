"""How long a resolve takes in process, with the facts already read.

    python -m benchmarks.resolve [--runs 30]

Three figures, each the median of the slowest request: answers from the shipped facts, answers from facts with ten times
the builds and releases, and conflicts with their suggestions. Every request is already parsed, and the index over the
facts is made once, as in a command that resolves many requests. CPU time is measured, so other programs on the machine
matter little.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from benchmarks._report import Figure, finish, tell
from envkit.facts.load import load
from envkit.facts.model import Facts
from envkit.resolve.conflict import Unresolvable
from envkit.resolve.index import index
from envkit.resolve.request import parse
from envkit.resolve.resolver import resolve

Fields = Mapping[str, Any]

ANSWERS: tuple[Fields, ...] = (
    {},
    {"cuda": "11.8"},
    {"torch": "2.7.1", "python": "3.12"},
    {"gpu": ["RTX 4090"], "driver": "550.54.15"},
    {"gpu": ["V100", "A100", "H100"], "driver": "535.104.05"},
    {"source": "conda-forge", "cuda": "12.*", "os": "ubuntu22.04"},
    {"max_size": "3GB"},
    {"supported_only": True},
    {"gpu": ["H100"], "driver": "535.104.05", "allow_forward_compat": True},
    {"cpu": True, "template": "wheels"},
)
CONFLICTS: tuple[Fields, ...] = (
    {"gpu": ["V100"], "torch": "2.12", "cuda": "12.8"},
    {"torch": "2.15", "max_size": "2GB"},
    {"torch": "2.7", "python": "3.9", "supported_only": True},
    {"driver": "535.104.05", "gpu": ["H100"], "torch": "2.15"},
    {"driver": "450.80.02", "gpu": ["H100"]},
    {"template": "wheels", "os": "rockylinux9", "python": "3.13"},
    {"torch": "1.12.1", "cuda": "12.1", "python": "3.14", "gpu": ["B200"]},
)


def larger(facts: Facts, times: int) -> Facts:
    """Return facts with `times` as many builds and releases: made-up older torch series with the same rows."""
    builds, releases = list(facts.builds), dict(facts.releases)
    for number in range(1, times):
        for name, row in facts.releases.items():
            releases[_older(name, number)] = replace(row, torch=_older(name, number))
        builds += [replace(row, torch=_older(row.torch, number)) for row in facts.builds]
    return replace(facts, builds=tuple(builds), releases=releases)


def _older(torch: str, number: int) -> str:
    return f"0.{number}.{torch.replace('.', '')}"


def median(fields: Fields, facts: Facts, runs: int) -> float:
    """Return the median CPU milliseconds of a request. The first run makes the index and does not count."""
    request = parse(fields, facts)

    def call() -> None:
        try:
            resolve(request, facts)
        except Unresolvable:
            return

    call()
    spent = []
    for _ in range(runs):
        begin = time.process_time()
        call()
        spent.append((time.process_time() - begin) * 1000)
    return statistics.median(spent)


def slowest(name: str, requests: Sequence[Fields], facts: Facts, runs: int) -> float:
    """Print the median of each request, and return the highest."""
    medians = [(median(fields, facts, runs), fields) for fields in requests]
    for spent, fields in medians:
        tell(
            f"{name:<18} {spent:7.2f} ms  {' '.join(f'{key}={value}' for key, value in fields.items()) or '(nothing)'}"
        )
    return max(spent for spent, _ in medians)


def main() -> int:
    """Run the benchmark and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=30)
    runs = parser.parse_args().runs
    facts = load()
    many = larger(facts, 10)
    began = time.process_time()
    index(larger(facts, 1))
    tell(f"the index over the facts takes {(time.process_time() - began) * 1000:.2f} ms, once")
    tell(f"{len(facts.builds)} builds, {len(many.builds)} in the larger facts; medians of {runs} runs")
    against = f"the slowest of {{}} requests, {runs} runs"
    figures = [
        Figure(name=name, figure=slowest(name, requests, rows, runs), unit="ms", better="lower", goal=goal,
               against=against.format(len(requests)))
        for name, requests, rows, goal in (
            ("answer", ANSWERS, facts, 3), ("ten times the facts", ANSWERS, many, 10),
            ("conflict", CONFLICTS, facts, 50),
        )
    ]  # fmt: skip
    return finish("resolve", figures)


if __name__ == "__main__":
    raise SystemExit(main())
