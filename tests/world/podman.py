"""Podman with a configuration of its own, which works with few privileges."""

import json
import os
import resource
import shutil
import subprocess
from pathlib import Path

from tests.scratch import storage
from tests.world import apt
from tests.world.places import UnavailableError, locked

NAME = "podman"


def ensure_podman(registry: str) -> dict[str, str]:
    """Return the environment variables with which `podman` runs containers here; raises UnavailableError.

    They name this world's configuration: storage in the test world, and plain HTTP for the registry on loopback.
    """
    with locked("podman"):
        podman = shutil.which("podman")
        if not podman:
            apt.install("podman", "runc")
            podman = apt.require("podman", "podman")
        environment = _configure(storage(NAME), registry)
        done = subprocess.run(
            [podman, "info", "--format", "{{.Host.OCIRuntime.Name}}"],
            capture_output=True, text=True, check=False, env={**os.environ, **environment}, timeout=120,
        )  # fmt: skip
        if done.returncode:
            raise UnavailableError(f"podman info: {' '.join(done.stderr.split())[-300:]}")
        return environment


def _configure(folder: Path, registry: str) -> dict[str, str]:
    # Raising a limit needs CAP_SYS_RESOURCE, which a nested container lacks, so no limit may exceed the current one.
    # Podman lowers its own process limit to the kernel's pid_max.
    processes = int(Path("/proc/sys/kernel/pid_max").read_text())
    limits = []
    for name, number, highest in (
        ("nofile", resource.RLIMIT_NOFILE, 1 << 20),
        ("nproc", resource.RLIMIT_NPROC, processes),
    ):
        soft, hard = (min(value, highest) if value >= 0 else highest for value in resource.getrlimit(number))
        limits.append(f"{name}={soft}:{hard}")
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
