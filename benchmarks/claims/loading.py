"""Figures about the DataLoader's options, from the sweeps of C12."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from benchmarks.claims.reading import Findings, Part, Tree, doubt
from envkit.checks.reading import is_number, mapping, sequence

AXES = ("num_workers", "persistent_workers", "pin_memory", "prefetch_factor")
BOUND = {"cpu": "decoding", "io": "waiting 4 ms for storage"}
CORE_SHARE = 0.75  # the middle of 70 to 80 %


def pin_effect(findings: Findings) -> Iterator[Part]:
    """Yield the throughput with pin_memory over the throughput without."""
    return _effect(findings, "pin_memory")


def persistent_effect(findings: Findings) -> Iterator[Part]:
    """Yield the throughput with persistent workers over that with restarted ones."""
    return _effect(findings, "persistent_workers")


def prefetch_effect(findings: Findings) -> Iterator[Part]:
    """Yield the throughput with the larger prefetch_factor over that with the smaller one."""
    return _effect(findings, "prefetch_factor")


def workers_per_gpu(findings: Findings) -> Iterator[Part]:
    """Yield the throughput of four workers per GPU over the best. A machine without a GPU counts as one GPU."""
    cards = len(sequence(findings.record["env"]["gpu"])) or 1
    return _rule(findings, 4 * cards)


def workers_per_core(findings: Findings) -> Iterator[Part]:
    """Yield the throughput of CORE_SHARE workers per logical core over the best."""
    logical = mapping(findings.record["env"]["host"]).get("logical")
    return _rule(findings, int(CORE_SHARE * logical)) if is_number(logical) else iter(())


def _sweeps(findings: Findings) -> Iterator[tuple[str, list[Tree], str]]:
    """Yield each workload's name, its cells (of the whole matrix if it ran) and why they cannot be used, or ''."""
    for name, bound in BOUND.items():
        items = [*findings.like(f"C12.matrix.{name}"), *findings.like(f"C12.throughput.{name}")]
        if items:
            cells = [mapping(cell) for cell in sequence(mapping(items[0]["observed"]).get("cells"))]
            yield bound, [cell for cell in cells if is_number(cell.get("samples_per_s"))], doubt(items[0])


def _effect(findings: Findings, option: str) -> Iterator[Part]:
    rest = [name for name in AXES if name != option]
    for bound, cells, why in _sweeps(findings):
        ratios = [
            more["samples_per_s"] / less["samples_per_s"]
            for more in cells
            for less in cells
            if more["num_workers"] and all(more[name] == less[name] for name in rest) and more[option] > less[option]
        ]
        label = f"bound by {bound}"
        if ratios and why:
            yield Part(label=label, why=why)
        elif ratios:
            middle = statistics.median(ratios)
            yield Part(label=f"{label}, {len(ratios)} pairs", value=middle, spread=(min(ratios), max(ratios)))


def _rule(findings: Findings, workers: int) -> Iterator[Part]:
    for bound, cells, why in _sweeps(findings):
        label = f"bound by {bound}, {workers} worker{'s' * (workers != 1)}"
        rates = [cell for cell in cells if cell["num_workers"] == workers]
        if why:
            yield Part(label=label, why=why)
        elif not rates:
            tried = sorted({int(cell["num_workers"]) for cell in cells})
            yield Part(label=label, why=f"not measured: the sweep has {', '.join(map(str, tried))}")
        else:
            best, chosen = _best(cells), _best(rates)
            share = chosen["samples_per_s"] / best["samples_per_s"]
            yield Part(
                label=f"{label}, of the best ({best['num_workers']})",
                value=share,
                unit="share",
                spread=_epochs(share, chosen),
            )


def _best(cells: Sequence[Tree]) -> Tree:
    return max(cells, key=lambda cell: float(cell["samples_per_s"]))


def _epochs(share: float, cell: Tree) -> tuple[float, float] | None:
    times = [value for value in sequence(cell.get("epochs_ms")) if is_number(value) and value > 0]
    middle = statistics.median(times) if times else None
    return None if middle is None else (share * middle / max(times), share * middle / min(times))
