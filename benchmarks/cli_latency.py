"""How long a user waits for the command line: whole processes, run alternately with `python -c pass`.

    python -m benchmarks.cli_latency [runs]

The wall time of a process is the median over the runs. Memory is its peak resident set, as the kernel reports it.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from benchmarks._report import Figure, finish
from envkit.facts.load import load
from envkit.resolve.request import parse
from envkit.resolve.resolver import resolve

COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "envkit --help": [sys.executable, "-m", "envkit", "--help"],
    "envkit resolve --cuda 11.8": [sys.executable, "-m", "envkit", "resolve", "--cuda", "11.8"],
}
BASELINE = "python -c pass"


def measured(command: list[str]) -> tuple[float, float]:
    """Run a command; return its wall milliseconds and its peak MB."""
    start = time.perf_counter()
    # Bytecode is cached, as for a user.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=Path(__file__).parents[1], env=env) as child:
        _, status, usage = os.wait4(child.pid, 0)
        elapsed = time.perf_counter() - start
        child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 0:
        raise SystemExit(f"{' '.join(command)} exited {child.returncode}")
    return elapsed * 1000, usage.ru_maxrss / 1024


def in_process(runs: int) -> float:
    """Return the median milliseconds of a resolve with the facts already read."""
    facts = load()
    request = parse({"cuda": "11.8"}, facts)
    resolve(request, facts)
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        resolve(request, facts)
        times.append((time.perf_counter() - start) * 1000)
    return statistics.median(times)


def main() -> int:
    """Run the benchmark; return 0 if every goal holds."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    for command in COMMANDS.values():
        measured(command)
    samples: dict[str, list[tuple[float, float]]] = {name: [] for name in COMMANDS}
    for _ in range(runs):
        for name, command in COMMANDS.items():
            samples[name].append(measured(command))
    wall = {name: statistics.median(ms for ms, _ in rows) for name, rows in samples.items()}
    peak = {name: max(mb for _, mb in rows) for name, rows in samples.items()}
    print(f"{runs} interleaved runs; {BASELINE}: {wall[BASELINE]:.1f} ms")
    help_, resolve_ = "envkit --help", "envkit resolve --cuda 11.8"
    against = f"{BASELINE}, {runs} runs side by side"
    return finish(
        "cli_latency",
        [
            Figure(name="--help", figure=wall[help_], unit="ms", better="lower", goal=100, against=against),
            Figure(
                name="--help ratio",
                figure=wall[help_] / wall[BASELINE],
                unit="x",
                better="lower",
                goal=6,
                against=against,
            ),
            Figure(name="resolve", figure=wall[resolve_], unit="ms", better="lower", goal=200, against=against),
            Figure(
                name="resolve in process",
                figure=in_process(50),
                unit="ms",
                better="lower",
                goal=5,
                against="facts loaded",
            ),
            Figure(name="resolve peak", figure=peak[resolve_], unit="MB", better="lower", goal=60, against="ru_maxrss"),
        ],
    )


if __name__ == "__main__":
    sys.exit(main())
