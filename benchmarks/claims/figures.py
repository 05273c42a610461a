"""The functions that read figures from a record, by the names used in claims.yaml."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence

from benchmarks.claims.reading import Findings, Part, Tree, around, doubt, ratio
from envkit.checks.c11_overlap.show import MOST
from envkit.checks.reading import is_number, mapping, sequence

SIZES_MIB = (1, 16, 64, 256)
KINDS = ("fp16", "bf16")
AXES = ("num_workers", "persistent_workers", "pin_memory", "prefetch_factor")
BOUND = {"cpu": "decoding", "io": "waiting 4 ms for storage"}
CORE_SHARE = 0.75  # the middle of 70 to 80 %


def pinned_gain(findings: Findings) -> Iterator[Part]:
    """Yield the pageable over the page-locked time of one copy to the device, by size."""
    by_id = {item["id"]: item for item in findings.like("C10.h2d_")}
    for size in SIZES_MIB:
        pinned, pageable = by_id.get(f"C10.h2d_pinned_{size}MiB"), by_id.get(f"C10.h2d_pageable_{size}MiB")
        gain = ratio(pageable, pinned) if pinned is not None and pageable is not None else None
        if pinned is not None and pageable is not None and gain is not None:
            why = doubt(pinned, pageable)
            yield (
                Part(label=f"{size} MiB", value=gain[0], spread=gain[1])
                if not why
                else Part(label=f"{size} MiB", why=why)
            )


def link_share(findings: Findings) -> Iterator[Part]:
    """Yield the rate of page-locked copies of 256 MiB as a share of the link's payload limit."""
    for name, direction in (("h2d", "to the device"), ("d2h", "to the host")):
        for item in findings.like(f"C10.{name}_pinned_256MiB"):
            rate, limit = mapping(item["observed"]).get("gb_per_s"), mapping(item["derived"]).get("limit")
            label = f"{direction}, of the link's limit"
            if is_number(rate) and is_number(limit) and limit > 0:
                yield _part(label, rate / limit, doubt(item), unit="share", stats=item["stats"], inverse=True)


def overlap(findings: Findings) -> Iterator[Part]:
    """Yield the share of the shorter of copy and kernels that is hidden behind the other."""
    names = {
        "same_stream": ("same stream", True),
        "pinned": ("two streams", False),
        "pageable": ("two streams, pageable source", False),
    }
    for item in findings.like("C11.overlap"):
        shares = mapping(mapping(item["observed"]).get("overlap"))
        for name, (label, claimed) in names.items():
            if is_number(shares.get(name)):
                why = "inconclusive: the copy alone took longer than both" if shares[name] > MOST else doubt(item)
                yield _part(label, shares[name], why, unit="share", claimed=claimed)


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


def amp_speed(findings: Findings) -> Iterator[Part]:
    """Yield the time of a training step in float32 over reduced precision, and the same for a matrix product."""
    steps = {item["id"]: item for item in findings.like("C14.bench.")}
    for check_id, item in steps.items():
        _, _, network, kind = check_id.split(".")
        strict = steps.get(f"C14.bench.{network}.fp32")
        gain = ratio(strict, item) if strict is not None and kind in KINDS else None
        if strict is not None and gain is not None:
            why, label = doubt(strict, item), f"{network}, {kind}"
            yield Part(label=label, value=None if why else gain[0], spread=None if why else gain[1], why=why)
    for item in findings.like("C15.gemm."):
        observed = mapping(item["observed"])
        gain_over = observed.get("over_fp32")
        if observed.get("precision") in KINDS and is_number(gain_over):
            label = f"matrix product, {observed['precision']}"
            yield _part(label, gain_over, doubt(item), stats=item["stats"], inverse=True, claimed=False)


def amp_memory(findings: Findings) -> Iterator[Part]:
    """Yield the memory kept for the backward pass in mixed precision over float32, and on a GPU the peak of a step."""
    for item in findings.like("C16.batch"):
        observed = mapping(item["observed"])
        kept = observed.get("saved_ratio")
        if is_number(kept):
            yield _part(f"kept for backward, batch {observed['batch']}", kept, doubt(item), unit="times float32")
        low, full = observed.get("peak_bytes_amp"), observed.get("peak_bytes_fp32")
        if is_number(low) and is_number(full) and full > 0:
            yield _part(f"peak of a step, batch {observed['batch']}", low / full, doubt(item), unit="times float32")


def amp_error(findings: Findings) -> Iterator[Part]:
    """Yield the largest relative errors of loss and gradient compared with float32, over networks and seeds."""
    for name, label in (("loss_rel_err", "loss of the first step"), ("grad_rel_l2", "gradient")):
        for kind in KINDS:
            items = [item for item in findings.like("C14.error.") if mapping(item["observed"]).get("precision") == kind]
            values = [mapping(item["observed"]).get(name) for item in items]
            numbers = [value for value in values if is_number(value)]
            if numbers:
                yield _part(f"{label}, {kind}, worst of {len(numbers)} networks", max(numbers), doubt(*items), "share")


def no_grad(findings: Findings) -> Iterator[Part]:
    """Yield the bytes kept for a backward pass without gradients over the bytes kept with gradients."""
    for item in findings.like("C17."):
        observed = mapping(item["observed"])
        kept, full = observed.get("saved_bytes"), observed.get("saved_bytes_with_grad")
        if is_number(kept) and is_number(full) and full > 0:
            mode = str(item["id"]).partition(".")[2]
            yield _part(
                f"{mode} keeps, of {full / 1e6:.1f} MB with gradients", kept / full, doubt(item), "share", claimed=False
            )


def compiled(findings: Findings) -> Iterator[Part]:
    """Yield the fastest eager call of a small function over its fastest compiled call, and the first compiled call."""
    for item in findings.like("C18.inductor"):
        observed = mapping(item["observed"])
        eager, warm, cold = (observed.get(name) for name in ("eager_ms", "warm_ms", "cold_s"))
        if is_number(eager) and is_number(warm) and warm > 0:
            yield _part(
                f"a function of {1e3 * eager:.0f} µs, best of 5 calls", eager / warm, doubt(item), claimed=False
            )
        if is_number(cold):
            yield _part("its first call", cold, doubt(item), "s", claimed=False)


def decoders(findings: Findings) -> Iterator[Part]:
    """Yield Pillow's time for one image over that of each other decoder, on one thread."""
    for item in findings.like("C21."):
        observed = mapping(item["observed"])
        gains = {name: gain for name, gain in mapping(observed.get("speed_up")).items() if name != "pillow"}
        size = f"{observed.get('width')} x {observed.get('height')}"
        for name, gain in gains.items():
            if is_number(gain):
                yield _part(f"{name}, {size}", gain, doubt(item), stats=item["stats"])
        if not gains:
            yield Part(label=size, why="not measured: no decoder other than Pillow is installed")


def storage(findings: Findings) -> Iterator[Part]:
    """Yield rates past the page cache: reads of 4 MiB in order and 4 KiB at random, writes of 4 MiB with fdatasync."""
    names = {
        "image_read": ("sequential read", "GB/s", 1e-6),
        "image_random": ("4 KiB at random", "reads/s", 1e3),
        "scratch_write": ("written, synchronized", "GB/s", 1e-6),
    }
    for item in findings.like("C22."):
        label, unit, scale = names[str(item["id"]).partition(".")[2]]
        median, moved = mapping(item["stats"]).get("median"), mapping(item["samples"]).get("bytes")
        amount = moved if unit == "GB/s" else 1.0
        if is_number(median) and median > 0 and is_number(amount):
            access = f"{label} ({mapping(item['observed']).get('filesystem')})"
            value = scale * amount / median
            yield _part(access, value, doubt(item), unit, stats=item["stats"], inverse=True, claimed=False)


def starved(findings: Findings) -> Iterator[Part]:
    """Yield the share of a training step that is lost to its loader, and its bottleneck."""
    for item in findings.like("C23.training"):
        observed, bottleneck = mapping(item["observed"]), mapping(item["derived"]).get("bottleneck")
        share, without = observed.get("starved_share"), observed.get("step_without_loader_s")
        if not is_number(share) or not is_number(without):
            continue
        stats, spread = mapping(item["stats"]), None
        low, high = stats.get("p25"), stats.get("p75")
        if is_number(low) and is_number(high) and min(low, high) > 0:
            spread = (max(0.0, 1 - 1e3 * without / low), max(0.0, 1 - 1e3 * without / high))
        why = doubt(item)
        label = "lost to the loader" if why else f"of a step lost to the loader (bottleneck: {bottleneck})"
        yield (
            Part(label=label, why=why)
            if why
            else Part(label=label, value=share, unit="share", spread=spread, claimed=False)
        )


def bus_bandwidth(findings: Findings) -> Iterator[Part]:
    """Yield the bus bandwidth of an all-reduce between the GPUs."""
    for item in findings.like("C20.bandwidth.nccl"):
        observed = mapping(item["observed"])
        rate = observed.get("busbw_gb_per_s")
        if is_number(rate):
            label = f"all-reduce over {observed.get('ranks')} GPUs"
            yield _part(label, rate, doubt(item), "GB/s", stats=item["stats"], inverse=True, claimed=False)


def _part(
    label: str,
    value: float,
    why: str,
    unit: str = "x",
    *,
    stats: object = None,
    inverse: bool = False,
    claimed: bool = True,
) -> Part:
    if why:
        return Part(label=label, why=why)
    return Part(label=label, value=value, unit=unit, spread=around(value, stats, inverse=inverse), claimed=claimed)


FIGURES: dict[str, Callable[[Findings], Iterator[Part]]] = {
    function.__name__: function
    for function in (
        pinned_gain,
        pin_effect,
        overlap,
        link_share,
        workers_per_gpu,
        workers_per_core,
        persistent_effect,
        prefetch_effect,
        decoders,
        storage,
        amp_speed,
        amp_memory,
        amp_error,
        no_grad,
        compiled,
        starved,
        bus_bandwidth,
    )
}
