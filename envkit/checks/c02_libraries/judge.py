"""C02: does anything shadow the libraries that the plan installed?"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from envkit.checks.fields import MalformedError, mapping
from envkit.checks.model import Finding, Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping

    from envkit.checks.model import Env, Observation, Spec

_WSL_LOADERS = "/usr/lib/wsl/lib/"
_SHADOW = "Remove LD_LIBRARY_PATH and other CUDA installations from the base image; one source of CUDA is enough."


def judge(observation: Observation, spec: Spec, _env: Env) -> Finding:
    """Judge that each library has one path, none is a stub, and all except the driver's are below the prefix."""
    observed = observation["observed"]
    cuda, torch = _paths(mapping(observed, "cuda")), _paths(mapping(observed, "torch"))
    # The observed prefix has its links resolved, as the loaded paths have.
    prefix = observed.get("prefix") or spec.get("prefix")
    rule = {"type": "equals", "paths_per_library": 1, "prefix": prefix}
    own = {name: paths for name, paths in cuda.items() if not _is_driver(name)}
    derived = {"cuda_libraries": len(own), "torch_libraries": len(torch)}
    if spec.get("cuda") is not None and not own:
        message = f"CUDA {spec['cuda']} is planned, but no CUDA library is loaded"
        advice = ("torch is a CPU build: see C01.cuda.",)
        return Finding(Verdict.FAIL, message, "NO_CUDA_LIBRARY", advice, rule, derived=derived)
    # CUDA's stubs have the driver's symbols for the linker, but every call in them fails.
    stubs = [path for paths in cuda.values() for path in paths if "/stubs/" in path]
    if stubs:
        message = f"a stub is loaded instead of the driver's library: {stubs[0]}"
        advice = ("Remove the stubs folder from LD_LIBRARY_PATH; stubs are for linking only.",)
        return Finding(Verdict.FAIL, message, "CUDA_STUB_LOADED", advice, rule, derived=derived)
    driver = {name: _without_loader(paths) for name, paths in cuda.items() if _is_driver(name)}
    twice = {name: paths for name, paths in {**driver, **own, **torch}.items() if len(paths) > 1}
    if twice:
        message = "loaded from two places: " + "; ".join(f"{name}: {', '.join(p)}" for name, p in sorted(twice.items()))
        return Finding(Verdict.FAIL, message, "LIBRARY_LOADED_TWICE", (_SHADOW,), rule, derived=derived)
    outside = sorted(
        path for paths in {**own, **torch}.values() for path in paths if prefix and not _below(path, str(prefix))
    )
    if outside:
        message = f"{len(outside)} libraries come from outside {prefix}: {', '.join(outside[:3])}"
        return Finding(Verdict.WARN, message, "LIBRARY_OUTSIDE_PREFIX", (_SHADOW,), rule, derived=derived)
    where = f", all below {prefix}" if prefix else ""
    message = f"{len(own)} CUDA and {len(torch)} torch libraries, each from one path{where}"
    return Finding(Verdict.PASS, message, rule=rule, derived=derived)


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
