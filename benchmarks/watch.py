"""Is `envkit watch` right, and what does it cost?

    python -m benchmarks.watch [seconds of each run] [pairs]

Trainings that are slow in one known way run below `watch`: each has to be named, and then run with the setting that the
advice gives. What that brings is measured without `watch`, in turns with the slow one, and compared with the
promise. A healthy training runs in turns with and without `watch`: its overhead is the median of the paired ratios of
the processor time of a step, because the clock of a shared machine differs by more than the goal; what `watch` itself
needs beside the training is told per second.
`copies` uses a stand-in for a GPU; ways that only a GPU has are tested with made-up records (tests/unit/watch).
"""

from __future__ import annotations

import json
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks._report import Figure, finish, tell
from envkit.watch.judge import Judgment, judge
from envkit.watch.model import read

TRAININGS = Path(__file__).with_name("_trainings.py")
KEPT = 0.75  # of the lowest promised gain
OVERHEAD = 1.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Slow:
    """A training that is slow in one way: its setting, what it has to be called, and the advice to follow."""

    setting: int
    kind: str
    advice: str
    fixed: int | None = None  # None: the number in the advice


SLOW = {
    "data": Slow(setting=0, kind="data-bound", advice="num_workers"),
    "epochs": Slow(setting=0, kind="data-bound", advice="persistent_workers", fixed=1),
    "copies": Slow(setting=1, kind="copy-bound", advice="smaller_copies", fixed=4),
    "ranks": Slow(setting=1, kind="communication-bound", advice="accumulate", fixed=4),
    "threads": Slow(setting=1, kind="compute-bound", advice="threads"),
    "oversubscribed": Slow(setting=16, kind="cpu-starved", advice="threads_less"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """What a training took: seconds of a step by the clock and of its processor, and of `watch` per second."""

    step: float
    cpu: float
    beside: float


def train(name: str, setting: int, seconds: float, record: Path | None = None) -> Trained:
    """Run a training, below `watch` where a record is wanted."""
    below = [] if record is None else [sys.executable, "-m", "envkit", "watch", "-o", str(record), "--"]
    command = [*below, sys.executable, str(TRAININGS), name, str(setting), str(seconds)]
    before, begin = _children_s(), time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=_environment())
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} exited {done.returncode}\n{done.stderr}")
    told = json.loads(done.stdout)
    beside = (_children_s() - before - float(told["process_s"])) / (time.monotonic() - begin)
    return Trained(step=float(told["step_s"]), cpu=float(told["cpu_s"]), beside=beside)


def named(name: str, seconds: float, setting: int | None = None) -> Judgment:
    """The judgment of a training: the slow one, or the one with another setting."""
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder, "record.json")
        train(name, SLOW[name].setting if setting is None else setting, seconds, record)
        return judge(read(record))


def own_kinds(judgment: Judgment) -> list[str]:
    """The kinds of limits in their order, without what only other programs on this machine cause."""
    return [one.kind for one in judgment.findings if [advice.id for advice in one.advice] != ["neighbors"]]


def promise(name: str, judgment: Judgment) -> tuple[int, tuple[float, float]] | None:
    """The setting that the advice gives, and the gain that it promises; None where the advice is not given."""
    wanted = SLOW[name]
    for finding in judgment.findings:
        for one in finding.advice:
            if finding.kind == wanted.kind and one.id == wanted.advice and one.gain is not None:
                number = re.search(r"=(\d+)", one.text)
                fixed = wanted.fixed if wanted.fixed is not None else int(number[1]) if number else wanted.setting
                return fixed, one.gain
    return None


def gain(name: str, fixed: int, seconds: float, pairs: int) -> float:
    """How many times faster a training is with the setting of the advice: the median of runs in turns."""
    slow = SLOW[name].setting
    ratios = [train(name, slow, seconds).step / train(name, fixed, seconds).step for _ in range(pairs)]
    return statistics.median(ratios)


def overhead(seconds: float, pairs: int) -> tuple[float, float, float]:
    """What `watch` costs a healthy training: medians of paired ratios of a step's processor time.

    With `watch` against without, of two runs without (the noise), and the processor time of `watch` itself per second.
    """
    ratios, noise, beside = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(pairs):
            plain = train("healthy", 0, seconds)
            watched = train("healthy", 0, seconds, Path(folder, "record.json"))
            again = train("healthy", 0, seconds)
            # Against the mean of the run before and the one after: a machine that gets slower evens out.
            ratios.append(watched.cpu / statistics.mean((plain.cpu, again.cpu)))
            noise.append(again.cpu / plain.cpu)
            # Python's own start and end, which both have, are no cost of `watch`.
            beside.append(watched.beside - statistics.mean((plain.beside, again.beside)))
            clock = watched.step / statistics.mean((plain.step, again.step))
            tell(
                f"overhead {turn + 1}: {ratios[-1]:.3f}, by the clock {clock:.3f}; two runs without {noise[-1]:.3f}; "
                f"watch itself {beside[-1]:.3f} s per second"
            )
    return statistics.median(ratios), statistics.median(noise), statistics.median(beside)


def main() -> int:
    """Measure, print, and say by the exit code whether every goal holds."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 10.0
    pairs = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    figures = []
    for name, wanted in SLOW.items():
        judgment = named(name, seconds)
        kinds, promised = own_kinds(judgment), promise(name, judgment)
        is_named = kinds[:1] == [wanted.kind] and promised is not None
        against = f"{wanted.kind}, found {', '.join(kinds) or str(judgment.answer)}"
        figures.append(
            Figure(name=f"{name}: named", figure=float(is_named), unit="", better="higher", goal=1, against=against)
        )
        if promised is None:
            continue
        fixed, (low, high) = promised
        brought = gain(name, fixed, seconds, pairs)
        against = f"{wanted.advice} {wanted.setting} -> {fixed} promised {low:.2f} to {high:.2f}"
        tell(f"{name}: {against}, brought {brought:.2f}")
        figures.append(
            Figure(
                name=f"{name}: gain",
                figure=brought,
                unit="x",
                better="higher",
                goal=round(KEPT * low, 2),
                against=against,
            )
        )
    ratio, noise, beside = overhead(seconds, pairs + 2)
    against = f"processor time without watch, in turns; two runs without: {noise:.3f}"
    figures += [
        Figure(name="overhead", figure=ratio, unit="x", better="lower", goal=OVERHEAD, against=against),
        Figure(
            name="watch itself", figure=beside, unit="s/s", better="lower", goal=OVERHEAD - 1, against="processor time"
        ),
    ]
    return finish("watch", figures)


def _children_s() -> float:
    """Processor time of all processes that ended below this one."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}


if __name__ == "__main__":
    sys.exit(main())
