"""C20: are all-reduces exact, and is DDP's gradient that of one process? Bandwidth informs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envkit.checks.observed import last_line, number
from envkit.ground.sizes import shown_size
from envkit.knowledge import matching, variables

if TYPE_CHECKING:
    from envkit.checks.case import Case
    from envkit.checks.model import Finding

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
_UNSET = "Unset the NCCL variables that the image or the command sets, and run it again."
_BLOCKED = "The GPUs cannot reach each other: nvidia-smi topo -p2p r, and turn ACS off in the firmware."
_WRONG = (
    "Data changed between processes: run dcgmi diag -r 3 on the host, and nccl-tests with -c 1.",
    "Look for NCCL_* variables in the image: `envkit verify IMAGE --only C00`.",
)


def judge(case: Case) -> Finding:
    """Judge allreduce and ddp of one backend exactly. Bandwidth informs."""
    if case.kind == "bandwidth":
        return _bandwidth(case)
    if case.text("outcome") != "answered":
        return _broken(case)
    return _sums(case) if case.kind == "allreduce" else _gradient(case)


def _broken(case: Case) -> Finding:
    """Judge a group of processes that did not answer."""
    case.rule("equals", outcome="answered", gates=True)
    backend, ranks, error = case.text("backend"), case.value("ranks"), str(case.observed.get("error") or "")
    if case.observed["outcome"] == "timeout":
        message = f"{_processes(ranks)} with {backend} gave {error}{_replaced(case)}"
        excuse = _too_little_time(case)
        # gloo runs on the CPUs, where a slow or busy machine looks like a hang.
        if backend != "nccl" or excuse:
            return case.inconclusive("COLLECTIVE_TIME_LIMIT", message + excuse, "Run it again.")
        return case.fail("COLLECTIVE_HANGS", message, *_HANGS)
    rank = case.optional("rank")
    where = "" if rank is None else f" in rank {rank:.0f}"
    line = last_line(error)[:300] or "no message"
    message = f"{backend} with {_processes(ranks)} failed{where}: {line}"
    known = matching.reason(error, _CODES)
    if known is not None:
        code, row = known
        message += _interfaces(case) if code == "SOCKET_INTERFACE" else ""
        return case.fail(code, message + _replaced(case), *row.fix)
    return case.fail("COLLECTIVE_FAILED", message + _replaced(case), *_HANGS)


def _processes(ranks: float) -> str:
    return f"{ranks:.0f} process{'es' * (ranks != 1)}"


def _interfaces(case: Case) -> str:
    """Return the variables that name an interface, with their values."""
    environment = case.observed.get("environment")
    named = environment if isinstance(environment, dict) else {}
    listed = ", ".join(f"{name}={named[name]}" for name in sorted(named) if name.endswith("_SOCKET_IFNAME"))
    return f" ({listed})" if listed else ""


def _too_little_time(case: Case) -> str:
    """Return why a timeout says nothing about the group, or an empty string if it does."""
    begun, limit = case.optional("begun"), case.optional("limit_s")
    wanted = case.optional("limit_wanted_s")
    if begun == 0:
        return "; none of them finished importing torch"
    if limit is not None and wanted is not None and limit < wanted:
        return f"; the check had only {limit:.0f} s left, and the group needs {wanted:.0f} s"
    return ""


def _replaced(case: Case) -> str:
    replaced = case.observed.get("replaced")
    if not isinstance(replaced, dict) or not replaced:
        return ""
    listed = ", ".join(f"{name}={value}" for name, value in sorted(replaced.items()))
    return f"; this run has no network, so the image's {listed} was not used"


def _sums(case: Case) -> Finding:
    case.rule("equals", expected=0, gates=True, unit="elements")
    wrong = case.mapping("wrong")
    backend, ranks = case.text("backend"), case.value("ranks")
    counts = {size: number(wrong, size) for size in wrong}
    total = sum(counts.values())
    case.metric("wrong_elements", total, "elements", "lower")
    if total or not counts:
        sizes = ", ".join(f"{value:.0f} at {size} B" for size, value in counts.items() if value)
        message = f"{backend}: {total:.0f} elements of all-reduces are wrong ({sizes or 'no size was tried'})"
        return case.fail("COLLECTIVE_WRONG", message, *_WRONG)
    return case.passed(
        f"{backend}: all-reduces of {len(counts)} sizes over {_processes(ranks)} are exact{_replaced(case)}"
    )


def _gradient(case: Case) -> Finding:
    case.use("C20.gradient")
    difference, backend = case.value("difference"), case.text("backend")
    case.metric("gradient_difference", difference, "1", "lower")
    message = f"{backend}: DDP's gradient differs from that of one process by {difference:.1e}"
    if difference > case.number("fail_above"):
        return case.fail("DDP_GRADIENT_WRONG", message, *_WRONG)
    return case.passed(message)


def _bandwidth(case: Case) -> Finding:
    # The bus bandwidth as nccl-tests defines it, which is comparable over any number of GPUs.
    formula = "busbw = algbw * 2 (n - 1) / n"
    case.rule("informs", gates=False, formula=formula)
    rate, ranks = case.value("busbw_gb_per_s"), case.value("ranks")
    links, peer_access = case.optional("nvlink_gb_per_s"), case.observed.get("peer_access")
    case.metric("bus_bandwidth", rate, "GB/s", "higher")
    case.derive(algbw_gb_per_s=case.value("algbw_gb_per_s"), peer_access=peer_access)
    size = shown_size(case.value("bytes"), "MiB")
    message = f"all-reduce of {size} over {ranks:.0f} GPUs: {rate:.1f} GB/s bus bandwidth"
    if links:
        case.use("C20.nvlink", formula=formula)
        case.derive(nvlink_gb_per_s=links, fraction_of_nvlink=rate / links)
        message = f"{message}, {rate / links:.2f} of what the NVLinks carry ({links:.0f} GB/s)"
        if rate < case.number("fail_below") * links:
            environment = {name: str(value) for name, value in case.mapping("environment").items()}
            off = variables.found(environment, kinds=(variables.NETWORK,))
            if off:
                warning = f"{message}; {'; '.join(variable.said(value) for variable, value in off)}"
                return case.warn("NVLINK_TURNED_OFF", warning, _UNSET)
            return case.fail("NVLINK_UNUSED", message, *_NVLINK)
    if peer_access is False:
        pairs = case.observed.get("pairs_without_peer_access")
        which = f" ({', '.join(map(str, pairs))})" if isinstance(pairs, list) and pairs else ""
        return case.warn("NO_PEER_ACCESS", f"{message}, for some pairs of GPUs through the host{which}", _BLOCKED)
    return case.passed(message)
