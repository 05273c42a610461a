"""Collect the ``env`` part of the document: host, GPUs, software and flags."""

import os
import platform

from . import gpus, hostfacts, libraries, nvml, versions


def collect(ctx):
    """Return the environment as plain JSON; what cannot be read is None."""
    torch = ctx.torch if ctx.has_torch else None
    return {
        "host": host(),
        "gpu": cards(ctx),
        "sw": software(ctx, torch),
        "flags": dict(precision_flags(torch), **hostfacts.relevant(os.environ)),
    }


def host():
    """Return processor, CPU limits, memory, shared memory, locked-memory limit, kernel and virtualisation."""
    cpus = hostfacts.cpus()
    memory = hostfacts.memory_total(hostfacts.read_text("/proc/meminfo"))
    group = hostfacts.read_cgroup()
    cpuinfo = hostfacts.read_text("/proc/cpuinfo")
    shared = hostfacts.shared_memory()["bytes"]
    return {
        "cpu_model": hostfacts.processor_name(cpuinfo),
        "machine": platform.machine(),
        "logical": cpus["logical"],
        "affinity": cpus["affinity"],
        "quota_cpus": cpus["quota_cpus"],
        "effective": cpus["effective"],
        "numa_nodes": hostfacts.count_list(hostfacts.read_text("/sys/devices/system/node/online")),
        "ram_gb": None if memory is None else round(memory / 1e9, 1),
        "memcg_gb": None if group["memory_bytes"] is None else round(group["memory_bytes"] / 1e9, 1),
        "shm_mb": None if shared is None else shared // 2**20,
        "memlock": hostfacts.limit("MEMLOCK"),
        "kernel": platform.release(),
        "virt": "hypervisor" if " hypervisor" in cpuinfo else None,
        "cgroup": cpus["cgroup"],
        "libc": "-".join(platform.libc_ver()) or None,
    }


def cards(ctx):
    """Return one entry per NVIDIA device that NVML shows; from torch alone where NVML is absent."""
    session = nvml.open_session()
    if session is not None:
        return [card for card in (session.describe(index) for index in range(session.count())) if card]
    if not ctx.has_cuda:
        return []
    found = []
    for index in range(ctx.torch.cuda.device_count()):
        properties = ctx.torch.cuda.get_device_properties(index)
        found.append(
            {
                "uuid": gpus.device_uuid(ctx.torch, index),
                "name": properties.name,
                "cc": f"{properties.major}.{properties.minor}",
                "mem_mib": properties.total_memory // 2**20,
                "driver": None,
            }
        )
    return found


def software(ctx, torch):
    """Return what runs: Python, torch, CUDA, cuDNN, NCCL, triton, architectures and loaded libraries."""
    loaded = libraries.in_this_process()
    kept = libraries.of_families(loaded, libraries.CUDA_FAMILIES + libraries.TORCH_FAMILIES)
    found = {
        "python": platform.python_version(),
        "torch": None,
        "torch_error": str(ctx.torch_error) if ctx.torch_error else None,
        "triton": versions.distribution("triton"),
        "numpy": versions.distribution("numpy"),
        "loaded_libs": {name: paths[0] for name, paths in kept.items()},
        "openmp": libraries.openmp_runtimes(loaded),
    }
    if torch is not None:
        found.update(
            torch=str(torch.__version__),
            torch_cuda=torch.version.cuda,
            cudnn_runtime=_quietly(versions.cudnn_runtime, torch),
            cudnn_compile=_quietly(versions.cudnn_compiled, torch),
            nccl=_quietly(versions.nccl_compiled, torch),
            arch_list=versions.arch_flags(torch),
            threads=torch.get_num_threads(),
        )
    return found


def precision_flags(torch):
    """Return the precision settings in force at the end of the run."""
    if torch is None:
        return {}
    return {
        "matmul_precision": getattr(torch, "get_float32_matmul_precision", lambda: None)(),
        "deterministic": torch.are_deterministic_algorithms_enabled()
        if hasattr(torch, "are_deterministic_algorithms_enabled")
        else None,
        "cudnn_enabled": torch.backends.cudnn.enabled,
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
    }


def _quietly(function, torch):
    try:
        return function(torch)
    except (OSError, RuntimeError):
        return None
