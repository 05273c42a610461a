"""Podman: the one installed, with a configuration of its own that works where privileges are few."""

import json
import os
import resource
import shutil
import subprocess
from pathlib import Path

from tests.world import apt
from tests.world.places import UnavailableError, cache, locked

NAME = "podman"


def ensure_podman(registry: str) -> dict[str, str]:
    """The environment under which `podman` runs containers here; raises UnavailableError with the reason.

    The files are this world's own: storage below the cache folder, the registry on loopback allowed over plain HTTP.
    """
    with locked("podman"):
        podman = shutil.which("podman")
        if not podman:
            apt.install("podman", "runc")
            podman = apt.require("podman", "podman")
        environment = _configure(cache(NAME), registry)
        done = subprocess.run(
            [podman, "info", "--format", "{{.Host.OCIRuntime.Name}}"],
            capture_output=True, text=True, check=False, env={**os.environ, **environment}, timeout=120,
        )  # fmt: skip
        if done.returncode:
            raise UnavailableError(f"podman info: {' '.join(done.stderr.split())[-300:]}")
        return environment


def _configure(folder: Path, registry: str) -> dict[str, str]:
    # Raising a limit needs CAP_SYS_RESOURCE, which a nested machine lacks, so none may be above what is already held;
    # podman itself lowers its own process limit to the kernel's pid_max.
    processes = int(Path("/proc/sys/kernel/pid_max").read_text())
    limits = []
    for name, number, most in (
        ("nofile", resource.RLIMIT_NOFILE, 1 << 20),
        ("nproc", resource.RLIMIT_NPROC, processes),
    ):
        held = [min(value, most) if value >= 0 else most for value in resource.getrlimit(number)]
        limits.append(f"{name}={held[0]}:{held[1]}")
    runtime = "runc" if shutil.which("runc") else "crun"
    (folder / "containers.conf").write_text(
        f"[containers]\ndefault_ulimits = {json.dumps(limits)}\n\n"
        f'[engine]\nruntime = "{runtime}"\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n'
    )
    (folder / "storage.conf").write_text(
        f'[storage]\ndriver = "overlay"\ngraphroot = {json.dumps(str(folder / "storage"))}\n'
        f"runroot = {json.dumps(str(folder / 'run'))}\n"
    )
    (folder / "registries.conf").write_text(
        f'unqualified-search-registries = ["docker.io"]\n\n[[registry]]\nlocation = "{registry}"\ninsecure = true\n'
    )
    return {
        "CONTAINERS_CONF": str(folder / "containers.conf"),
        "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
        "CONTAINERS_REGISTRIES_CONF": str(folder / "registries.conf"),
    }
