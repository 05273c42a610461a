"""The torch wheels that envkit, uv and light-the-torch choose for 200 pairs of a driver and a GPU.

    python -m benchmarks.torch_pickers [--pairs 200] [--seed 20261123] [--all]

Pairs are drawn from the GPUs and drivers in the facts; only drivers that support the GPU are drawn. Each tool is asked
for the newest torch: uv with `--torch-backend auto`, light-the-torch with `install --dry-run`, both in their own
environments and with an index on loopback that lists every published wheel. Their choice depends only on the driver, so
each is asked once per driver. Every pick is compared with the facts: is the wheel published, does it have code for the
GPU, does its cuDNN support the GPU, does the driver run its CUDA? A refusal is wrong if an exhaustive search finds a
wheel. --all prints every pair.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

from benchmarks import _wheel_fit
from benchmarks._report import Figure, finish, tell
from benchmarks._wheel_fit import Pick
from benchmarks.peers import fixtures, runner
from benchmarks.peers.model import load as load_peers
from envkit.facts.evidence import grade_of, read
from envkit.facts.load import load
from envkit.facts.model import Build, Facts, Gpu
from envkit.facts.sources import describe, find
from envkit.resolve.conflict import Unresolvable
from envkit.resolve.request import parse
from envkit.resolve.resolver import resolve

PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"  # the Python of all tools' environments
OLDEST_DRIVER = 450
OUR, OTHERS = "envkit", ("uv", "light-the-torch")
_COMMANDS = {
    "uv": f"echo torch | uv pip compile --torch-backend auto --python-version {PYTHON} -",
    "light-the-torch": "ltt install --dry-run torch",
}


@dataclass(frozen=True, slots=True)
class Pair:
    """A machine: its driver, its GPU, and the GPU's compute capability."""

    driver: str
    gpu: str
    capability: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """A tool's pick for a pair and what is wrong with it; empty if torch computes on that machine."""

    pick: Pick | None
    wrong: tuple[str, ...]


def pairs(facts: Facts, count: int, seed: int) -> list[Pair]:
    """Return different machines that can exist: any desktop or data center GPU with a driver that supports it."""
    drivers = sorted(
        {row.linux_min for row in facts.toolkits if row.linux_min and _branch(row.linux_min) >= OLDEST_DRIVER}
    )
    every = [
        Pair(driver, product, gpu.capability)
        for gpu in facts.gpus
        if not gpu.integrated
        for product in gpu.products
        for driver in drivers
        if _supports(driver, gpu)
    ]
    drawn = Random(seed).sample(every, count)  # noqa: S311 - the same pairs everywhere
    return sorted(drawn, key=lambda pair: (float(pair.capability), pair.gpu, pair.driver))


def _supports(driver: str, gpu: Gpu) -> bool:
    return (gpu.min_driver_branch or 0) <= _branch(driver) <= (gpu.last_driver_branch or sys.maxsize)


def _branch(driver: str) -> int:
    return int(driver.partition(".")[0])


def verdict(pick: Pick | None, pair: Pair, facts: Facts) -> Verdict:
    """Judge a pick, or a refusal, by the facts."""
    if pick is None:
        possible = fitting(pair.capability, pair.driver)
        return Verdict(None, (f"refuses, although torch {possible[-1].torch} runs",) if possible else ())
    build = _wheel_fit.published(pick, facts)
    if build is None or PYTHON not in (build.pythons or ()):
        return Verdict(pick, (f"there is no such wheel for Python {PYTHON}",))
    return Verdict(pick, tuple(_wheel_fit.faults(build, pair.capability, pair.driver, facts)))


@cache
def fitting(capability: str, driver: str) -> tuple[Build, ...]:
    """Return every published wheel that computes on a machine."""
    facts = load()
    return tuple(
        build
        for build in facts.builds
        if (build.source, build.platform) == ("pytorch", "linux-64")
        and PYTHON in (build.pythons or ())
        and not _wheel_fit.faults(build, capability, driver, facts)
    )


def our_pick(pair: Pair, facts: Facts) -> Pick | None:
    """Return envkit's pick for a machine."""
    fields = {"driver": pair.driver, "gpu": pair.gpu, "python": PYTHON, "source": "pytorch", "os": "ubuntu24.04"}
    try:
        resolution = resolve(parse(fields, facts), facts)
    except Unresolvable:
        return None
    return Pick(resolution.torch, resolution.local_version or "")


def their_picks(drivers: Iterable[str]) -> dict[tuple[str, str], Pick | None]:
    """Return the picks of the other tools by tool and driver."""
    tools = [tool for tool in load_peers()[0] if tool.name in OTHERS]
    with runner.bench(tools) as (bench, versions), tempfile.TemporaryDirectory(dir=bench.folder) as here:
        tell("; ".join(f"{name} {version}" for name, version in versions.items()))
        return {(tool, driver): _their_pick(bench, tool, driver, here) for driver in drivers for tool in OTHERS}


def _their_pick(bench: runner.Bench, tool: str, driver: str, here: str) -> Pick | None:
    """Return a tool's pick on a machine with this driver."""
    smi = fixtures.machine(Path(here) / driver, driver)
    env = {**bench.env, "PATH": f"{bench.tools / tool / 'bin'}:{smi}:{bench.env['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", _COMMANDS[tool]], env=env, cwd=here, capture_output=True, text=True, check=False
    )
    return _wheel_fit.picked(done.stdout) if done.returncode == 0 else None


def kind(verdict: Verdict) -> str:
    """Return the category of a verdict, in one or two words."""
    if verdict.pick is None:
        return "refused wrongly" if verdict.wrong else "refused rightly"
    text = " ".join(verdict.wrong)
    words = {
        "no such wheel": "not published",
        "no code": "no code",
        "dropped": "no cuDNN",
        "driver": "driver",
        "CPU": "CPU",
    }
    return next((word for part, word in words.items() if part in text), "runs")


def _table(rows: Mapping[str, Sequence[Verdict]]) -> Iterator[str]:
    kinds = ("runs", "refused rightly", "no code", "no cuDNN", "driver", "not published", "CPU", "refused wrongly")
    yield f"{'':<16}" + "".join(f"{name:>16}" for name in kinds)
    for tool, verdicts in rows.items():
        counts = Counter(map(kind, verdicts))
        yield f"{tool:<16}" + "".join(f"{counts[name]:>16}" for name in kinds)


def _wrong_picks(machines: Sequence[Pair], rows: Mapping[str, Sequence[Verdict]], facts: Facts) -> Iterator[str]:
    """Yield every wrong pick with the facts that show it."""
    for tool, verdicts in rows.items():
        by_pick: dict[tuple[Pick | None, tuple[str, ...]], list[int]] = {}
        for number, result in enumerate(verdicts):
            if result.wrong:
                by_pick.setdefault((result.pick, result.wrong), []).append(number)
        for (pick, wrong), numbers in sorted(by_pick.items(), key=lambda item: -len(item[1])):
            example = machines[numbers[0]]
            instead = rows[OUR][numbers[0]].pick
            such = f"{len(numbers)} pair{'s' * (len(numbers) > 1)}, such as {example.gpu} with driver {example.driver}"
            yield f"{tool}: torch {pick or 'none'} for {such}"
            yield f"    {'; '.join(wrong)}; envkit: {f'torch {instead}' if instead else 'refuses'}"
            yield from (f"    {line}" for line in evidence(pick, facts))


def evidence(pick: Pick | None, facts: Facts) -> Iterator[str]:
    """Yield the facts about a wheel, with grade and source."""
    build = pick and _wheel_fit.published(pick, facts)
    if not build:
        return
    key = f"{build.torch} {build.cuda} {build.source} {build.platform}"
    rows = [row for row in read("builds") if row.row == key and row.field == "archs"]
    sources = [entry[1] for ref in build.refs if (entry := find(facts.sources, ref))]
    files = [f"{row.file}: {row.quote}" for row in rows]
    origins = files or [describe(source, "").partition(" (")[0] for source in sources[:1]]
    archs = " ".join(f"sm_{capability.replace('.', '')}" for capability in build.archs or ())
    yield f"facts row {key}: {archs}; cuDNN {build.cudnn}; {grade_of(rows, build.confidence)}: {'; '.join(origins)}"


def main() -> int:
    """Run the benchmark and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=20261123)
    parser.add_argument("--all", action="store_true")
    options = parser.parse_args()
    facts = load()
    machines = pairs(facts, options.pairs, options.seed)
    theirs = their_picks(sorted({pair.driver for pair in machines}))
    rows = {OUR: [verdict(our_pick(pair, facts), pair, facts) for pair in machines]}
    rows |= {tool: [verdict(theirs[tool, pair.driver], pair, facts) for pair in machines] for tool in OTHERS}
    if options.all:
        for number, pair in enumerate(machines):
            picks = "  ".join(
                f"{tool} {verdicts[number].pick} ({kind(verdicts[number])})" for tool, verdicts in rows.items()
            )
            tell(f"{pair.gpu} (sm_{pair.capability.replace('.', '')}), driver {pair.driver}: {picks}")
    for line in (*_wrong_picks(machines, rows, facts), *_table(rows), *_newer(rows)):
        tell(line)
    wrong = {tool: sum(bool(result.wrong) for result in verdicts) for tool, verdicts in rows.items()}
    against = ", ".join(f"{tool} {wrong[tool]}" for tool in OTHERS) + f" of {len(machines)} pairs, Python {PYTHON}"
    return finish("torch_pickers", [
        Figure(name="wrong picks", figure=wrong[OUR], unit="", better="lower", goal=0, against=against),
    ])  # fmt: skip


def _newer(rows: Mapping[str, Sequence[Verdict]]) -> Iterator[str]:
    """Yield how often envkit's torch is newer or older than another tool's, for pairs on which both run."""
    for tool in OTHERS:
        both = [(ours.pick, other.pick) for ours, other in zip(rows[OUR], rows[tool], strict=True) if not other.wrong]
        compared = Counter(
            (_numbers(own) > _numbers(other)) - (_numbers(own) < _numbers(other))
            for own, other in both
            if own and other
        )
        counts = f"newer {compared[1]} times, older {compared[-1]}, the same {compared[0]}"
        yield f"where both run: envkit's torch is {counts} compared with {tool}'s"


def _numbers(pick: Pick) -> tuple[int, ...]:
    return tuple(map(int, pick.torch.split(".")))


if __name__ == "__main__":
    raise SystemExit(main())
