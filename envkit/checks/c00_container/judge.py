"""C00: was the container started with what the image needs?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from envkit.checks import shm
from envkit.checks.observed import MalformedError
from envkit.ground.sizes import shown_size
from envkit.knowledge import variables as known

if TYPE_CHECKING:
    from envkit.checks.case import Case
    from envkit.checks.model import Finding


def judge(case: Case) -> Finding:
    """Judge C00.gpu, C00.shm, C00.memlock and C00.env."""
    return case.by_part({"gpu": _gpu, "shm": _shm, "memlock": _memlock, "env": _env})


def _gpu(case: Case) -> Finding:
    case.rule("minimum", device_nodes=1)
    nodes, variables = case.strings("device_nodes"), case.mapping("env")
    case.derive(device_nodes=len(nodes))
    if not case.spec.get("gpu"):
        return case.skip("NOT_PROMISED", f"the plan does not ask for a GPU; {len(nodes)} GPU device nodes")
    # SKIP, not FAIL: a run without a GPU says nothing about the image, which `summarize` makes NOT_VERIFIED.
    if not nodes:
        advice = "Start the container with --gpus all (docker) or --device nvidia.com/gpu=all (podman)."
        return case.skip("NO_GPU", "the image needs a GPU, but the container has no GPU device node", advice)
    capabilities = known.one("NVIDIA_DRIVER_CAPABILITIES", known.HIDES)
    value = variables.get(capabilities.name)
    if isinstance(value, str) and capabilities.applies(value):
        return case.fail("NO_COMPUTE_CAPABILITY", capabilities.said(value), capabilities.fix)
    return case.passed(f"{len(nodes)} GPU device nodes: {', '.join(nodes)}")


def _shm(case: Case) -> Finding:
    case.use("C00.shm_default")
    size = case.optional("bytes")
    advice = shm.advice(shm.in_flight(case.spec.get("loader") or {}))
    if size is None:
        return case.warn("SHM_ABSENT", f"the container has no {shm.MOUNT}", advice)
    case.metric("shm_size", size, "B", "higher")
    message = f"{shm.mount(case.env)} has {shown_size(size, 'MiB')}"
    # Only warnings: C13 runs the declared loader, and its result counts.
    promised = case.spec.get("shm_mb")
    if promised is not None and size < int(promised) * shm.MIB:
        advice = f"Start the container with --shm-size={promised}m (or --ipc=host)."
        return case.warn("SHM_BELOW_PLAN", f"{message}, the plan asks for {promised} MiB", advice)
    if size <= case.number("at_most"):
        return case.warn("SHM_DEFAULT", f"{message}, the default of container engines", advice)
    return case.passed(message)


def _memlock(case: Case) -> Finding:
    """Warn only about a limit that somebody lowered. How much can really be pinned is measured by C09."""
    case.use("C00.memlock")
    size = None if case.observed.get("bytes") == "unlimited" else case.value("bytes")
    text = "no limit" if size is None else f"a limit of {shown_size(size, 'KiB')}"
    if not case.spec.get("gpu"):
        return case.skip("NOT_PROMISED", f"the plan does not ask for a GPU; {text}")
    if size is not None:
        case.metric("memlock", size, "B", "higher")
        if size < case.number("warn_below"):
            why = "less than the Linux default: RDMA and NCCL over RDMA cannot register memory"
            advice = "Start the container with --ulimit memlock=-1:-1."
            return case.warn("MEMLOCK_TOO_SMALL", f"locked memory has {text}, {why}", advice)
    return case.passed(f"locked memory has {text}")


_JUDGED = (known.CHECK, known.SLOWS, known.RESULTS)


def _env(case: Case) -> Finding:
    case.rule("equals", unset=list(known.names(*_JUDGED)))
    values, gpu = case.mapping("variables"), bool(case.spec.get("gpu"))
    if not all(isinstance(value, str) for value in values.values()):
        raise MalformedError("an environment variable is not text")
    told = known.found(values, gpu=gpu, kinds=_JUDGED)
    if gpu:
        # C00.gpu judges NVIDIA's own variables, and C02 the libraries that are loaded.
        hidden = known.one("CUDA_VISIBLE_DEVICES", known.HIDES)
        told += known.found({name: value for name, value in values.items() if name == hidden.name})
    if told:
        message = "; ".join(variable.said(value) for variable, value in told)
        return case.warn("BAD_CUDA_ENV", message, *(f"{variable.name}: {variable.fix}" for variable, _ in told))
    return case.passed("no environment variable slows CUDA down or changes its results")
