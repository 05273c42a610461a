"""C04: a CUDA context, memory, a real kernel, and an error that must surface, each in a process that can be killed.

The process has to be separate, because a driver that hangs cannot be interrupted and a failed assertion destroys the
context. It need not be new: it is a fork of this one, which has imported torch and not started CUDA. If a fork does not
answer, a new interpreter is asked, so that no failure comes from the fork itself. An answer counts, also a wrong one.
"""

import os

from envkit.smoke import first_kernel, forked, hostfacts, observation
from envkit.smoke.probe import code_of, probe

FORK_LIMIT_S = 15.0  # CUDA starts within a second, except on machines with many GPUs and without persistence mode
PROBE_LIMIT_S = 40.0  # a context on a machine with many GPUs; a driver that hangs takes forever
CONTROL_LIMIT_S = 20.0  # at least
# The control starts CUDA as the probe did, which takes long on a machine with many GPUs.
CONTROL_FACTOR = 3.0
DRIVER_LIMIT_S = 10.0  # NVML answers in milliseconds, or hangs
ELEMENTS = 16 * 1024 * 1024  # 128 MiB of int64, twice
TOTAL, LAST = ELEMENTS**2, [2 * ELEMENTS - 5, 2 * ELEMENTS - 3, 2 * ELEMENTS - 1]


def run(ctx):
    """Return C04.kernel: what the probe computed. If the probe fails, all later checks stay off the GPU."""
    nodes = hostfacts.device_nodes(os.listdir("/dev"))  # noqa: PTH208 - names are all that is needed
    if ctx.torch.version.cuda is None and not ctx.has_cuda:
        raise observation.Skip("CPU_BUILD", "this torch is a CPU build")
    if not nodes and not ctx.has_cuda:
        raise observation.Skip("NO_GPU", "there is no GPU device node in this container")
    # The probe runs even if torch does not see the GPU: its error says why.
    observed = _asked(ctx, ["kernel", str(ELEMENTS)], PROBE_LIMIT_S)
    # Later processes start CUDA as slowly as this one, so their time limits depend on it.
    ctx.notes["cuda_start_s"] = observed.get("init_s", 0.0)
    if observed["outcome"] == "timeout":
        observed["started"] = observed["said"].startswith("ready")
        observed["driver_answers"] = probe(code_of("nvml"), [], DRIVER_LIMIT_S)["outcome"] == "answered"
    observed.update(expected_total=TOTAL, expected_last=LAST)
    if not _right(observed):
        ctx.cuda_usable = False
        detail = "the kernel itself failed, so failures do surface"
        return [
            observation.ran(
                "C04.kernel", "gpu:0", observed, controls=[observation.control("errors_surface", True, detail)]
            )
        ]
    return [observation.ran("C04.kernel", "gpu:0", observed, controls=_controls(ctx, observed))]


def _asked(ctx, arguments, limit_s):
    """Return what ``first_kernel`` answers in a fork of this process, else in a new interpreter.

    ``looked_for_cuda``: this process has started the driver, so a fork could not use it.
    """
    if not ctx.looked_for_cuda:
        found = forked.run(lambda: first_kernel.main(arguments), min(limit_s, FORK_LIMIT_S))
        if found is not None and found["outcome"] == "answered":
            return dict(found, forked=True)
    return dict(probe(code_of("first_kernel"), arguments, limit_s), forked=False)


def _right(found):
    return found["outcome"] == "answered" and found.get("total") == TOTAL and found.get("last") == LAST


def _raised(found):
    # A device-side assertion may also abort the process at exit, which surfaces just as well.
    aborted = found["outcome"] == "failed" and "assert" in found["text"].lower()
    return aborted or (found["outcome"] != "timeout" and found["text"].startswith("raised"))


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
    if observed["mps"]:
        return controls
    limit = max(CONTROL_LIMIT_S, CONTROL_FACTOR * observed["wall_s"])
    end = _asked(ctx, ["assertion"], limit)
    observed["control_outcome"] = end["outcome"]
    return [*controls, observation.control("errors_surface", _raised(end), end["text"] or end["outcome"])]
