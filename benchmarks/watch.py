"""Whether `envkit watch` names the right bottleneck, and its overhead.

    python -m benchmarks.watch [seconds of each run] [pairs]

Trainings that are slow in one known way run under `watch`, which must name the limit. Then they run with the setting
that the advice gives: its gain is measured without `watch`, alternating with the slow setting, and compared with the
promise. A healthy training runs twice at once on one CPU, once with `watch`: the kernel gives both time slices of a few
milliseconds, so other load on the machine slows both. The overhead is the ratio of the CPU times of their steps.
Alternating with this, both run without `watch`, which shows the noise. The CPU time of `watch` itself per second is the
difference between a long and a short run.
`copies` uses a stand-in for a GPU; limits that only a GPU has are tested with made-up records (tests/unit/watch).
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
from dataclasses import dataclass
from pathlib import Path

from benchmarks._report import Figure, finish, tell
from envkit.watch.judge import Judgment, judge
from envkit.watch.model import read

TRAININGS = Path(__file__).with_name("_trainings.py")
KEPT = 0.75  # share of the lowest promised gain that must be reached
OVERHEAD = 1.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Slow:
    """A training that is slow in one way: its setting, the limit that must be named, and the advice to follow."""

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


def train(name: str, setting: int, seconds: float) -> float:
    """Run a training and return the seconds of a step."""
    return ended(started(name, setting, seconds))["step_s"]


def started(name: str, setting: int, seconds: float, record: Path | None = None) -> subprocess.Popen[str]:
    """Start a training, under `watch` if a record is wanted."""
    watch = [] if record is None else [sys.executable, "-m", "envkit", "watch", "-o", str(record), "--"]
    command = [*watch, sys.executable, str(TRAININGS), name, str(setting), str(seconds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=_environment())


def ended(training: subprocess.Popen[str]) -> dict[str, float]:
    """Wait for a training; return the seconds of a step, and the CPU seconds of a step and of the process."""
    out, errors = training.communicate()
    if training.returncode != 0:
        raise SystemExit(f"a training exited {training.returncode}\n{errors}")
    times: dict[str, float] = json.loads(out)
    return times


def named(name: str, seconds: float, setting: int | None = None) -> Judgment:
    """Run a training under `watch` with its slow setting, or another one, and return the judgment."""
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder, "record.json")
        ended(started(name, SLOW[name].setting if setting is None else setting, seconds, record))
        return judge(read(record))


def own_kinds(judgment: Judgment) -> list[str]:
    """Return the kinds of limits in order, without those that only other programs on this machine cause."""
    return [finding.kind for finding in judgment.findings if [advice.id for advice in finding.advice] != ["neighbors"]]


def promise(name: str, judgment: Judgment) -> tuple[int, tuple[float, float]] | None:
    """Return the setting in the advice and its promised gain, or None if the advice is not given."""
    wanted = SLOW[name]
    for finding in judgment.findings:
        for advice in finding.advice:
            if finding.kind == wanted.kind and advice.id == wanted.advice and advice.gain is not None:
                number = re.search(r"=(\d+)", advice.text)
                fixed = wanted.fixed if wanted.fixed is not None else int(number[1]) if number else wanted.setting
                return fixed, advice.gain
    return None


def gain(name: str, fixed: int, seconds: float, pairs: int) -> float:
    """Return how many times as fast a training is with the setting of the advice: the median of alternating runs."""
    slow = SLOW[name].setting
    ratios = [train(name, slow, seconds) / train(name, fixed, seconds) for _ in range(pairs)]
    return statistics.median(ratios)


def overhead(seconds: float, pairs: int) -> tuple[float, float, float]:
    """Return the overhead of `watch` on a healthy training.

    These are the ratio of the CPU times of a step with and without `watch`, the same ratio of two trainings without
    `watch`, and the CPU time of `watch` itself per second.
    """
    ratios, noise, own = [], [], []
    for turn in range(pairs):
        ratios.append(at_once(seconds, watched=True))
        noise.append(at_once(seconds, watched=False))
        # Both runs include the start and the end of `watch`, so these cancel out.
        own.append((_own_s(2 * seconds) - _own_s(seconds)) / seconds)
        tell(
            f"overhead {turn + 1}: {ratios[-1]:.3f}, without watch {noise[-1]:.3f}; "
            f"watch itself {own[-1]:.3f} s per second"
        )
    return statistics.median(ratios), statistics.median(noise), statistics.median(own)


def at_once(seconds: float, *, watched: bool) -> float:
    """Run two trainings at once on one CPU; return the CPU time of a step of the first over that of the second."""
    everywhere = os.sched_getaffinity(0)
    with tempfile.TemporaryDirectory() as folder:
        os.sched_setaffinity(0, {min(everywhere)})
        try:
            first = started("healthy", 0, seconds, Path(folder, "record.json") if watched else None)
            second = started("healthy", 0, seconds)
        finally:
            os.sched_setaffinity(0, everywhere)
        return ended(first)["cpu_s"] / ended(second)["cpu_s"]


def _own_s(seconds: float) -> float:
    """Return the CPU seconds of `watch` itself for a training of so many seconds with about 30 steps per second.

    `healthy` would not do: its step takes 2 ms, and the work of `watch` grows with the number of steps.
    """
    before = _children_s()
    with tempfile.TemporaryDirectory() as folder:
        training = ended(started("copies", SLOW["copies"].fixed or 1, seconds, Path(folder, "record.json")))
    return _children_s() - before - training["process_s"]


def main() -> int:
    """Run the benchmark; return 0 if every goal holds."""
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
        measured = gain(name, fixed, seconds, pairs)
        against = f"{wanted.advice} {wanted.setting} -> {fixed} promised {low:.2f} to {high:.2f}"
        tell(f"{name}: {against}, measured {measured:.2f}")
        figures.append(
            Figure(
                name=f"{name}: gain",
                figure=measured,
                unit="x",
                better="higher",
                goal=round(KEPT * low, 2),
                against=against,
            )
        )
    ratio, noise, own = overhead(seconds, pairs)
    against = f"the same training without watch, at the same time; both without: {noise:.3f}"
    figures += [
        Figure(name="overhead", figure=ratio, unit="x", better="lower", goal=OVERHEAD, against=against),
        Figure(name="watch itself", figure=own, unit="s/s", better="lower", goal=OVERHEAD - 1, against="CPU time"),
    ]
    return finish("watch", figures)


def _children_s() -> float:
    """Return the CPU time of all ended child processes, in seconds."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}


if __name__ == "__main__":
    sys.exit(main())
