"""Whether `envkit watch` names the right bottleneck, and its overhead.

    python -m benchmarks.watch [seconds of each run] [pairs] [pairs for the overhead] [names of trainings]

Trainings that are slow in one known way run under `watch`, which must name the limit. Then they run with the setting
that the advice gives: its gain is measured without `watch`, alternating with the slow setting, and compared with the
promise. A healthy training runs three times at once on one CPU, once with `watch`: the kernel gives each time slices
of a few milliseconds, so other load on the machine slows all. The overhead is the ratio of the CPU times of their
steps; that of the two without `watch` shows the noise. The CPU time of `watch` itself is read while it runs.
`copies` uses a stand-in for a GPU; limits that only a GPU has are tested with made-up records (tests/unit/watch).
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from benchmarks._report import Figure, finish, tell
from envkit.watch import proc
from envkit.watch.judge import Judgment, judge
from envkit.watch.model import read

TRAININGS = Path(__file__).with_name("_trainings.py")
KEPT = 0.75  # share of the lowest promised gain that must be reached
OVERHEAD = 1.02
POLL_S = 0.2


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
    "paused": Slow(setting=1, kind="waiting", advice="wait_sleep", fixed=0),
    "programs": Slow(setting=1, kind="waiting", advice="wait_subprocess", fixed=0),
    "saved": Slow(setting=1, kind="waiting", advice="wait_checkpoint", fixed=0),
    "recompiled": Slow(setting=0, kind="compiling", advice="recompile", fixed=1),
    "pinned": Slow(setting=1, kind="pinned", advice="affinity", fixed=os.cpu_count()),
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """The overhead of `watch` on a healthy training, of all pairs."""

    watched: tuple[float, ...]  # CPU time of a step with `watch` over that without, both at the same time
    noise: tuple[float, ...]  # the same of two trainings without `watch`
    own: tuple[float, ...]  # CPU seconds of `watch` itself per second

    @property
    def is_hidden(self) -> bool:
        """Whether half of the pairs without `watch` differ as much as the median pair with it."""
        return abs(statistics.median(self.watched) - 1) <= max(abs(one - 1) for one in quartiles(self.noise))


def overhead(seconds: float, pairs: int) -> Overhead:
    """Return the overhead of `watch` on a healthy training."""
    cpus = sorted(os.sched_getaffinity(0))
    costs = [own(3 * seconds) for _ in range(max(1, pairs // 7))]
    tell(f"watch itself: {', '.join(f'{cost:.4f}' for cost in costs)} s per second")
    with ThreadPoolExecutor(len(cpus)) as pool:
        both = list(pool.map(lambda turn: at_once(seconds, cpus[turn % len(cpus)]), range(pairs)))
    return Overhead(watched=tuple(one for one, _ in both), noise=tuple(one for _, one in both), own=tuple(costs))


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """Return the range of the middle half of some values."""
    if len(values) < 2:
        return values[0], values[0]
    first, _, last = statistics.quantiles(values, method="inclusive")
    return first, last


def at_once(seconds: float, cpu: int) -> tuple[float, float]:
    """Run three trainings at once on one CPU, the first with `watch`.

    Returns the CPU time of a step of the first over that of the third, and that of the second over that of the third.
    """
    os.sched_setaffinity(0, {cpu})  # of this thread, and of what it starts
    with tempfile.TemporaryDirectory() as folder:
        first = started("healthy", 0, seconds, Path(folder, "record.json"))
        others = [started("healthy", 0, seconds) for _ in range(2)]
        watched, second, third = (ended(one)["cpu_s"] for one in (first, *others))
    tell(f"overhead: {watched / third:.3f}, without watch {second / third:.3f}")
    return watched / third, second / third


def own(seconds: float) -> float:
    """Return the CPU seconds that `watch` itself uses per second of a training with about 30 steps per second.

    `healthy` would not do: its step takes 2 ms, and the work of `watch` grows with the number of steps.
    """
    looks: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        training = started("copies", SLOW["copies"].fixed or 1, seconds, Path(folder, "record.json"))
        while training.poll() is None:
            if (used := proc.used(training.pid)) is not None:
                looks.append((time.monotonic(), used.cpu_s))
            time.sleep(POLL_S)
        ended(training)
    steady = looks[len(looks) // 2 :]  # without the start of both
    return (steady[-1][1] - steady[0][1]) / (steady[-1][0] - steady[0][0])


def main() -> int:
    """Run the benchmark; return 0 if every goal holds."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 10.0
    pairs = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    costs = int(sys.argv[3]) if len(sys.argv) > 3 else 20
    figures = []
    for name, wanted in SLOW.items():
        if sys.argv[4:] and name not in sys.argv[4:]:
            continue
        judgment = named(name, seconds)
        kinds, promised = own_kinds(judgment), promise(name, judgment)
        is_named = kinds[:1] == [wanted.kind] and promised is not None
        against = f"{wanted.kind}, found {', '.join(kinds) or str(judgment.answer)}"
        figures.append(
            Figure(name=f"{name}: named", figure=float(is_named), unit="", better="higher", goal=1, against=against)
        )
        if promised is None:
            continue
        for finding in judgment.findings[:1]:
            tell(f"{name}: {finding.title}: {finding.headline}; {'; '.join(finding.evidence)}")
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
    if costs:
        figures += _figures(overhead(seconds, costs))
    return finish("watch", figures)


def _figures(cost: Overhead) -> list[Figure]:
    ratio, (low, high) = statistics.median(cost.watched), quartiles(cost.watched)
    calm, (least, most) = statistics.median(cost.noise), quartiles(cost.noise)
    tell(f"overhead of {len(cost.watched)} pairs: {ratio:.3f} ({low:.3f} to {high:.3f}); without {calm:.3f}")
    against = (
        f"the same training without watch at the same time, {len(cost.watched)} pairs, middle half {low:.3f} to "
        f"{high:.3f}; both without: {calm:.3f}, {least:.3f} to {most:.3f}"
    )
    # A cost below the noise of two equal trainings cannot be told from none.
    goal = max(OVERHEAD, most) if cost.is_hidden else OVERHEAD
    own = statistics.median(cost.own)
    return [
        Figure(name="overhead", figure=ratio, unit="x", better="lower", goal=goal, against=against),
        Figure(name="watch itself", figure=own, unit="s/s", better="lower", goal=OVERHEAD - 1, against="CPU time"),
    ]


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}


if __name__ == "__main__":
    sys.exit(main())
