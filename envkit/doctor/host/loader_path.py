"""What the folders of LD_LIBRARY_PATH have that a program with CUDA would load instead of its own library."""

from __future__ import annotations

import re
from collections.abc import Iterator

from envkit.doctor.host.view import View
from envkit.doctor.model import Evidence, Finding, Severity

_SHADOW = ("pytorch/pytorch#111469", "pytorch/pytorch#134929", "pytorch/pytorch#152783")
_GPU_DOCS = ("https://docs.nvidia.com/cuda/cuda-compiler-driver-nvcc/index.html",)
_COMPAT_DOCS = ("https://docs.nvidia.com/deploy/cuda-compatibility/",)
# Libraries that wheels of torch and packages of conda bring themselves.
_OWN = re.compile(
    r"lib(cudart|cublas|cublasLt|cudnn\w*|cufft|curand|cusolver|cusparse|cusparseLt|nvJitLink|nvrtc|nccl|cupti|nvshmem\w*)"
    r"\.so(\.\d+)*"
)
# Libraries of the driver, which nothing else may bring.
_DRIVERS = re.compile(r"lib(cuda|nvidia-ml|nvidia-ptxjitcompiler)\.so(\.[\d.]+)?")
_LIBRARY = re.compile(r"^lib.*\.so")
_STUB = re.compile(r"(^|/)stubs/*$")
_COMPAT = re.compile(r"(^|/)compat/*$")
# Where distributions, NVIDIA's installer, the container toolkit and WSL put the driver's libraries.
_PLACES = re.compile(
    r"^/(usr/)?lib(64|/(x86_64|aarch64)-linux-gnu)?(/nvidia(/current)?)?/*$|^/usr/lib/wsl/lib/*$|^/usr/local/nvidia/lib(64)?/*$"
    r"|^/run/opengl-driver/lib/*$"
)


def findings(view: View, path: str) -> Iterator[Finding]:
    """Yield what is wrong with the folders of a search path: stubs, and copies of the driver's and of CUDA's files."""
    folders = list(dict.fromkeys(folder for folder in path.split(":") if folder))
    has = {folder: view.names(folder) for folder in folders}
    stubs = [folder for folder in folders if _STUB.search(folder) and any(map(_LIBRARY.search, has[folder]))]
    drivers = {
        folder: next(name for name in has[folder] if _DRIVERS.fullmatch(name))
        for folder in folders
        if folder not in stubs and not _PLACES.search(folder) and any(map(_DRIVERS.fullmatch, has[folder]))
    }
    own = {folder: [name for name in has[folder] if _OWN.fullmatch(name)] for folder in folders if folder not in stubs}
    yield from _of_stubs(stubs)
    yield from _of_drivers(drivers)
    yield from _of_copies({folder: names for folder, names in own.items() if names})


def _of_stubs(folders: list[str]) -> Iterator[Finding]:
    if folders:
        yield Finding(
            id="cuda-stubs", severity=Severity.ERROR, title="LD_LIBRARY_PATH has a folder of CUDA's stubs",
            evidence=tuple(Evidence(text=folder) for folder in folders),
            cause="Stubs are for linking: every call in them fails (CUDA error 34), though the driver works.",
            check=("LD_DEBUG=libs COMMAND 2>&1 | grep 'init: .*libcuda'",),
            fix=("Remove the folder stubs from LD_LIBRARY_PATH; give it to the linker with -L, or in LIBRARY_PATH.",),
            sources=_GPU_DOCS,
        )  # fmt: skip


def _of_drivers(folders: dict[str, str]) -> Iterator[Finding]:
    compat = [folder for folder in folders if _COMPAT.search(folder)]
    others = [folder for folder in folders if folder not in compat]
    if compat:
        yield Finding(
            id="cuda-compat", severity=Severity.WARN,
            title="LD_LIBRARY_PATH puts CUDA's forward compatibility before the driver's own library",
            evidence=tuple(Evidence(text=f"{folder}/{folders[folder]}") for folder in compat),
            cause="It is for data center GPUs with a driver of certain older branches; elsewhere CUDA does not start.",
            check=("nvidia-smi --query-gpu=name,driver_version --format=csv",),
            fix=("Remove the folder compat from LD_LIBRARY_PATH unless the driver is older than this CUDA needs.",),
            sources=_COMPAT_DOCS,
        )  # fmt: skip
    if others:
        yield Finding(
            id="driver-copy", severity=Severity.WARN,
            title="LD_LIBRARY_PATH has another copy of the driver's library",
            evidence=tuple(Evidence(text=f"{folder}/{folders[folder]}") for folder in others),
            cause="libcuda has to be that of the loaded kernel module; with another version CUDA does not start.",
            check=("cat /proc/driver/nvidia/version; ls -l FOLDER/libcuda.so*",),
            fix=("Remove the folder from LD_LIBRARY_PATH; the driver's own folder is on the loader's path.",),
            sources=_SHADOW[:1],
        )  # fmt: skip


def _of_copies(folders: dict[str, list[str]]) -> Iterator[Finding]:
    if folders:
        yield Finding(
            id="ld-library-path", severity=Severity.WARN,
            title="LD_LIBRARY_PATH puts this machine's CUDA libraries before those of torch",
            evidence=tuple(Evidence(text=_shown(folder, names)) for folder, names in folders.items()),
            cause=(
                "Wheels bundle CUDA. If another minor version is loaded instead, the import fails or "
                "results are wrong."
            ),
            check=("envkit verify --runner host --only C02",),
            fix=("unset LD_LIBRARY_PATH, and remove it from the shell profile",), sources=_SHADOW,
        )  # fmt: skip


def _shown(folder: str, names: list[str]) -> str:
    """Return a folder with the first libraries in it."""
    stems = list(dict.fromkeys(name.partition(".so")[0] for name in names))
    return f"{folder}: {', '.join(stems[:4])}" + (f" and {len(stems) - 4} more" if len(stems) > 4 else "")  # noqa: PLR2004
