"""Print GPU numbers that thresholds depend on, one JSON object per line. gpu_calibration runs it with the payload."""

# It runs in the Python that has torch, where the payload's modules come from the archive and have no types.
# mypy: ignore-errors

from __future__ import annotations

import collections
import ctypes
import json
import pathlib
import sys
import time
from collections.abc import Callable
from typing import Any

sys.path.insert(0, sys.argv[1])
import torch

from envkit.checks import c05_gemm, c06_conv
from envkit.smoke import compat, context, gpus, nvml, one_gpu, timing

COPIES = 10
SIZES = (4096, 8192, 16384)
KINDS = (
    ("fp32", "float32", "ieee"),
    ("tf32", "float32", "tf32"),
    ("fp16", "float16", "ieee"),
    ("bf16", "bfloat16", "ieee"),
)
HOST_TO_DEVICE, DEVICE_TO_HOST = 1, 2
SEEDS = 10


def show(name: str, value: object) -> None:
    """Print one number, or several, with a name."""
    print(json.dumps({"name": name, "value": value}, default=str), flush=True)


def link() -> None:
    """Show how long a reading of the link takes."""
    reader, spent = gpus.HostLink(torch), []
    for _ in range(50):
        begin = time.perf_counter()
        reader.read()
        spent.append((time.perf_counter() - begin) * 1e3)
    show("reading of the link, ms", {"median": timing.median(spent), "max": max(spent), "link": reader.read()})


def copies() -> None:
    """Show the rate of pinned copies as the suite times them, and as a share of a plain loop of cudaMemcpyAsync."""
    ctx = context.Ctx({})
    host = ctx.pinned_slab()
    device, count = torch.zeros_like(host, device="cuda:0"), host.numel()
    directions = {"h2d": (device, host, HOST_TO_DEVICE), "d2h": (host, device, DEVICE_TO_HOST)}
    clock, rates = timing.event_clock(torch), {}
    for name, (target, source, _) in directions.items():
        variants = [(name, lambda t=target, s=source: t.copy_(s, non_blocking=True))]
        timed = timing.measure(variants, clock, budget_s=2.0)
        rates[name] = count / timed[name]["stats"]["median"] / 1e6
    show("pinned copies, GB/s", rates)
    maps = pathlib.Path("/proc/self/maps").read_text().split()
    library = next((word for word in maps if "libcudart" in word), None)
    if library is None:
        show("plain copy loop", "no libcudart in this process")
        return
    runtime = ctypes.CDLL(library)
    plain = {}
    for name, (target, source, kind) in directions.items():
        arguments = (ctypes.c_void_p(target.data_ptr()), ctypes.c_void_p(source.data_ptr()), ctypes.c_size_t(count))
        for _ in range(2):  # the first round warms up
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(COPIES):
                assert runtime.cudaMemcpyAsync(*arguments, ctypes.c_int(kind), ctypes.c_void_p(0)) == 0
            torch.cuda.synchronize()
            plain[name] = COPIES * count / (time.perf_counter() - begin) / 1e9
    show("plain copy loop, GB/s", plain)
    show("share of a plain copy loop", {name: rates[name] / plain[name] for name in plain})


def products() -> None:
    """Show the rates of large products with clock and power, and the limits that the suite uses."""
    limits, clock = one_gpu.limits(torch, 0), timing.event_clock(torch)
    show("limits", limits)
    # The tests' model of a GPU computes on the CPU, so only the smallest product is fast enough.
    sizes = SIZES[:1] if limits["name"] == "Stand-in" else SIZES
    for size in sizes:
        for name, dtype, mode in KINDS:
            if (name == "fp32" and size > SIZES[1]) or (name == "bf16" and not compat.bf16_native(torch, "cuda:0")):
                continue
            left, right = (torch.randn(size, size, device="cuda").to(getattr(torch, dtype)) for _ in range(2))
            out = torch.empty_like(left)
            with compat.fp32_precision(torch, mode, "ieee"):
                variants = [("product", lambda a=left, b=right, o=out: torch.mm(a, b, out=o))]
                stats = timing.measure(variants, clock, budget_s=1.5)["product"]["stats"]
                for _ in range(20):
                    variants[0][1]()
                health = one_gpu.health(torch, 0)
            torch.cuda.synchronize()
            rate = one_gpu.tflops(size, stats["median"])
            show(f"product {name} {size}", {"tflops": rate, "rel_iqr": stats["rel_iqr"], "told": health})
            del left, right, out


def errors(label: str, run: Callable[..., list[dict[str, Any]]], seeds: int) -> None:
    """Show the smallest and largest errors of a check's cases over seeds; thresholds must leave room above them."""
    rows = collections.defaultdict(list)
    for seed in range(seeds):
        for item in run(context.Ctx({}, seed=seed)):
            observed = item["observed"]
            cases = list(observed.get("sizes", {}).items())
            for name, parts in observed.get("cases", {}).items():
                cases += [(f"{name} {part}", error) for part, error in parts.items()]
            for name, error in cases:
                rows[f"{item['id']} {name}"].append((error["rel_fro"], error["rel_max"]))
    for name in sorted(rows):
        norms, largest = zip(*rows[name], strict=True)
        show(f"{label} {name}", {"fro": [min(norms), max(norms)], "max": max(largest)})


def convolutions() -> None:
    """Show errors of convolutions by channels, with and without cuDNN's own choice of the algorithm."""
    for channels in (16, 64, 128):
        c06_conv.CHANNELS_IN = c06_conv.CHANNELS_OUT = channels
        for benchmark in (False, True):
            torch.backends.cudnn.benchmark = benchmark
            errors(f"C06 channels {channels} benchmark {benchmark}", c06_conv.run, 3)
    torch.backends.cudnn.benchmark = False


if __name__ == "__main__":
    properties = torch.cuda.get_device_properties(0)
    show("device", str(properties))
    show("NVML", None if nvml.open_session() is None else nvml.open_session().describe(0))
    for part in (link, copies, products, lambda: errors("C05", c05_gemm.run, SEEDS), convolutions):
        try:
            part()
        except (RuntimeError, OSError, AssertionError) as error:
            show("failed", f"{type(error).__name__}: {error}")
