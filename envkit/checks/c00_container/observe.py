"""C00: device nodes, shared memory, limits and environment variables of the container."""

import os
import resource

from envkit.smoke import hostfacts, observation

CONTROL = "TORCH_ENVKIT_CONTROL"


def run(_ctx):
    """Return C00.gpu, C00.shm, C00.memlock and C00.env: the variables that change how torch behaves."""
    nodes = hostfacts.device_nodes(os.listdir("/dev"))  # noqa: PTH208 - names are all that is needed
    variables = hostfacts.relevant(os.environ)
    memory = hostfacts.shared_memory()
    limits = {name.lower(): hostfacts.limit(name) for name in ("MEMLOCK", "NOFILE", "NPROC")}
    return [
        observation.ran(
            "C00.gpu",
            "host",
            {"device_nodes": nodes, "env": {key: variables.get(key) for key in variables if key.startswith("NVIDIA_")}},
            controls=[
                observation.control(
                    "only_gpus_count",
                    hostfacts.device_nodes(["null", "nvidiactl", "nvidia-uvm"]) == []
                    and hostfacts.device_nodes(["nvidia0"]) == ["nvidia0"],
                    "control nodes alone are not a GPU",
                )
            ],
        ),
        observation.ran(
            "C00.shm",
            "host",
            dict(memory, limits=limits, cgroup=hostfacts.read_cgroup()),
            controls=[
                observation.control(
                    "missing_mount_is_seen",
                    hostfacts.shared_memory("/dev/envkit-no-such-mount")["bytes"] is None,
                    "a mount that does not exist has no size",
                )
            ],
        ),
        observation.ran("C00.memlock", "host", {"bytes": limits["memlock"]}, controls=[_lowered_limit()]),
        observation.ran("C00.env", "host", {"variables": variables}, controls=[_planted_variable()]),
    ]


def _lowered_limit():
    """Control: lower the soft limit to 0 for a moment; the reading must follow."""
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (0, hard))
    seen = hostfacts.limit("MEMLOCK") == 0
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (soft, hard))
    return observation.control("lowered_limit_is_seen", seen, "a soft limit of 0 bytes")


def _planted_variable():
    os.environ[CONTROL] = "1"
    seen = hostfacts.relevant(os.environ).get(CONTROL) == "1"
    del os.environ[CONTROL]
    return observation.control(
        "planted_variable_is_seen", seen and CONTROL not in hostfacts.relevant(os.environ), CONTROL
    )
