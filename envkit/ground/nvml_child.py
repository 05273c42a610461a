"""What NVML tells of this machine, read in a process of its own and printed as one line of JSON.

The library is the driver's: with a broken driver it can hang in a call that nothing interrupts, or crash. Here that
ends this process, and `envkit.ground.nvidia` goes on without it. A process costs 30 ms; initializing NVML takes longer.
"""

from __future__ import annotations

import ctypes
import json
import os
from importlib import import_module
from typing import Any

_nvml: Any = import_module("envkit.smoke.nvml")  # the payload's reader of NVML; it has no types

MOST_GPUS = 256  # more than any machine has: a larger count comes from a broken library


def main(libraries: list[str]) -> None:
    """Print the document; whatever the library prints is dropped.

    Args:
        libraries: to load, the first of them that is there.
    """
    stdout = os.dup(1)
    nothing = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nothing, stream)
    data = json.dumps(survey(libraries)).encode()
    while data:
        data = data[os.write(stdout, data) :]
    os._exit(0)  # a library that crashes or hangs while it is unloaded has answered all the same


def survey(libraries: list[str]) -> dict[str, Any]:
    """Return `absent`, `fault`, or the driver with its GPUs.

    `fault` is why NVML does not answer; `library` beside it is the driver version that the library belongs to. A GPU
    that does not answer has a `fault` alone.
    """
    try:
        session, code = _nvml.start(libraries)
    except FileNotFoundError:
        return {"absent": True}
    except OSError as error:
        return {"fault": str(error)}
    if code != 0:
        return {"fault": session.reason(code), "code": code, "library": session.library_version()}
    count = ctypes.c_uint()
    code = session.code("nvmlDeviceGetCount_v2", ctypes.byref(count))
    if code != 0:
        return {"fault": session.reason(code)}
    if count.value > MOST_GPUS:
        return {"fault": f"it counts {count.value} GPUs"}
    gpus = [_gpu(session, index) for index in range(count.value)]
    return {"driver": session.driver(), "cuda": session.cuda(), "gpus": gpus}


def _gpu(session: Any, index: int) -> dict[str, Any]:
    known = session.describe(index)
    if known is None or known["name"] is None:
        return {"fault": session.reason(_refusal(session, index))}
    return {
        "name": known["name"],
        "capability": known["cc"],
        "memory_mib": known["mem_mib"],
        "mig": bool(known["mig"]),
        "slices": [name for part in session.slices(index) if (name := session.name(part))],
        "virtual": session.virtualization(index) == _nvml.VGPU,
    }


def _refusal(session: Any, index: int) -> int | None:
    """Return what the first call returns that fails for a GPU."""
    handle, name = ctypes.c_void_p(), ctypes.create_string_buffer(96)
    code: int | None = session.code("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
    return code or session.code("nvmlDeviceGetName", handle, name, ctypes.c_uint(ctypes.sizeof(name)))
