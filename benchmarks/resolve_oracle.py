"""The resolver compared with the oracle of the tests, which tries every combination of the facts.

    python -m benchmarks.resolve_oracle [--requests 10000] [--seed 20261122] [--processes 2]

Three of ten sets of facts lack rows or have inferred ones. Both must give the same torch, CUDA, source, Python,
companions and driver, and a refusal must name one of the smallest sets of constraints that clash.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor

from benchmarks._report import Figure, finish, tell
from envkit.facts.load import load
from tests.support.oracle_agreement import compare

_PART = 500  # requests of one task


def main() -> int:
    """Run the benchmark and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=20261122)
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    facts, began = load(), time.monotonic()
    sizes = [min(_PART, options.requests - done) for done in range(0, options.requests, _PART)]
    with ProcessPoolExecutor(options.processes) as pool:
        seeds = range(options.seed, options.seed + len(sizes))
        parts = list(pool.map(compare, sizes, seeds, [facts] * len(sizes)))
    clashes: Counter[int] = Counter()
    for part in parts:
        clashes.update(part.clashes_by_size)
        for difference in part.differences:
            tell(difference)
    tell(f"{sum(part.answers for part in parts)} answers, {sum(part.refusals for part in parts)} refusals")
    tell("refusals by size of the clash: " + ", ".join(f"{size}: {clashes[size]}" for size in sorted(clashes)))
    wrong = sum(len(part.differences) for part in parts)
    seconds = time.monotonic() - began
    against = f"an oracle without index or order, {options.requests} requests, {seconds:.0f} s"
    return finish("resolve_oracle", [
        Figure(name="disagreements", figure=wrong, unit="", better="lower", goal=0, against=against),
    ])  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main())
