"""Read the driver and the GPUs with NVML, in a separate process, and print them as one line of JSON.

The library is part of the driver. With a broken driver it can crash, or hang in a call that cannot be interrupted; with
a separate process, `envkit.ground.nvidia` continues without it. A process costs 30 ms; initializing NVML takes longer.
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
    """Print the document; output of the library is discarded.

    Args:
        libraries: paths of the library; the first that exists is loaded.
    """
    stdout = os.dup(1)
    nothing = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nothing, stream)
    data = json.dumps(survey(libraries)).encode()
    while data:
        data = data[os.write(stdout, data) :]
    os._exit(0)  # without unloading the library, which could crash or hang


def survey(libraries: list[str]) -> dict[str, Any]:
    """Return `absent`, `fault`, or the driver with its GPUs.

    `fault` is why NVML does not answer, with `library` as the driver version of the library. A GPU that does not answer
    has only a `fault`.
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
    """Return the code of the first call that fails for a GPU."""
    handle, name = ctypes.c_void_p(), ctypes.create_string_buffer(96)
    code: int | None = session.code("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
    return code or session.code("nvmlDeviceGetName", handle, name, ctypes.c_uint(ctypes.sizeof(name)))
