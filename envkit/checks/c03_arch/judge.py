"""C03: are driver, CUDA runtime, the build's architectures and the device compatible?"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from envkit.checks import thresholds
from envkit.checks.fields import MalformedError, by_part, flag, strings, text, version_key
from envkit.checks.model import Finding, Verdict
from envkit.facts import gpu_code
from envkit.ground import versions

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from envkit.checks.model import Env, Observation, Spec

# JetPack 5 comes with 35.x; no other driver that runs CUDA 11 has a number below 450.
_OLDEST_SERIES = 300


def judge(observation: Observation, spec: Spec, env: Env) -> Finding:
    """Judge C03.archs, C03.driver and C03.device."""
    return by_part({"archs": _archs, "driver": _driver, "device": _device}, observation, spec, env)


def _archs(observation: Observation, spec: Spec, _env: Env) -> Finding:
    flags = strings(observation["observed"], "arch_list")
    promised = spec.get("gpu_archs")
    rule = {"type": "equals", "gpu_archs": promised, "ptx": spec.get("ptx")}
    if promised is None:
        message = f"the plan specifies no architecture; found {' '.join(flags) or 'none'}"
        return Finding(Verdict.SKIP, message, "NOT_PROMISED", rule=rule)
    cubins, ptx = gpu_code.parse_flags(flags)
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


def _missing(promised: Iterable[str], archs: Sequence[gpu_code.Arch]) -> list[str]:
    built = {item[:2] for item in archs}
    return [item for item in promised if _capability(str(item)) not in built]


def _capability(value: str) -> tuple[int, int]:
    arch = gpu_code.parse(value)
    if arch is None:
        raise MalformedError(f"{value!r} is not a compute capability")
    return arch[:2]


def _how(capability: tuple[int, int], flags: Sequence[str]) -> str | None:
    """Return how a build with these flags runs on a device; None if it does not.

    Not judged here is whether the toolkit's libraries know the GPU: C05 and C06 run them.
    """
    cubins, ptx = gpu_code.parse_flags(flags)
    return gpu_code.runs(capability, cubins, ptx, gpu=gpu_code.row_of(capability))


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
    usable = [cc for cc in observed.get("all_cc") or () if _how(_capability(str(cc)), flags)]
    if finding.verdict is not Verdict.FAIL or not index or not usable:
        return finding
    message = f"{finding.message}; it is cuda:{index}, and {len(usable)} other GPUs are supported"
    advice = (*finding.advice, "Hide it from programs that use every GPU: set CUDA_VISIBLE_DEVICES.")
    return replace(finding, verdict=Verdict.WARN, message=message, advice=advice)


def _one_device(observation: Observation, _spec: Spec, _env: Env) -> Finding:
    observed = observation["observed"]
    flags, capability = strings(observed, "arch_list"), _capability(text(observed, "cc"))
    name, cc = observed.get("name"), observed["cc"]
    how = _how(capability, flags)
    rule = {"type": "equals", "arch_list": flags, "cc": cc}
    advice = (f"Resolve for this GPU: envkit resolve --gpu {cc}",)
    # The negative control: no GPU has the compute capability 0.1.
    if _how((0, 1), flags) is not None:
        message = "the architecture rule accepts a GPU that does not exist"
        return Finding(Verdict.ERROR, message, "CONTROL_FAILED", rule=rule)
    if how is None:
        message = f"{name} has compute capability {cc}; torch was built for {' '.join(flags) or 'no GPU'}"
        return Finding(Verdict.FAIL, message, "NO_KERNEL_IMAGE", advice, rule)
    if how == gpu_code.PTX:
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
