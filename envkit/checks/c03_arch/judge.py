"""C03: are driver, CUDA runtime, the build's architectures and the device compatible?"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from envkit.checks.model import Verdict
from envkit.checks.observed import MalformedError, version_key
from envkit.facts import gpu_code
from envkit.ground import versions

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from envkit.checks.case import Case
    from envkit.checks.model import Finding

# JetPack 5 comes with 35.x; no other driver that runs CUDA 11 has a number below 450.
_OLDEST_SERIES = 300


def judge(case: Case) -> Finding:
    """Judge C03.archs, C03.driver and C03.device."""
    return case.by_part({"archs": _archs, "driver": _driver, "device": _device})


def _archs(case: Case) -> Finding:
    flags, promised = case.strings("arch_list"), case.spec.get("gpu_archs")
    case.rule("equals", gpu_archs=promised, ptx=case.spec.get("ptx"))
    if promised is None:
        return case.skip("NOT_PROMISED", f"the plan specifies no architecture; found {' '.join(flags) or 'none'}")
    cubins, ptx = gpu_code.parse_flags(flags)
    missing = _missing(promised, cubins)
    if missing:
        message = f"torch has no kernels for {', '.join(missing)}; it was built for {' '.join(flags) or 'no GPU'}"
        advice = "Another build of torch was installed: compare C01.torch with the plan."
        return case.fail("ARCH_MISSING", message, advice)
    # Newer cubins of the same build may replace PTX, so missing PTX alone is only a warning.
    missing = _missing(case.spec.get("ptx") or (), ptx)
    if missing:
        message = f"the plan expects PTX for {', '.join(missing)}; torch was built for {' '.join(flags)}"
        advice = "GPUs newer than this build will not run it; resolve again for the GPU you have: envkit resolve --gpu"
        return case.warn("PTX_MISSING", message, advice)
    return case.passed(f"built for {' '.join(flags) or 'the CPU, as planned'}")


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


def _driver(case: Case) -> Finding:
    driver, cuda = case.text("driver"), case.observed.get("cuda")
    promised: Mapping[str, str | None] = case.spec.get("driver") or {}
    native = promised.get("native")
    row = case.use("C03.minimum_driver")
    floor = promised.get("minimum") or (row.text(f"cuda{versions.major(cuda)}") if isinstance(cuda, str) else None)
    case.use(row.name, minimum=floor, native=native)
    if version_key(driver)[0] < _OLDEST_SERIES:
        message = f"driver {driver} is a Jetson driver with its own numbering; JetPack decides what runs"
        return case.skip("JETSON_DRIVER", message)
    if floor is None:
        return case.skip("NOT_PROMISED", f"driver {driver}; this image does not need one")
    if version_key(driver) >= version_key(floor):
        # Between both versions the image depends on CUDA's minor version compatibility.
        mode = "native" if native is None or version_key(driver) >= version_key(native) else "minor-compatible"
        case.derive(mode=mode)
        return case.passed(f"driver {driver}, at least {floor} ({mode})")
    # cuda-compat is for data center GPUs; on a GeForce CUDA ends with error 804 (unsupported forward compatibility).
    geforce = str(case.observed.get("device_name") or "").startswith(("GeForce", "NVIDIA GeForce"))
    if case.flag("compat_loaded") and not geforce:
        case.derive(mode="forward-compatible")
        return case.passed(f"driver {driver} is older than {floor}; the loaded cuda-compat library replaces it")
    message = f"driver {driver} is older than {floor}, the oldest that runs CUDA {cuda}"
    advice = f"Update the host's driver, or resolve for this one: envkit resolve --driver {driver}"
    return case.fail("DRIVER_TOO_OLD", message, advice)


def _device(case: Case) -> Finding:
    """Judge one GPU. It fails only if torch uses it by default or if no GPU is supported."""
    finding = _one_device(case)
    flags, index = case.strings("arch_list"), case.observed.get("index")
    usable = [cc for cc in case.observed.get("all_cc") or () if _how(_capability(str(cc)), flags)]
    if finding.verdict is not Verdict.FAIL or not index or not usable:
        return finding
    message = f"{finding.message}; it is cuda:{index}, and {len(usable)} other GPUs are supported"
    advice = (*finding.advice, "Hide it from programs that use every GPU: set CUDA_VISIBLE_DEVICES.")
    return replace(finding, verdict=Verdict.WARN, message=message, advice=advice)


def _one_device(case: Case) -> Finding:
    flags, cc = case.strings("arch_list"), case.text("cc")
    name, how = case.observed.get("name"), _how(_capability(cc), flags)
    case.rule("equals", arch_list=flags, cc=cc)
    advice = f"Resolve for this GPU: envkit resolve --gpu {cc}"
    # The negative control: no GPU has the compute capability 0.1.
    if _how((0, 1), flags) is not None:
        return case.error("CONTROL_FAILED", "the architecture rule accepts a GPU that does not exist")
    if how is None:
        message = f"{name} has compute capability {cc}; torch was built for {' '.join(flags) or 'no GPU'}"
        return case.fail("NO_KERNEL_IMAGE", message, advice)
    if how != gpu_code.PTX:
        case.derive(support=how)
        return case.passed(f"{name} ({cc}) runs this build's kernels ({how})")
    ceiling, cuda = case.observed.get("driver_ceiling"), case.observed.get("cuda")
    # PTX has a version of its own: a driver refuses PTX of a CUDA that is newer than it (error 222).
    if isinstance(ceiling, str) and isinstance(cuda, str) and version_key(ceiling) < version_key(cuda):
        message = f"{name} ({cc}) needs PTX compiled by the driver, which supports CUDA {ceiling}, not {cuda}"
        return case.fail("PTX_NEEDS_NEWER_DRIVER", message, advice)
    case.derive(support=how)
    return case.warn("PTX_JIT", f"{name} ({cc}) runs from PTX only: the first run compiles for minutes", advice)
