"""C04: a CUDA context, memory, a real kernel, and an error that must surface, each in a process that can be killed."""

import os

from envkit.smoke import gpus, hostfacts, nvml, observation
from envkit.smoke.probe import code_of, probe

PROBE_LIMIT_S = 40.0  # a context on a machine with many GPUs; a driver that hangs takes forever
CONTROL_LIMIT_S = 20.0  # at least
# The control starts CUDA as the probe did, which takes long on a machine with many GPUs.
CONTROL_FACTOR = 3.0
DRIVER_LIMIT_S = 10.0  # NVML answers in milliseconds, or hangs
ELEMENTS = 16 * 1024 * 1024  # 128 MiB of int64, twice

# The sum of the first n odd numbers is n squared: every element counts, and the answer is exact.
PROBE = """
import json, sys, time
import torch
begin = time.perf_counter()
torch.cuda.init()
torch.zeros(1, device="cuda:0")
torch.cuda.synchronize()
ready = time.perf_counter()
print("ready", flush=True)
n = int(sys.argv[1])
odd = torch.arange(n, dtype=torch.int64, device="cuda:0") * 2 + 1
total = int(odd.sum().item())
last = odd[-3:].cpu().tolist()
work = time.perf_counter() - ready
odd[n // 3] += 1
planted = int(odd.sum().item())
print(json.dumps({"init_s": ready - begin, "work_s": work, "total": total, "last": last, "planted": planted}))
"""
CONTROL = """
import sys
import torch
zero = torch.zeros(1, device="cuda:0")
try:
    if hasattr(torch, "_assert_async"):
        torch._assert_async(zero[0])
    else:
        zero[torch.tensor([9], device="cuda:0")]
    torch.cuda.synchronize()
except RuntimeError as error:
    print("raised " + str(error).splitlines()[0])
    sys.exit(0)
print("silent")
"""


def run(ctx):
    """Return C04.kernel: what the probe computed. If the probe fails, all later checks stay off the GPU."""
    nodes = hostfacts.device_nodes(os.listdir("/dev"))  # noqa: PTH208 - names are all that is needed
    if ctx.torch.version.cuda is None and not ctx.has_cuda:
        raise observation.Skip("CPU_BUILD", "this torch is a CPU build")
    if not nodes and not ctx.has_cuda:
        raise observation.Skip("NO_GPU", "there is no GPU device node in this container")
    # The probe runs even if torch does not see the GPU: its error says why.
    observed = probe(PROBE, [str(ELEMENTS)], PROBE_LIMIT_S)
    # Later processes start CUDA as slowly as this one, so their time limits depend on it.
    ctx.notes["cuda_start_s"] = observed.get("init_s", 0.0)
    if observed["outcome"] == "timeout":
        observed["started"] = observed["said"].startswith("ready")
        observed["driver_answers"] = probe(code_of("nvml"), [], DRIVER_LIMIT_S)["outcome"] == "answered"
    observed["expected_total"] = ELEMENTS**2
    observed["expected_last"] = [2 * ELEMENTS - 5, 2 * ELEMENTS - 3, 2 * ELEMENTS - 1]
    right = observed.get("total") == observed["expected_total"] and observed.get("last") == observed["expected_last"]
    if observed["outcome"] != "answered" or not right:
        ctx.cuda_usable = False
        detail = "the kernel itself failed, so failures do surface"
        return [
            observation.ran(
                "C04.kernel", "gpu:0", observed, controls=[observation.control("errors_surface", True, detail)]
            )
        ]
    return [observation.ran("C04.kernel", "gpu:0", observed, controls=_controls(ctx, observed))]


def _controls(ctx, observed):
    """Return the controls: changing an element on the device changes the sum, and a failed assertion is raised.

    The assertion is left out under MPS, where it would end every client of the GPU. It leaves an Xid (13, or 43 with
    some drivers) in the host's kernel log.
    """
    planted = observed.get("planted")
    noticed = planted == observed["expected_total"] + 1
    controls = [
        observation.control("changed_element_is_noticed", noticed, f"the sum with one element changed: {planted}")
    ]
    session = nvml.open_session()
    index = gpus.nvml_index(ctx.torch, session) if session is not None and ctx.has_cuda else None
    observed["mps"] = gpus.uses_mps(session, index)
    if observed["mps"]:
        return controls
    end = probe(CONTROL, [], max(CONTROL_LIMIT_S, CONTROL_FACTOR * observed["wall_s"]))
    surfaced = end["outcome"] != "timeout" and end["text"].startswith("raised")
    # A device-side assertion may also abort the process at exit, which surfaces just as well.
    surfaced = surfaced or (end["outcome"] == "failed" and "assert" in end["text"].lower())
    return [*controls, observation.control("errors_surface", surfaced, end["text"] or end["outcome"])]
