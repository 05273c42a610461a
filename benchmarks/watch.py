"""Is `envkit watch` right, and what does it cost?

    python -m benchmarks.watch [seconds of each run] [pairs]

Trainings that are slow in one known way run below `watch`: each has to be named, and then run with the setting that the
advice gives. What that brings is measured without `watch`, in turns with the slow one, and compared with the
promise. A healthy training runs in turns with and without `watch`: its overhead is the median of the paired ratios.
`copies` uses a stand-in for a GPU; ways that only a GPU has are tested with made-up records (tests/unit/watch).
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
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


def train(name: str, setting: int, seconds: float, record: Path | None = None) -> tuple[float, float]:
    """Run a training, below `watch` where a record is wanted; seconds of a step: mean, and what a tenth stays below."""
    below = [] if record is None else [sys.executable, "-m", "envkit", "watch", "-o", str(record), "--"]
    command = [*below, sys.executable, str(TRAININGS), name, str(setting), str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=_environment())
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} exited {done.returncode}\n{done.stderr}")
    told = json.loads(done.stdout)
    return float(told["step_s"]), float(told["low_s"])


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
    ratios = [train(name, slow, seconds)[0] / train(name, fixed, seconds)[0] for _ in range(pairs)]
    return statistics.median(ratios)


def overhead(seconds: float, pairs: int) -> tuple[float, float, float]:
    """What `watch` costs a healthy training: medians of paired ratios of its step.

    Of the mean step, of two runs without `watch` (the noise), and of the quick steps, which other programs hardly
    change.
    """
    means, noise, lows = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(pairs):
            plain, plain_low = train("healthy", 0, seconds)
            watched, watched_low = train("healthy", 0, seconds, Path(folder, "record.json"))
            again, again_low = train("healthy", 0, seconds)
            # Against the mean of the run before and the one after: a machine that gets slower evens out.
            means.append(watched / statistics.mean((plain, again)))
            lows.append(watched_low / statistics.mean((plain_low, again_low)))
            noise.append(again / plain)
            tell(
                f"overhead {turn + 1}: {means[-1]:.3f}, of quick steps {lows[-1]:.3f}; two runs without {noise[-1]:.3f}"
            )
    return statistics.median(means), statistics.median(noise), statistics.median(lows)


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
    mean, noise, low = overhead(seconds, pairs + 2)
    against = f"without watch, in turns; two runs without: {noise:.3f}"
    for label, ratio in (("overhead", mean), ("overhead, quick steps", low)):
        figures.append(Figure(name=label, figure=ratio, unit="x", better="lower", goal=OVERHEAD, against=against))
    return finish("watch", figures)


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}


if __name__ == "__main__":
    sys.exit(main())
