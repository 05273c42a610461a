"""Collect the ``env`` part of the document: host, GPUs, software and flags."""

import os
import platform

from . import compat, gpus, hostfacts, libraries, nvml, versions


def collect(ctx, first=False):
    """Return the environment as plain JSON; values that cannot be read are None.

    A part that raises is empty, and ``errors`` has its error. With ``first``, torch is not imported and no driver is
    called, because either may hang.
    """
    torch = ctx.torch if not first and ctx.has_torch else None
    parts = (
        ("host", host, {}),
        ("gpu", lambda: [] if first else cards(ctx), []),
        ("sw", lambda: software(ctx, torch), {}),
        ("flags", lambda: flags(torch), {}),
    )
    tree, errors = {}, {}
    for name, read, empty in parts:
        try:
            tree[name] = read()
        except Exception as error:
            tree[name] = empty
            errors[name] = f"{type(error).__name__}: {error}"
    return dict(tree, errors=errors) if errors else tree


def flags(torch):
    """Return the current precision settings and the environment variables that affect CUDA or torch."""
    return dict(precision_flags(torch), **hostfacts.relevant(os.environ))


def host():
    """Return the processor, CPU limits, memory, shared memory, locked-memory limit, kernel and virtualization."""
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
    """Return one entry per NVIDIA device of NVML; from torch alone if NVML is absent.

    Devices that torch uses also have ``sms`` and ``torch_mem_mib``. For a MIG slice these two are the slice's; all
    other fields are those of the whole GPU.
    """
    session = nvml.open_session()
    devices = range(ctx.torch.cuda.device_count()) if ctx.has_cuda else ()
    used = {}
    if session is None:
        return [dict(_as_torch_sees(ctx.torch, index), **_placed(ctx.torch, index)) for index in devices]
    for index in devices:
        used.setdefault(gpus.nvml_index(ctx.torch, session, index), index)
    rows = []
    for index in range(session.count()):
        card = session.describe(index)
        if card and index in used:
            card.update(_size(ctx.torch.cuda.get_device_properties(used[index])))
        if card:
            near = gpus.placement(_short_address(card["pci_bus"]))
            rows.append(dict(card, numa_node=near["node"], local_cpus=near["cpus"]))
    return rows


def _as_torch_sees(torch, index):
    properties = torch.cuda.get_device_properties(index)
    return dict(
        _size(properties),
        uuid=gpus.device_uuid(torch, index),
        name=properties.name,
        cc=f"{properties.major}.{properties.minor}",
        mem_mib=properties.total_memory // 2**20,
        driver=None,
    )


def _placed(torch, index):
    near = gpus.placement(gpus.bus_address(torch, index))
    return {"numa_node": near["node"], "local_cpus": near["cpus"]}


def _size(properties):
    multiprocessors = getattr(properties, "multi_processor_count", None)
    return {"sms": multiprocessors, "torch_mem_mib": properties.total_memory // 2**20}


def _short_address(bus_id):
    """Return a PCI address in the kernel's form, ``0000:3b:00.0`` for NVML's ``00000000:3b:00.0``."""
    return bus_id[-12:] if bus_id else None


def software(ctx, torch):
    """Return the versions of Python, torch, CUDA, cuDNN, NCCL and triton, the architectures and loaded libraries."""
    loaded = libraries.in_this_process()
    kept = libraries.of_families(loaded, libraries.CUDA_FAMILIES + libraries.TORCH_FAMILIES)
    tree = {
        "python": platform.python_version(),
        "torch": None,
        "torch_error": str(ctx.torch_error) if ctx.torch_error else None,
        "triton": versions.distribution("triton"),
        "numpy": versions.distribution("numpy"),
        "loaded_libs": {name: paths[0] for name, paths in kept.items()},
        "openmp": libraries.openmp_runtimes(loaded),
    }
    if torch is not None:
        tree.update(
            torch=str(torch.__version__),
            torch_cuda=torch.version.cuda,
            cudnn_runtime=_quietly(versions.cudnn_runtime, torch),
            cudnn_compile=_quietly(versions.cudnn_compiled, torch),
            nccl=_quietly(versions.nccl_compiled, torch),
            arch_list=versions.arch_flags(torch),
            threads=torch.get_num_threads(),
        )
    return tree


def precision_flags(torch):
    """Return the current precision settings; those that this torch lacks are None."""
    if torch is None:
        return {}
    return {
        "matmul_precision": _quietly(_matmul_precision, torch),
        "fp32": _quietly(compat.fp32_settings, torch),
        "deterministic": torch.are_deterministic_algorithms_enabled()
        if hasattr(torch, "are_deterministic_algorithms_enabled")
        else None,
        "cudnn_enabled": torch.backends.cudnn.enabled,
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
    }


def _matmul_precision(torch):
    """Return torch's setting for float32 products. From 2.9 on it raises if the newer switches were used."""
    return getattr(torch, "get_float32_matmul_precision", lambda: None)()


def _quietly(function, torch):
    try:
        return function(torch)
    except (OSError, RuntimeError):
        return None
