"""The first kernel on a GPU, and an error on the device: what C04 runs in processes that can be killed."""

import json
import sys
import time

from . import gpus, nvml


def main(arguments):
    """Run ``kernel N`` or ``assertion``; print JSON, or what became of the assertion, as the last line."""
    if arguments[0] == "assertion":
        return assertion()
    return kernel(int(arguments[1]))


def kernel(elements):
    """Start CUDA and compute a sum; print ``ready`` after the start, then the results."""
    import torch

    begin = time.perf_counter()
    torch.cuda.init()
    torch.zeros(1, device="cuda:0")
    torch.cuda.synchronize()
    ready = time.perf_counter()
    print("ready", flush=True)
    # The sum of the first n odd numbers is n squared: every element counts, and the answer is exact.
    odd = torch.arange(elements, dtype=torch.int64, device="cuda:0") * 2 + 1
    total = int(odd.sum().item())
    last = odd[-3:].cpu().tolist()
    work = time.perf_counter() - ready
    odd[elements // 3] += 1
    planted = int(odd.sum().item())
    session = nvml.open_session()
    # Read here, because the process of the checks must not start CUDA before it has made its forks.
    mps = gpus.uses_mps(session, gpus.nvml_index(torch, session) if session is not None else None)
    result = {"init_s": ready - begin, "work_s": work, "total": total, "last": last, "planted": planted, "mps": mps}
    print(json.dumps(result), flush=True)
    return 0


def assertion():
    """Let an assertion fail on the device and print ``raised`` with its message, or ``silent``."""
    import torch

    zero = torch.zeros(1, device="cuda:0")
    try:
        if hasattr(torch, "_assert_async"):
            torch._assert_async(zero[0])  # noqa: SLF001 - torch has no public one
        else:
            zero[torch.tensor([9], device="cuda:0")]
        torch.cuda.synchronize()
    except RuntimeError as error:
        print("raised " + str(error).splitlines()[0], flush=True)
        return 0
    print("silent", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
