"""Run torch.compile in its own process and print the outcome as one JSON line on standard output."""

import importlib
import json
import os
import pathlib
import tempfile
import time

BATCH, WIDTH = 64, 128
# Suffixes of the files in Inductor's cache that show that it generated code: C++ or Triton, sources and binaries.
KERNEL_SUFFIXES = (".so", ".cpp", ".cubin", ".hsaco", ".ttir", ".ptx")


def main(arguments):
    """Compile for the device ``arguments[0]`` with an empty cache folder and print the outcome.

    Exit code 0 means that the compiler ran, with or without success.
    """
    device = arguments[0]
    with tempfile.TemporaryDirectory(prefix="envkit-") as folder:
        begin = time.perf_counter()
        import torch

        outcome = {"import_s": time.perf_counter() - begin}
        # Both attempts share one folder: some releases keep using the first one that they were given.
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        os.environ["TRITON_CACHE_DIR"] = str(pathlib.Path(folder) / "triton")
        outcome["plain"] = _attempt(torch, device, folder, "eager")
        outcome.update(_attempt(torch, device, folder, "inductor"))
    print(json.dumps(outcome), flush=True)


def _attempt(torch, device, folder, backend):
    """Compile a function with ``backend`` and return its error, or times, errors and the kernels in ``folder``."""
    torch.manual_seed(0)
    weight = torch.randn(WIDTH, WIDTH, device=device) / WIDTH**0.5

    def function(inputs):
        hidden = torch.nn.functional.gelu(inputs @ weight)
        return (hidden * torch.sigmoid(inputs)).sum(dim=1)

    # Without gradients the compiler runs half as often, through the same code.
    inputs = torch.randn(BATCH, WIDTH, device=device)
    wanted = function(inputs).to("cpu")
    importlib.import_module("torch._dynamo").reset()  # the public form began with 2.1
    compiled = torch.compile(function, fullgraph=True, backend=backend)
    begin = time.perf_counter()
    try:
        got = compiled(inputs).to("cpu")
    except Exception as error:
        return {"error": "{}: {}".format(type(error).__name__, error)[-3000:], "kernels": kernels(folder)}
    cold = time.perf_counter() - begin
    return {
        "error": None,
        "cold_s": cold,
        "warm_ms": _warm(torch, compiled, inputs),
        "eager_ms": _warm(torch, function, inputs),
        "kernels": kernels(folder),
        "result_error": _distance(got, wanted),
        "planted_error": _distance(got * 1.01, wanted),
    }


def _distance(left, right):
    return float((left.double() - right.double()).norm() / right.double().norm())


def _warm(torch, function, inputs):
    """Return the fastest of five forward passes in milliseconds."""
    times = []
    for _ in range(5):
        if inputs.is_cuda:
            torch.cuda.synchronize()
        begin = time.perf_counter()
        function(inputs)
        if inputs.is_cuda:
            torch.cuda.synchronize()
        times.append((time.perf_counter() - begin) * 1e3)
    return min(times)


def kernels(folder):
    """Return the number of kernel files below ``folder`` by suffix."""
    counts = {}
    for path in pathlib.Path(folder).rglob("*"):
        if path.suffix in KERNEL_SUFFIXES:
            counts[path.suffix] = counts.get(path.suffix, 0) + 1
    return counts
