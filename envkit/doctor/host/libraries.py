"""CUDA toolkits, cuDNN libraries, and environment variables that make programs load the wrong library."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import PurePosixPath

from envkit.doctor.environment import of_environment
from envkit.doctor.host.view import View
from envkit.doctor.model import Evidence, Finding, Section, Severity
from envkit.knowledge import variables

# libcudnn.so.9 (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libcudnn.so.9
_CACHE = re.compile(r"^\s+(libcudnn\.so\.\d+)\b.* => (/\S+)$", re.MULTILINE)
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


def section(view: View) -> Section:
    """Describe which CUDA libraries a program on this machine would load."""
    # Only cuda-12.6: `cuda` and `cuda-12` are links to it.
    toolkits = [name for name in view.names("/usr/local") if re.fullmatch(r"cuda-\d+\.\d+", name)]
    path = view.environ.get("LD_LIBRARY_PATH", "")
    cudnn_files = cudnns(view)
    facts = (
        ("CUDA toolkits", ", ".join(toolkits) or "none"),
        ("CUDA_HOME", view.environ.get("CUDA_HOME", "not set")),
        ("LD_LIBRARY_PATH", path or "not set"),
        ("cuDNN", ", ".join(cudnn_files) or "none on the loader path"),
    )
    findings = (*_of_path(view, path), *_of_cudnns(cudnn_files), *_of_variables(view))
    return Section(id="libraries", title="Libraries and variables", facts=facts, findings=findings)


def cudnns(view: View) -> tuple[str, ...]:
    """Return the libcudnn.so.N files on LD_LIBRARY_PATH and in the loader's cache; links to one file count once."""
    paths: list[str] = []
    for folder in filter(None, view.environ.get("LD_LIBRARY_PATH", "").split(":")):
        paths += [f"{folder}/{name}" for name in view.names(folder) if re.fullmatch(r"libcudnn\.so\.\d+", name)]
    answer = view.ask(["ldconfig", "-p"])
    if answer is not None and answer.code == 0:
        paths += [cached for _, cached in _CACHE.findall(answer.out)]
    real: dict[str, str] = {}
    for path in paths:
        try:
            real.setdefault(str(view.path(path).resolve()), path)
        except OSError:
            continue
    return tuple(real.values())


def _of_path(view: View, path: str) -> Iterator[Finding]:
    yield from of_folders(view, path)
    for variable, value in variables.found(view.environ, kinds=(variables.SHADOWS,)):
        if variable.match is None:  # above, the files in the folders decide
            yield Finding(
                id=variable.id, severity=Severity.INFO, title=variable.said(value),
                evidence=(Evidence(text=f"{variable.name}={value[:200]}"),),
                cause="It changes what every program on this machine loads; containers do not inherit it.",
                sources=variable.sources,
            )  # fmt: skip


def of_folders(view: View, path: str) -> Iterator[Finding]:
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


def _of_cudnns(files: tuple[str, ...]) -> Iterator[Finding]:
    folders = {str(PurePosixPath(path).parent) for path in files}
    if len(files) > 1 and len(folders) > 1:
        yield Finding(
            id="two-cudnn", severity=Severity.WARN, title="the loader finds more than one cuDNN",
            evidence=tuple(Evidence(text=path) for path in files),
            cause=(
                "The cuDNN libraries load each other by name; libraries of two versions in one process "
                "are incompatible."
            ),
            check=("grep -h libcudnn /proc/PID/maps | awk '{print $6}' | sort -u",),
            fix=("Keep one: remove the system package, or remove the other from LD_LIBRARY_PATH.",),
            sources=("pytorch/pytorch#119989", "pytorch/pytorch#80637"),
        )  # fmt: skip


def _of_variables(view: View) -> Iterator[Finding]:
    # Of search paths, the files in their folders are judged.
    environ = {name: value for name, value in view.environ.items() if name != "LD_LIBRARY_PATH"}
    for finding in of_environment(environ, gpu=True, kinds=set(variables.KINDS) - {variables.SHADOWS}):
        # Containers do not inherit it, and a job without GPUs has it on purpose (Slurm: NoDevFiles).
        yield replace(finding, severity=Severity.WARN)
    home = view.environ.get("CUDA_HOME")
    if home and not view.exists(f"{home}/bin/nvcc"):
        yield Finding(
            id="cuda-home", severity=Severity.INFO, title="CUDA_HOME has no nvcc",
            evidence=(Evidence(text=f"CUDA_HOME={home}"),), cause="Extensions cannot be compiled with this CUDA_HOME.",
            fix=("Set it to the folder of a toolkit, or unset it.",),
        )  # fmt: skip
