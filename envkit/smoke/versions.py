"""Versions that the libraries report themselves, in the encodings that they have used over time."""

import ctypes

from . import libraries


def decode_cudnn(number):
    """Return ``9.10.2`` for 91002 and ``8.9.2`` for 8902: since cuDNN 9 the minor has two digits. None for None or 0.

    Source: CUDNN_VERSION in cudnn_version.h of cuDNN 8 and 9.
    """
    return _decode(number, 10000)


def decode_nccl(number):
    """Return ``2.21.5`` for 22105 and ``2.7.8`` for 2708: since NCCL 2.9 the minor has two digits. None for None or 0.

    Source: NCCL_VERSION in nccl.h.
    """
    return _decode(number, 10000)


def _decode(number, wide):
    if not number:
        return None
    unit = wide if number >= wide else 1000
    return f"{number // unit}.{number % unit // 100}.{number % 100}"


def distribution(name):
    """Return the installed version of a Python distribution, None if it is not installed."""
    from importlib import metadata

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def cudnn_runtime(torch):
    """Return the version of the loaded cuDNN, None if this torch has none."""
    return decode_cudnn(torch.backends.cudnn.version())


def cudnn_compiled(torch):
    """Return the version of the cuDNN that torch was compiled against, None if it has none."""
    backend = getattr(torch._C, "_cudnn", None)  # noqa: SLF001 - there is no public form
    if backend is None or not hasattr(backend, "getCompileVersion"):
        return None
    return ".".join(str(part) for part in backend.getCompileVersion())


def nccl_compiled(torch):
    """Return the version of the NCCL that torch was compiled against, None if it has none."""
    if not hasattr(torch._C, "_nccl_version"):  # noqa: SLF001 - asking the public form without NCCL raises
        return None
    version = torch.cuda.nccl.version()
    if isinstance(version, int):
        return decode_nccl(version)
    return ".".join(str(part) for part in version[:3])


def nccl_runtime():
    """Return the version that the loaded libnccl reports, None if none is loaded."""
    number = ctypes.c_int()
    for name, paths in libraries.in_this_process().items():
        if libraries.stem(name) == "libnccl":
            function = getattr(ctypes.CDLL(paths[0]), "ncclGetVersion", None)
            if function is not None and function(ctypes.byref(number)) == 0:
                return decode_nccl(number.value)
    return None


def arch_flags(torch):
    """Return the architectures that torch was compiled for, like ``["sm_80", "compute_90"]``; empty on CPU builds.

    Without a GPU ``torch.cuda.get_arch_list`` returns nothing, so the flags behind it are read directly.
    """
    function = getattr(torch._C, "_cuda_getArchFlags", None)  # noqa: SLF001 - see above
    flags = function() if function is not None else None
    return flags.split() if flags else list(torch.cuda.get_arch_list())


def parse_kernel_module(text):
    """Return the driver version in the text of /proc/driver/nvidia/version, None if it has none."""
    for line in text.splitlines():
        if line.startswith("NVRM version:"):
            for word in line.split():
                if word[:1].isdigit() and "." in word:
                    return word
    return None


def driver_ceiling():
    """Return the newest CUDA runtime that the driver supports natively, like ``12.8``; None without libcuda.

    nvidia-smi shows it as "CUDA Version": a maximum, not the runtime in this image.
    """
    number = ctypes.c_int()
    try:
        ok = ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(number)) == 0
    except (OSError, AttributeError):
        return None
    return f"{number.value // 1000}.{number.value % 1000 // 10}" if ok and number.value else None
