"""C00: the container was started with what the image needs."""

import os
import resource

from .. import hostfacts, observation

ID = "C00"
TITLE = "container contract"
TIER = "quick"
BUDGET_S = 1.0
NEEDS = "host"

# Read by name or prefix, never all of the environment: the rest may hold secrets.
NAMES = (
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "PYTHONPATH",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_MODULE_LOADING",
    "CUDA_CACHE_DISABLE",
    "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_DRIVER_CAPABILITIES",
    "NVIDIA_DISABLE_REQUIRE",
    "NVIDIA_TF32_OVERRIDE",
)
PREFIXES = ("TORCH_", "PYTORCH_", "TORCHDYNAMO_", "TORCHINDUCTOR_", "NCCL_")
SECRET_WORDS = ("TOKEN", "SECRET", "PASSWORD", "KEY")
CONTROL = "TORCH_ENVKIT_CONTROL"


def device_nodes(names):
    """Return those names in /dev that are GPUs: nvidia0 …, or dxg under WSL; nvidiactl alone is no GPU."""
    return sorted(name for name in names if name == "dxg" or (name.startswith("nvidia") and name[6:].isdigit()))


def relevant(environment):
    """Return the variables that change how CUDA or torch behave, from a mapping like os.environ."""
    return {
        name: value
        for name, value in sorted(environment.items())
        if (name in NAMES or name.startswith(PREFIXES)) and not any(word in name for word in SECRET_WORDS)
    }


def run(_ctx):
    """Report device nodes, shared memory, limits, and the variables that change how torch behaves."""
    nodes = device_nodes(os.listdir("/dev"))  # noqa: PTH208 - names are all that is needed
    variables = relevant(os.environ)
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
                    device_nodes(["null", "nvidiactl", "nvidia-uvm"]) == []
                    and device_nodes(["nvidia0"]) == ["nvidia0"],
                    "control nodes without a GPU are no GPU",
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
    """Control: lower the soft limit to nothing for a moment; the reading follows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (0, hard))
    seen = hostfacts.limit("MEMLOCK") == 0
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (soft, hard))
    return observation.control("lowered_limit_is_seen", seen, "a soft limit of 0 bytes")


def _planted_variable():
    os.environ[CONTROL] = "1"
    seen = relevant(os.environ).get(CONTROL) == "1"
    del os.environ[CONTROL]
    return observation.control("planted_variable_is_seen", seen and CONTROL not in relevant(os.environ), CONTROL)
