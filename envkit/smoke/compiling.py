"""torch.compile in a process of its own: what it produced, as one JSON line on standard output."""

import importlib
import json
import os
import pathlib
import tempfile
import time

BATCH, WIDTH = 64, 128
# What Inductor leaves in its cache where it really generated code: C++ or Triton sources, and what became of them.
KERNEL_SUFFIXES = (".so", ".cpp", ".cubin", ".hsaco", ".ttir", ".ptx")


def main(arguments):
    """Compile for ``device`` with a cache folder that is new, and print what came of it. Exit 0: it was tried."""
    device = arguments[0]
    with tempfile.TemporaryDirectory(prefix="envkit-") as folder:
        begin = time.perf_counter()
        import torch

        found = {"import_s": time.perf_counter() - begin}
        # One folder for both: some releases remember the first one that they were given.
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        os.environ["TRITON_CACHE_DIR"] = str(pathlib.Path(folder) / "triton")
        found["plain"] = _attempt(torch, device, folder, "eager")
        found.update(_attempt(torch, device, folder, "inductor"))
    print(json.dumps(found), flush=True)


def _attempt(torch, device, folder, backend):
    """Compile one function with ``backend``: the error, or time, result and the kernels found in ``folder``."""
    torch.manual_seed(0)
    weight = torch.randn(WIDTH, WIDTH, device=device) / WIDTH**0.5

    def function(inputs):
        hidden = torch.nn.functional.gelu(inputs @ weight)
        return (hidden * torch.sigmoid(inputs)).sum(dim=1)

    # Without gradients: the compiler starts half as often, and the way to it is the same.
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
    """Fastest of five forward passes in milliseconds."""
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
    """Return how many files of each kind of kernel lie below ``folder``."""
    found = {}
    for path in pathlib.Path(folder).rglob("*"):
        if path.suffix in KERNEL_SUFFIXES:
            found[path.suffix] = found.get(path.suffix, 0) + 1
    return found
