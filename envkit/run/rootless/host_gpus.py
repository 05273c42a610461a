"""This machine's GPUs as edits of a container: reads the CDI specification, or the loader's cache and /dev."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
from dataclasses import replace
from pathlib import Path

from envkit.ground import strictyaml
from envkit.ground.errors import EnvironmentProblem
from envkit.ground.process import ask
from envkit.run.rootless.elf import soname
from envkit.run.rootless.gpu_devices import GpuEdits, from_cdi, from_loader, gpu_minors, loader_links
from envkit.run.rootless.stack import Stack

_CDI = ("/etc/cdi/nvidia.yaml", "/var/run/cdi/nvidia.yaml", "/etc/cdi/nvidia.json", "/var/run/cdi/nvidia.json")
_PATIENCE_S = 10.0


def host_gpus(gpus: str, stack: Stack) -> GpuEdits:
    """What a container of an image gets so that it sees these GPUs.

    Raises:
        EnvironmentProblem: this machine has none, or its driver's libraries are not to be found.
        UsageError: it has no GPU of that name.
    """
    folder = library_folder(stack, platform.machine())
    found = next((Path(one) for one in _CDI if Path(one).is_file()), None)
    if found is not None:
        edits = from_cdi(strictyaml.read_file(found), gpus)
        names = [(path, _soname(host) or "") for host, path in edits.mounts if path in edits.libraries]
        edits = replace(edits, links={**loader_links(names, folder), **edits.links})
    else:
        information = []
        for path in Path("/proc/driver/nvidia/gpus").glob("*/information"):
            with contextlib.suppress(OSError):
                information.append(path.read_text(errors="replace"))
        edits = from_loader(
            _listing(),
            os.listdir("/dev"),  # noqa: PTH208 - names alone
            gpus,
            machine=platform.machine(),
            minors=gpu_minors(information),
            folder=folder,
            tool=shutil.which("nvidia-smi"),
        )
    # Triton asks the image's loader cache for libcuda, and nothing can be added to that.
    return replace(edits, env={"TRITON_LIBCUDA_PATH": folder, **edits.env})


def library_folder(stack: Stack, machine: str) -> str:
    """A folder that the image's loader searches whatever its cache says."""
    multiarch = f"usr/lib/{machine}-linux-gnu"
    chosen = next((one for one in (multiarch, "usr/lib64") if stack.is_folder(one)), multiarch)
    return f"/{chosen}"


def _listing() -> str:
    program = shutil.which("ldconfig") or shutil.which("ldconfig", path="/sbin:/usr/sbin")
    if program is None:
        return ""
    with contextlib.suppress(EnvironmentProblem):
        return ask([program, "-p"], patience_s=_PATIENCE_S).out
    return ""


def _soname(path: str) -> str | None:
    with contextlib.suppress(OSError), Path(path).open("rb") as file:
        return soname(file)
    return None
