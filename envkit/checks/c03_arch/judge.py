"""C03: are driver, CUDA runtime, the build's architectures and the device compatible?"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from envkit.checks import thresholds
from envkit.checks.fields import MalformedError, by_part, flag, strings, text, version_key
from envkit.checks.model import Finding, Verdict
from envkit.ground import versions

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from envkit.checks.model import Env, Observation, Spec

# sm_86, sm_90a, sm_120, compute_100f: the last digit is the minor version.
_FLAG = re.compile(r"(sm|compute)_(\d+)(\d)([af]?)")
_CAPABILITY = re.compile(r"(\d+)\.(\d)([af]?)")
# JetPack 5 comes with 35.x; no other driver that runs CUDA 11 has a number below 450.
_OLDEST_SERIES = 300
Arch = tuple[int, int, str]
"""Major, minor and the suffix that narrows where code runs: ``a`` to one capability, ``f`` to one family."""


def judge(observation: Observation, spec: Spec, env: Env) -> Finding:
    """Judge C03.archs, C03.driver and C03.device."""
    return by_part({"archs": _archs, "driver": _driver, "device": _device}, observation, spec, env)


def parse_flags(flags: Iterable[str]) -> tuple[list[Arch], list[Arch]]:
    """Return cubins and PTX of torch's flags: ``["sm_80", "compute_90"]`` -> ``[(8, 0, "")], [(9, 0, "")]``."""
    cubins: list[Arch] = []
    ptx: list[Arch] = []
    for item in flags:
        match = _FLAG.fullmatch(item)
        if match is not None:
            (cubins if match[1] == "sm" else ptx).append((int(match[2]), int(match[3]), match[4]))
    return cubins, ptx


def support(capability: tuple[int, int], flags: Sequence[str]) -> str:
    """Return how a build runs on a device: ``exact``, ``same-major``, ``ptx`` or ``none``.

    A cubin for X.y runs on X.z where z >= y and never on another major; PTX for X.y is compiled by the driver for
    every later capability. Code with the suffix ``a`` runs on its own capability alone.
    """
    major, minor = capability
    cubins, ptx = parse_flags(flags)
    if any(item[:2] == capability for item in cubins):
        return "exact"
    if any(item[0] == major and item[1] <= minor and item[2] != "a" for item in cubins):
        return "same-major"
    if any(item[:2] <= capability and not item[2] for item in ptx):
        return "ptx"
    return "none"


def _archs(observation: Observation, spec: Spec, _env: Env) -> Finding:
    flags = strings(observation["observed"], "arch_list")
    promised = spec.get("gpu_archs")
    rule = {"type": "equals", "gpu_archs": promised, "ptx": spec.get("ptx")}
    if promised is None:
        message = f"the plan specifies no architecture; found {' '.join(flags) or 'none'}"
        return Finding(Verdict.SKIP, message, "NOT_PROMISED", rule=rule)
    cubins, ptx = parse_flags(flags)
    missing = _missing(promised, cubins)
    if missing:
        message = f"torch has no kernels for {', '.join(missing)}; it was built for {' '.join(flags) or 'no GPU'}"
        advice = ("Another build of torch was installed: compare C01.torch with the plan.",)
        return Finding(Verdict.FAIL, message, "ARCH_MISSING", advice, rule)
    # Newer cubins of the same build may replace PTX, so missing PTX alone is only a warning.
    missing = _missing(spec.get("ptx") or (), ptx)
    if missing:
        message = f"the plan expects PTX for {', '.join(missing)}; torch was built for {' '.join(flags)}"
        advice = (
            "GPUs newer than this build will not run it; resolve again for the GPU you have: envkit resolve --gpu",
        )
        return Finding(Verdict.WARN, message, "PTX_MISSING", advice, rule)
    return Finding(Verdict.PASS, f"built for {' '.join(flags) or 'the CPU, as planned'}", rule=rule)


def _missing(promised: Iterable[str], archs: Sequence[Arch]) -> list[str]:
    built = {item[:2] for item in archs}
    return [item for item in promised if _capability(str(item)) not in built]


def _capability(value: str) -> tuple[int, int]:
    match = _CAPABILITY.fullmatch(value)
    if match is None:
        raise MalformedError(f"{value!r} is not a compute capability")
    return int(match[1]), int(match[2])


def _driver(observation: Observation, spec: Spec, _env: Env) -> Finding:
    observed = observation["observed"]
    driver = text(observed, "driver")
    row = thresholds.load().row("C03.minimum_driver")
    promised: Mapping[str, str | None] = spec.get("driver") or {}
    cuda = observed.get("cuda")
    floor = promised.get("minimum") or (row.text(f"cuda{versions.major(cuda)}") if isinstance(cuda, str) else None)
    rule = row.record(minimum=floor, native=promised.get("native"))
    if version_key(driver)[0] < _OLDEST_SERIES:
        message = f"driver {driver} is a Jetson driver with its own numbering; JetPack decides what runs"
        return Finding(Verdict.SKIP, message, "JETSON_DRIVER", rule=rule)
    if floor is None:
        message = f"driver {driver}; this image does not need one"
        return Finding(Verdict.SKIP, message, "NOT_PROMISED", rule=rule)
    if version_key(driver) >= version_key(floor):
        native = promised.get("native")
        # Between both versions the image depends on CUDA's minor version compatibility.
        mode = "native" if native is None or version_key(driver) >= version_key(native) else "minor-compatible"
        return Finding(Verdict.PASS, f"driver {driver}, at least {floor} ({mode})", rule=rule, derived={"mode": mode})
    # cuda-compat is for data center GPUs; on a GeForce CUDA ends with error 804 (unsupported forward compatibility).
    if flag(observed, "compat_loaded") and not str(observed.get("device_name") or "").startswith(
        ("GeForce", "NVIDIA GeForce")
    ):
        message = f"driver {driver} is older than {floor}; the loaded cuda-compat library replaces it"
        return Finding(Verdict.PASS, message, rule=rule, derived={"mode": "forward-compatible"})
    message = f"driver {driver} is older than {floor}, the oldest that runs CUDA {cuda}"
    advice = (f"Update the host's driver, or resolve for this one: envkit resolve --driver {driver}",)
    return Finding(Verdict.FAIL, message, "DRIVER_TOO_OLD", advice, rule)


def _device(observation: Observation, spec: Spec, env: Env) -> Finding:
    """Judge one GPU. It fails only if torch uses it by default or if no GPU is supported."""
    finding = _one_device(observation, spec, env)
    observed = observation["observed"]
    flags, index = strings(observed, "arch_list"), observed.get("index")
    usable = [cc for cc in observed.get("all_cc") or () if support(_capability(str(cc)), flags) != "none"]
    if finding.verdict is not Verdict.FAIL or not index or not usable:
        return finding
    message = f"{finding.message}; it is cuda:{index}, and {len(usable)} other GPUs are supported"
    advice = (*finding.advice, "Hide it from programs that use every GPU: set CUDA_VISIBLE_DEVICES.")
    return replace(finding, verdict=Verdict.WARN, message=message, advice=advice)


def _one_device(observation: Observation, _spec: Spec, _env: Env) -> Finding:
    observed = observation["observed"]
    flags, capability = strings(observed, "arch_list"), _capability(text(observed, "cc"))
    name, cc = observed.get("name"), observed["cc"]
    how = support(capability, flags)
    rule = {"type": "equals", "arch_list": flags, "cc": cc}
    advice = (f"Resolve for this GPU: envkit resolve --gpu {cc}",)
    # The negative control: no GPU has the compute capability 0.1.
    if support((0, 1), flags) != "none":
        message = "the architecture rule accepts a GPU that does not exist"
        return Finding(Verdict.ERROR, message, "CONTROL_FAILED", rule=rule)
    if how == "none":
        message = f"{name} has compute capability {cc}; torch was built for {' '.join(flags) or 'no GPU'}"
        return Finding(Verdict.FAIL, message, "NO_KERNEL_IMAGE", advice, rule)
    if how == "ptx":
        ceiling, cuda = observed.get("driver_ceiling"), observed.get("cuda")
        # PTX has a version of its own: a driver refuses PTX of a CUDA that is newer than it (error 222).
        if isinstance(ceiling, str) and isinstance(cuda, str) and version_key(ceiling) < version_key(cuda):
            message = f"{name} ({cc}) needs PTX compiled by the driver, which supports CUDA {ceiling}, not {cuda}"
            return Finding(Verdict.FAIL, message, "PTX_NEEDS_NEWER_DRIVER", advice, rule)
        message = f"{name} ({cc}) runs from PTX only: the first run compiles for minutes"
        return Finding(Verdict.WARN, message, "PTX_JIT", advice, rule, derived={"support": how})
    return Finding(
        Verdict.PASS, f"{name} ({cc}) runs this build's kernels ({how})", rule=rule, derived={"support": how}
    )
