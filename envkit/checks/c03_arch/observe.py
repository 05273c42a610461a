"""C03: driver, CUDA runtime, the architectures in the build, and the devices."""

from envkit.smoke import hostfacts, libraries, nvml, observation, versions

KERNEL_MODULE = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.161.08  Sat Feb 24 22:52:36 UTC 2024"


def run(ctx):
    """Return the build's architectures, and the driver and each device's capability if there is a GPU."""
    torch = ctx.torch
    flags = versions.arch_flags(torch)
    build = {"arch_list": flags, "cuda": torch.version.cuda}
    unread = versions.parse_kernel_module("no such module") is None
    read = versions.parse_kernel_module(KERNEL_MODULE) == "535.161.08"
    control = [observation.control("driver_text_is_parsed", unread and read, "a text without a driver gives none")]
    rows = [observation.ran("C03.archs", "image", build, controls=control), _driver(ctx, control)]
    devices = _devices(ctx)
    if not devices:
        return [*rows, observation.skipped("C03.device", "gpu:0", "NO_GPU", "no NVIDIA GPU is visible here")]
    ceiling = versions.driver_ceiling()
    capabilities = [device["cc"] for device in devices]
    for index, device in enumerate(devices):
        observed = dict(build, cc=device["cc"], name=device["name"], driver_ceiling=ceiling)
        observed.update(index=index, all_cc=capabilities)
        rows.append(observation.ran("C03.device", f"gpu:{index}", observed, controls=control))
    return rows


def _devices(ctx):
    """Return ``{cc, name}`` per device: from torch, or from NVML if the kernel check failed or torch sees none."""
    if ctx.has_cuda:
        cuda = ctx.torch.cuda
        ids = range(cuda.device_count())
        return [{"cc": ".".join(map(str, cuda.get_device_capability(i))), "name": cuda.get_device_name(i)} for i in ids]
    session = nvml.open_session()
    seen = [session.describe(index) for index in range(session.count())] if session else []
    return [{"cc": device["cc"], "name": device["name"]} for device in seen if device and device["cc"]]


def _driver(ctx, control):
    session = nvml.open_session()
    driver = session.driver() if session else None
    driver = driver or versions.parse_kernel_module(hostfacts.read_text("/proc/driver/nvidia/version"))
    if driver is None:
        return observation.skipped("C03.driver", "host", "NO_DRIVER", "no NVIDIA driver answers in this container")
    ceiling = versions.driver_ceiling()
    loaded = libraries.of_families(libraries.in_this_process(), ("libcuda",))
    paths = [path for name, files in loaded.items() if libraries.stem(name) == "libcuda" for path in files]
    device = session.describe(0) if session and session.count() else None
    observed = {
        "driver": driver,
        "ceiling": ceiling,
        "cuda": ctx.torch.version.cuda,
        "compat_loaded": any("compat" in path for path in paths),
        "device_name": device["name"] if device else None,
    }
    return observation.ran("C03.driver", "host", observed, controls=control)
