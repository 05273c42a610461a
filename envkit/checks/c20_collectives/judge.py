"""C20: are all-reduces exact, and is DDP's gradient that of one process? Bandwidth informs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envkit.checks import thresholds
from envkit.checks.fields import last_line, mapping, number, optional_number, part_of, text
from envkit.checks.model import Finding, Verdict
from envkit.knowledge import matching, variables

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from envkit.checks.model import Env, Observation, Spec

_HANGS = (
    "Give the container shared memory: --shm-size=1g or --ipc=host.",
    "In a virtual machine or with ACS on, GPUs cannot reach each other: try NCCL_P2P_DISABLE=1.",
    "See where it stops: NCCL_DEBUG=INFO envkit verify IMAGE --only C20 --tier standard --verbose",
)
# The reason codes of the rows of known failures that stop a group of processes.
_CODES = frozenset({
    "GPU_EXCLUSIVE", "GPU_OUT_OF_MEMORY", "NCCL_NOT_LOADED", "SHM_TOO_SMALL", "SOCKET_INTERFACE",
})  # fmt: skip
_NVLINK = (
    "Look at the links: nvidia-smi nvlink -s, nvidia-smi topo -m",
    "Measure without envkit: all_reduce_perf of nccl-tests on the host.",
)
_UNSET = ("Unset the NCCL variables that the image or the command sets, and run it again.",)
_WRONG = (
    "Data changed between processes: run dcgmi diag -r 3 on the host, and nccl-tests with -c 1.",
    "Look for NCCL_* variables in the image: `envkit verify IMAGE --only C00`.",
)


def judge(observation: Observation, _spec: Spec, _env: Env) -> Finding:
    """Judge allreduce and ddp of one backend exactly. Bandwidth informs."""
    observed = mapping(observation, "observed")
    part = part_of(observation).partition(".")[0]
    if part == "bandwidth":
        return _bandwidth(observed)
    broken = _broken(observed)
    if broken is not None:
        return broken
    return _sums(observed) if part == "allreduce" else _gradient(observed)


def _broken(observed: Mapping[str, Any]) -> Finding | None:
    """Return the finding on a group of processes that did not answer, or None if it did."""
    outcome, backend = text(observed, "outcome"), text(observed, "backend")
    rule = {"type": "equals", "outcome": "answered", "gates": True}
    if outcome == "answered":
        return None
    ranks, error = number(observed, "ranks"), str(observed.get("error") or "")
    if outcome == "timeout":
        message = f"{_processes(ranks)} with {backend} gave {error}{_replaced(observed)}"
        excuse = _too_little_time(observed)
        # gloo runs on the CPUs, where a slow or busy machine looks like a hang.
        if backend != "nccl" or excuse:
            code = "COLLECTIVE_TIME_LIMIT"
            return Finding(Verdict.INCONCLUSIVE, message + excuse, code, ("Run it again.",), rule)
        return Finding(Verdict.FAIL, message, "COLLECTIVE_HANGS", _HANGS, rule)
    rank = optional_number(observed, "rank")
    where = "" if rank is None else f" in rank {rank:.0f}"
    line = last_line(error)[:300] or "no message"
    message = f"{backend} with {_processes(ranks)} failed{where}: {line}"
    known = matching.reason(error, _CODES)
    if known is not None:
        code, row = known
        message += _interfaces(observed) if code == "SOCKET_INTERFACE" else ""
        return Finding(Verdict.FAIL, message + _replaced(observed), code, row.fix, rule)
    return Finding(Verdict.FAIL, message + _replaced(observed), "COLLECTIVE_FAILED", _HANGS, rule)


def _processes(ranks: float) -> str:
    return f"{ranks:.0f} process{'es' * (ranks != 1)}"


def _interfaces(observed: Mapping[str, Any]) -> str:
    """Return the variables that name an interface, with their values."""
    environment = observed.get("environment")
    named = environment if isinstance(environment, dict) else {}
    listed = ", ".join(f"{name}={named[name]}" for name in sorted(named) if name.endswith("_SOCKET_IFNAME"))
    return f" ({listed})" if listed else ""


def _too_little_time(observed: Mapping[str, Any]) -> str:
    """Return why a timeout says nothing about the group, or an empty string if it does."""
    begun, limit = optional_number(observed, "begun"), optional_number(observed, "limit_s")
    wanted = optional_number(observed, "limit_wanted_s")
    if begun == 0:
        return "; none of them finished importing torch"
    if limit is not None and wanted is not None and limit < wanted:
        return f"; the check had only {limit:.0f} s left, and the group needs {wanted:.0f} s"
    return ""


def _replaced(observed: Mapping[str, Any]) -> str:
    replaced = observed.get("replaced")
    if not isinstance(replaced, dict) or not replaced:
        return ""
    listed = ", ".join(f"{name}={value}" for name, value in sorted(replaced.items()))
    return f"; this run has no network, so the image's {listed} was not used"


def _sums(observed: Mapping[str, Any]) -> Finding:
    rule = {"type": "equals", "expected": 0, "gates": True, "unit": "elements"}
    wrong = mapping(observed, "wrong")
    backend, ranks = text(observed, "backend"), number(observed, "ranks")
    counts = {size: number(wrong, size) for size in wrong}
    total = sum(counts.values())
    metric = {"name": "wrong_elements", "value": total, "unit": "elements", "better": "lower"}
    if total or not counts:
        sizes = ", ".join(f"{value:.0f} at {size} B" for size, value in counts.items() if value)
        message = f"{backend}: {total:.0f} elements of all-reduces are wrong ({sizes or 'no size was tried'})"
        return Finding(Verdict.FAIL, message, "COLLECTIVE_WRONG", _WRONG, rule, metric)
    message = f"{backend}: all-reduces of {len(counts)} sizes over {_processes(ranks)} are exact{_replaced(observed)}"
    return Finding(Verdict.PASS, message, None, (), rule, metric)


def _gradient(observed: Mapping[str, Any]) -> Finding:
    row = thresholds.load().row("C20.gradient")
    difference, backend = number(observed, "difference"), text(observed, "backend")
    metric = {"name": "gradient_difference", "value": difference, "unit": "1", "better": "lower"}
    message = f"{backend}: DDP's gradient differs from that of one process by {difference:.1e}"
    if difference > row.number("fail_above"):
        return Finding(Verdict.FAIL, message, "DDP_GRADIENT_WRONG", _WRONG, row.record(), metric)
    return Finding(Verdict.PASS, message, None, (), row.record(), metric)


def _bandwidth(observed: Mapping[str, Any]) -> Finding:
    rate, ranks = number(observed, "busbw_gb_per_s"), number(observed, "ranks")
    row = thresholds.load().row("C20.nvlink")
    links = optional_number(observed, "nvlink_gb_per_s")
    metric = {"name": "bus_bandwidth", "value": rate, "unit": "GB/s", "better": "higher"}
    derived = {"algbw_gb_per_s": number(observed, "algbw_gb_per_s"), "peer_access": observed.get("peer_access")}
    size = number(observed, "bytes") / 2**20
    message = f"all-reduce of {size:.0f} MiB over {ranks:.0f} GPUs: {rate:.1f} GB/s bus bandwidth"
    # The bus bandwidth as nccl-tests defines it, which is comparable over any number of GPUs.
    rule: dict[str, Any] = {"type": "informs", "gates": False, "formula": "busbw = algbw * 2 (n - 1) / n"}
    if links:
        rule = row.record(formula=rule["formula"])
        derived |= {"nvlink_gb_per_s": links, "fraction_of_nvlink": rate / links}
        message = f"{message}, {rate / links:.2f} of what the NVLinks carry ({links:.0f} GB/s)"
        if rate < row.number("fail_below") * links:
            environment = {name: str(value) for name, value in mapping(observed, "environment").items()}
            off = variables.found(environment, kinds=(variables.NETWORK,))
            if off:
                warning = f"{message}; {'; '.join(variable.said(value) for variable, value in off)}"
                return Finding(Verdict.WARN, warning, "NVLINK_TURNED_OFF", _UNSET, rule, metric, derived)
            return Finding(Verdict.FAIL, message, "NVLINK_UNUSED", _NVLINK, rule, metric, derived)
    if observed.get("peer_access") is False:
        pairs = observed.get("pairs_without_peer_access")
        which = f" ({', '.join(map(str, pairs))})" if isinstance(pairs, list) and pairs else ""
        advice = ("The GPUs cannot reach each other: nvidia-smi topo -p2p r, and turn ACS off in the firmware.",)
        warning = f"{message}, for some pairs of GPUs through the host{which}"
        return Finding(Verdict.WARN, warning, "NO_PEER_ACCESS", advice, rule, metric, derived)
    return Finding(Verdict.PASS, message, None, (), rule, metric, derived)
