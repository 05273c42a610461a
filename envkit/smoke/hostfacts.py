"""Resources of the container: CPUs, memory, limits, shared memory. Parsers take the text of a file."""

import ctypes
import math
import os
import pathlib
import platform
import resource
import tempfile

# Only these variables and prefixes are read: the rest of the environment may contain secrets.
VARIABLES = (
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "PYTHONPATH",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_MODULE_LOADING",
    "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_DRIVER_CAPABILITIES",
    "NVIDIA_DISABLE_REQUIRE",
    "NVIDIA_TF32_OVERRIDE",
)
PREFIXES = (
    "TORCH_",
    "PYTORCH_",
    "TORCHDYNAMO_",
    "TORCHINDUCTOR_",
    "NCCL_",
    "CUDA_CACHE_",
    "CUDA_MPS_",
    "CUBLAS_EMULATE_",
    "CUBLAS_EMULATION_",
    "CUBLASLT_",
    "CUDNN_",
    "TRITON_",
)
SECRET_WORDS = ("TOKEN", "SECRET", "PASSWORD", "KEY")


def read_text(path):
    """Return the file's text, empty if it cannot be read."""
    try:
        return pathlib.Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def quota_v2(cpu_max):
    """Return the CPUs of a cgroup v2 ``cpu.max`` line (``150000 100000`` is 1.5), None for ``max`` or no text."""
    words = cpu_max.split()
    if not words or not words[0].isdigit():
        return None
    period = int(words[1]) if len(words) > 1 and words[1].isdigit() else 100000
    return int(words[0]) / period if period else None


def quota_v1(quota_us, period_us):
    """Return the CPUs of cgroup v1's cfs files, None if there is no quota (-1)."""
    try:
        quota, period = int(quota_us), int(period_us)
    except ValueError:
        return None
    return quota / period if quota > 0 and period > 0 else None


def count_list(text):
    """Return how many numbers are in a kernel list like ``0-3,8``; None for an empty list."""
    return len(numbers_of_list(text)) or None


def numbers_of_list(text):
    """Return the numbers in a kernel list like ``0-3,8`` as a set."""
    numbers = set()
    for part in text.strip().split(","):
        low, _, high = part.partition("-")
        if low.isdigit():
            numbers.update(range(int(low), (int(high) if high.isdigit() else int(low)) + 1))
    return numbers


def cgroup_paths(proc_self_cgroup):
    """Return ``{controller: path}`` of /proc/self/cgroup; the controller of cgroup v2 is the empty string."""
    paths = {}
    for line in proc_self_cgroup.splitlines():
        parts = line.split(":", 2)
        if len(parts) == 3:
            for controller in parts[1].split(","):
                paths[controller] = parts[2]
    return paths


def ancestors(path):
    """Return a cgroup path and all paths above it, without leading slashes; the last one is empty, the root."""
    parts = [part for part in path.split("/") if part and part != ".."]
    return ["/".join(parts[:length]) for length in range(len(parts), -1, -1)]


def read_cgroup(root="/sys/fs/cgroup", proc="/proc/self/cgroup"):
    """Return ``{version, quota_cpus, cpuset_cpus, memory_bytes}``; limits that are not set are None.

    Inside a container the path in /proc may be the host's although the mount shows the container's own group. So
    every group from that path up to the mount's root is read, and the tightest limit counts.
    """
    base, paths = pathlib.Path(root), cgroup_paths(read_text(proc))
    if (base / "cgroup.controllers").exists():
        groups = [base / part for part in ancestors(paths.get("", "/"))]
        quotas = [quota_v2(read_text(group / "cpu.max")) for group in groups]
        memory = [memory_limit(read_text(group / "memory.max")) for group in groups]
        cpuset, version = read_text(base / "cpuset.cpus.effective"), 2
    else:
        groups = [base / "cpu" / part for part in ancestors(paths.get("cpu", "/"))]
        quotas = [
            quota_v1(read_text(group / "cpu.cfs_quota_us"), read_text(group / "cpu.cfs_period_us")) for group in groups
        ]
        groups = [base / "memory" / part for part in ancestors(paths.get("memory", "/"))]
        memory = [memory_limit(read_text(group / "memory.limit_in_bytes")) for group in groups]
        cpuset = read_text(base / "cpuset" / "cpuset.cpus")
        version = 1 if "cpu" in paths or "memory" in paths else None
    return {
        "version": version,
        "quota_cpus": min((item for item in quotas if item is not None), default=None),
        "cpuset_cpus": count_list(cpuset),
        "memory_bytes": min((item for item in memory if item is not None), default=None),
    }


def memory_limit(text):
    """Return a cgroup memory limit in bytes, None for ``max`` and for v1's "unlimited" (close to 2**63)."""
    word = text.strip()
    if not word.isdigit() or int(word) >= 2**60:
        return None
    return int(word)


def effective_cpus(affinity, quota, cpuset):
    """Return the CPUs that this process may use at once: the smallest limit that is set."""
    return float(min(value for value in (affinity, quota, cpuset) if value is not None))


def cpus():
    """Return ``{logical, affinity, quota_cpus, cpuset_cpus, effective, cgroup}``."""
    group = read_cgroup()
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return {
        "logical": os.cpu_count(),
        "affinity": affinity,
        "quota_cpus": group["quota_cpus"],
        "cpuset_cpus": group["cpuset_cpus"],
        "effective": effective_cpus(affinity, group["quota_cpus"], group["cpuset_cpus"]),
        "cgroup": group["version"],
    }


def current_cpu():
    """Return the number of the CPU that this thread is running on, None if the C library cannot report it."""
    try:
        number = ctypes.CDLL(None).sched_getcpu()
    except (OSError, AttributeError):
        return None
    return number if number >= 0 else None


def whole_cpus(effective):
    """Return how many threads fit ``effective`` CPUs: rounded down, at least one."""
    return max(1, math.floor(effective + 1e-9))


def limit(name):
    """Return a soft resource limit like ``MEMLOCK`` as a number, or ``unlimited``."""
    soft, _ = resource.getrlimit(getattr(resource, "RLIMIT_" + name))
    return "unlimited" if soft == resource.RLIM_INFINITY else soft


def shared_memory(path="/dev/shm"):
    """Return ``{bytes, free_bytes}`` of the shared memory mount, both None if it does not exist."""
    try:
        stat = os.statvfs(path)
    except OSError:
        return {"bytes": None, "free_bytes": None}
    return {"bytes": stat.f_blocks * stat.f_frsize, "free_bytes": stat.f_bavail * stat.f_frsize}


def processor_name(cpuinfo):
    """Return the processor's name from /proc/cpuinfo's text (x86 or Arm), else the machine type, None if unknown."""
    for key in ("model name", "Model", "CPU part"):
        for line in cpuinfo.splitlines():
            name, _, value = line.partition(":")
            if name.strip() == key:
                return value.strip()
    return platform.machine() or None


def memory_total(meminfo, name="MemTotal"):
    """Return a line of /proc/meminfo's text in bytes, None if it is missing."""
    for line in meminfo.splitlines():
        words = line.split()
        if len(words) >= 2 and words[0] == name + ":" and words[1].isdigit():
            return int(words[1]) * 1024
    return None


def routed_interfaces(ipv4, ipv6):
    """Return the network interfaces with routes, from the texts of /proc/net/route and /proc/net/ipv6_route.

    Loopback is not included: a container without network has it, too.
    """
    names = [line.split()[0] for line in ipv4.splitlines()[1:] if line.strip()]
    names += [line.split()[-1] for line in ipv6.splitlines() if line.strip()]
    return sorted(set(names) - {"lo"})


def memory_room():
    """Return the bytes of memory that this process can get: the smaller of available memory and limit, or None."""
    room = [memory_total(read_text("/proc/meminfo"), "MemAvailable"), read_cgroup()["memory_bytes"]]
    return min((item for item in room if item is not None), default=None)


def distribution(text):
    """Return ``{id, version, like}`` of the text of /etc/os-release; ``like`` are similar distributions."""
    rows = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    values = {name: rows.get(name, "").strip().strip("\"'") for name in ("ID", "VERSION_ID", "ID_LIKE")}
    return {"id": values["ID"] or None, "version": values["VERSION_ID"] or None, "like": values["ID_LIKE"].split()}


def device_nodes(names):
    """Return the names in /dev that are GPUs: nvidia0 and so on, or dxg under WSL; nvidiactl is not a GPU."""
    return sorted(name for name in names if name == "dxg" or (name.startswith("nvidia") and name[6:].isdigit()))


def cuda_cache():
    """Return the folder for the driver's compiled kernels in runs whose environment does not set one."""
    return os.path.join(tempfile.gettempdir(), "envkit-cuda-cache")  # noqa: PTH118 - a text for the environment


def relevant(environment):
    """Return the variables that affect CUDA or torch, from a mapping like os.environ.

    The kernel cache that the payload itself sets is left out: it is not a property of the image.
    """
    return {
        name: value
        for name, value in sorted(environment.items())
        if (name in VARIABLES or name.startswith(PREFIXES)) and not any(word in name for word in SECRET_WORDS)
        if (name, value) != ("CUDA_CACHE_PATH", cuda_cache())
    }
