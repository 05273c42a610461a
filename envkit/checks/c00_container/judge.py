"""C00: was the container started with what the image needs?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from envkit.checks import shm, thresholds
from envkit.checks.fields import MalformedError, by_part, mapping, number, optional_number, strings
from envkit.checks.model import Finding, Verdict
from envkit.knowledge import variables as known

if TYPE_CHECKING:
    from envkit.checks.model import Env, Observation, Spec


def judge(observation: Observation, spec: Spec, env: Env) -> Finding:
    """Judge C00.gpu, C00.shm, C00.memlock and C00.env."""
    return by_part({"gpu": _gpu, "shm": _shm, "memlock": _memlock, "env": _env}, observation, spec, env)


def _gpu(observation: Observation, spec: Spec, _env: Env) -> Finding:
    rule = {"type": "minimum", "device_nodes": 1}
    observed = observation["observed"]
    nodes, variables = strings(observed, "device_nodes"), mapping(observed, "env")
    derived = {"device_nodes": len(nodes)}
    if not spec.get("gpu"):
        message = f"the plan does not ask for a GPU; {len(nodes)} GPU device nodes"
        return Finding(Verdict.SKIP, message, "NOT_PROMISED", rule=rule, derived=derived)
    # SKIP, not FAIL: a run without a GPU says nothing about the image, which `summarize` makes NOT_VERIFIED.
    if not nodes:
        advice = ("Start the container with --gpus all (docker) or --device nvidia.com/gpu=all (podman).",)
        message = "the image needs a GPU, but the container has no GPU device node"
        return Finding(Verdict.SKIP, message, "NO_GPU", advice, rule, derived=derived)
    capabilities = known.one("NVIDIA_DRIVER_CAPABILITIES", known.HIDES)
    value = variables.get(capabilities.name)
    if isinstance(value, str) and capabilities.applies(value):
        message = capabilities.said(value)
        return Finding(Verdict.FAIL, message, "NO_COMPUTE_CAPABILITY", (capabilities.fix,), rule, derived=derived)
    return Finding(Verdict.PASS, f"{len(nodes)} GPU device nodes: {', '.join(nodes)}", rule=rule, derived=derived)


def _shm(observation: Observation, spec: Spec, env: Env) -> Finding:
    row = thresholds.load().row("C00.shm_default")
    rule = row.record()
    size = optional_number(observation["observed"], "bytes")
    need = shm.in_flight(spec.get("loader") or {})
    advice = (shm.advice(need),)
    if size is None:
        return Finding(Verdict.WARN, f"the container has no {shm.MOUNT}", "SHM_ABSENT", advice, rule)
    metric = {"name": "shm_size", "value": size, "unit": "B", "better": "higher"}
    # Only warnings: C13 runs the declared loader, and its result counts.
    promised = spec.get("shm_mb")
    if promised is not None and size < int(promised) * shm.MIB:
        message = f"{shm.mount(env)} has {size / shm.MIB:.0f} MiB, the plan asks for {promised} MiB"
        advice = (f"Start the container with --shm-size={promised}m (or --ipc=host).",)
        return Finding(Verdict.WARN, message, "SHM_BELOW_PLAN", advice, rule, metric)
    if size <= row.number("at_most"):
        message = f"{shm.mount(env)} has {size / shm.MIB:.0f} MiB, the default of container engines"
        return Finding(Verdict.WARN, message, "SHM_DEFAULT", advice, rule, metric)
    return Finding(Verdict.PASS, f"{shm.mount(env)} has {size / shm.MIB:.0f} MiB", rule=rule, metric=metric)


def _memlock(observation: Observation, spec: Spec, _env: Env) -> Finding:
    """Warn only about a limit that somebody lowered. How much can really be pinned is measured by C09."""
    row = thresholds.load().row("C00.memlock")
    limit = observation["observed"].get("bytes")
    size = None if limit == "unlimited" else number(observation["observed"], "bytes")
    text = "no limit" if size is None else f"a limit of {size / 1024:.0f} KiB"
    if not spec.get("gpu"):
        return Finding(Verdict.SKIP, f"the plan does not ask for a GPU; {text}", "NOT_PROMISED", rule=row.record())
    metric = None if size is None else {"name": "memlock", "value": size, "unit": "B", "better": "higher"}
    if size is not None and size < row.number("warn_below"):
        message = (
            f"locked memory has {text}, less than the Linux default: RDMA and NCCL over RDMA cannot register memory"
        )
        advice = ("Start the container with --ulimit memlock=-1:-1.",)
        return Finding(Verdict.WARN, message, "MEMLOCK_TOO_SMALL", advice, row.record(), metric)
    return Finding(Verdict.PASS, f"locked memory has {text}", rule=row.record(), metric=metric)


_JUDGED = (known.CHECK, known.SLOWS, known.RESULTS)


def _env(observation: Observation, spec: Spec, _env: Env) -> Finding:
    rule = {"type": "equals", "unset": list(known.names(*_JUDGED))}
    values = mapping(observation["observed"], "variables")
    if not all(isinstance(value, str) for value in values.values()):
        raise MalformedError("an environment variable is not text")
    told = known.found(values, gpu=bool(spec.get("gpu")), kinds=_JUDGED)
    if spec.get("gpu"):
        # C00.gpu judges NVIDIA's own variables, and C02 the libraries that are loaded.
        hidden = known.one("CUDA_VISIBLE_DEVICES", known.HIDES)
        told += known.found({name: value for name, value in values.items() if name == hidden.name})
    if told:
        message = "; ".join(variable.said(value) for variable, value in told)
        advice = tuple(f"{variable.name}: {variable.fix}" for variable, _ in told)
        return Finding(Verdict.WARN, message, "BAD_CUDA_ENV", advice, rule)
    return Finding(Verdict.PASS, "no environment variable slows CUDA down or changes its results", rule=rule)
