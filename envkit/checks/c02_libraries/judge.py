"""C02: does anything shadow the libraries that the plan installed, and do those work that are loaded later?"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from envkit.checks.observed import MalformedError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from envkit.checks.case import Case
    from envkit.checks.model import Finding

_WSL_LOADERS = "/usr/lib/wsl/lib/"
_SHADOW = "Remove LD_LIBRARY_PATH and other CUDA installations from the base image; one source of CUDA is enough."
_NVRTC = (
    "libnvrtc and libnvrtc-builtins must be of one version and in one folder.",
    "Reinstall the package that brings them (pip: nvidia-cuda-nvrtc, nvidia-cuda-nvrtc-cu12; conda: cuda-nvrtc).",
)
_CUSOLVER = ("Reinstall torch with all that it requires: `pip check` names what is missing.",)
_NEAR = 1e-3  # the inverse of a diagonal matrix of eight twos is exact


def judge(case: Case) -> Finding:
    """Judge the paths of libraries, NVRTC's compiler, and cuSOLVER by an inverse."""
    return case.by_part({"libraries": _libraries, "nvrtc": _nvrtc, "linalg": _linalg})


def _nvrtc(case: Case) -> Finding:
    """Judge that NVRTC compiles. torch and cuDNN compile kernels with it at run time."""
    case.rule("equals", error=None)
    error = case.observed.get("error")
    if error is not None:
        message = f"the run-time compiler of CUDA fails: {' '.join(str(error).split())}"
        return case.fail("NVRTC_FAILS", message, *_NVRTC)
    return case.passed(f"{PurePosixPath(case.text('library')).name} compiles a kernel")


def _linalg(case: Case) -> Finding:
    """Judge that torch inverts a matrix on the GPU."""
    case.rule("equals", error=None)
    error = case.observed.get("error")
    if error is not None:
        return case.fail("LINALG_FAILS", f"torch.inverse fails on the GPU: {' '.join(str(error).split())}", *_CUSOLVER)
    if case.value("largest_difference") > _NEAR:
        message = f"torch.inverse is wrong by {case.value('largest_difference'):.1e} on the GPU"
        return case.fail("LINALG_WRONG", message, "Look at C05 of this record: it checks products.")
    return case.passed("torch.inverse works on the GPU")


def _libraries(case: Case) -> Finding:
    """Judge that each library has one path, none is a stub, and all except the driver's are below the prefix."""
    cuda, torch = _paths(case.mapping("cuda")), _paths(case.mapping("torch"))
    # The observed prefix has its links resolved, as the loaded paths have.
    prefix = case.observed.get("prefix") or case.spec.get("prefix")
    case.rule("equals", paths_per_library=1, prefix=prefix)
    own = {name: paths for name, paths in cuda.items() if not _is_driver(name)}
    case.derive(cuda_libraries=len(own), torch_libraries=len(torch))
    if case.spec.get("cuda") is not None and not own:
        message = f"CUDA {case.spec['cuda']} is planned, but no CUDA library is loaded"
        return case.fail("NO_CUDA_LIBRARY", message, "torch is a CPU build: see C01.cuda.")
    # CUDA's stubs have the driver's symbols for the linker, but every call in them fails.
    stubs = [path for paths in cuda.values() for path in paths if "/stubs/" in path]
    if stubs:
        advice = "Remove the stubs folder from LD_LIBRARY_PATH; stubs are for linking only."
        return case.fail("CUDA_STUB_LOADED", f"a stub is loaded instead of the driver's library: {stubs[0]}", advice)
    driver = {name: _without_loader(paths) for name, paths in cuda.items() if _is_driver(name)}
    twice = {name: paths for name, paths in {**driver, **own, **torch}.items() if len(paths) > 1}
    if twice:
        listed = "; ".join(f"{name}: {', '.join(paths)}" for name, paths in sorted(twice.items()))
        return case.fail("LIBRARY_LOADED_TWICE", f"loaded from two places: {listed}", _SHADOW)
    outside = sorted(
        path for paths in {**own, **torch}.values() for path in paths if prefix and not _below(path, str(prefix))
    )
    if outside:
        message = f"{len(outside)} libraries come from outside {prefix}: {', '.join(outside[:3])}"
        return case.warn("LIBRARY_OUTSIDE_PREFIX", message, _SHADOW)
    where = f", all below {prefix}" if prefix else ""
    return case.passed(f"{len(own)} CUDA and {len(torch)} torch libraries, each from one path{where}")


def _paths(table: Mapping[str, object]) -> dict[str, list[str]]:
    by_library: dict[str, list[str]] = {}
    for name, paths in table.items():
        if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
            raise MalformedError(f"the paths of {name} are {paths!r}")
        by_library[name] = paths
    return by_library


def _is_driver(name: str) -> bool:
    """Whether the library belongs to the driver, which the container gets from outside."""
    return name.split(".so", maxsplit=1)[0] in ("libcuda", "libcuda_loader", "libcudadebugger")


def _without_loader(paths: list[str]) -> list[str]:
    """Leave out WSL's /usr/lib/wsl/lib/libcuda.so.1.1, which only loads the libcuda in the driver's folder."""
    return [path for path in paths if not path.startswith(_WSL_LOADERS)] or paths


def _below(path: str, prefix: str) -> bool:
    return PurePosixPath(path).is_relative_to(PurePosixPath(prefix))
