"""C28: are copies in both directions at once and between GPUs exact and fast, and are all NVLinks up?"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any

from envkit.checks.observed import MalformedError, flag, last_line, mapping, number, optional_number

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from envkit.checks.case import Case
    from envkit.checks.model import Finding

_HARDWARE = "Drain the GPUs named and run `dcgmi diag -r 3` on the host."
_LINKS = (
    "Look at the links: nvidia-smi nvlink -s, nvidia-smi nvlink -e",
    "With NVSwitch, look at its service on the host: systemctl status nvidia-fabricmanager",
)
_TOPOLOGY = "Compare with the topology: nvidia-smi topo -m, nvidia-smi topo -p2p r"
_ONE_ENGINE = "Transfer results in larger pieces between steps: one direction slows the other down here."


def judge(case: Case) -> Finding:
    """Judge C28.both_ways, C28.nvlink and C28.matrix."""
    return case.by_part({"both_ways": _both_ways, "nvlink": _nvlink, "matrix": _matrix})


def _both_ways(case: Case) -> Finding:
    case.use("C28.both_ways")
    both, gain = case.value("both_gb_per_s"), case.value("gain")
    up, down = case.value("up_gb_per_s"), case.value("down_gb_per_s")
    case.metric("bidirectional_bandwidth", both, "GB/s", "higher")
    case.derive(gain=gain)
    message = f"{both:.1f} GB/s in both directions at once; alone {up:.1f} to the device, {down:.1f} from it"
    if not case.flag("exact"):
        case.rule("equals", exact=True, gates=True)
        return case.fail("COPY_WRONG", f"{message}; bytes changed", _HARDWARE)
    if gain < case.number("warn_below"):
        return case.warn("COPIES_TAKE_TURNS", f"{message}: the directions take turns", _ONE_ENGINE)
    return case.passed(message)


def _nvlink(case: Case) -> Finding:
    case.use("C28.nvlink")
    states = case.observed.get("links")
    if not isinstance(states, list) or not all(item is None or isinstance(item, dict) for item in states):
        raise MalformedError("links is not a list of GPUs")
    active = [0.0 if item is None else number(item, "active") for item in states]
    expected = [_expected(item, max(active)) for item in states]
    errors = {f"gpu:{index}": count for index, item in enumerate(states) if (count := _errors(item))}
    case.metric("nvlinks_active", min(active), "links", "higher")
    case.derive(active=active, owed=expected, errors=errors)
    listed = ", ".join(f"{count:.0f} of gpu:{index}" for index, count in enumerate(active))
    message = f"active NVLinks: {listed}"
    if not max(active):
        # Cards that could be bridged and are not: a configuration, not a fault.
        return case.passed(f"{message}; none is connected")
    share = min(count / links for count, links in zip(active, expected, strict=True) if links)
    if share < case.number("fail_below"):
        return case.fail("NVLINKS_INACTIVE", message, *_LINKS)
    if share < 1:
        return case.warn("NVLINK_INACTIVE", message, *_LINKS)
    if errors:
        worst = ", ".join(f"{name} {count:.0f}" for name, count in errors.items())
        return case.warn("NVLINK_ERRORS", f"{message}; errors since the driver was loaded: {worst}", *_LINKS)
    return case.passed(f"{message}, without errors")


def _expected(state: Mapping[str, Any] | None, most: float) -> float:
    """Return the links that should be up: all if they lead to a switch, else as many as the GPU with the most has."""
    if state is not None and state.get("to") == ["switch"]:
        return number(state, "links")
    return most


def _errors(state: Mapping[str, Any] | None) -> float:
    """Return the errors that a healthy link does not have. Links repair single replays and CRC errors themselves."""
    counts = mapping(state, "errors") if state is not None else {}
    return optional_number(counts, "recovery") or 0.0


def _matrix(case: Case) -> Finding:
    case.rule("equals", expected="exact", gates=True)
    outcome = case.text("outcome")
    if outcome != "answered":
        error = last_line(str(case.observed.get("text") or ""))[:300]
        message = f"copies between GPUs: {error or 'no message'}"
        if outcome == "timeout":
            return case.inconclusive("GPU_COPIES_TIME_LIMIT", message, _TOPOLOGY)
        return case.fail("GPU_COPIES_FAIL", message, _TOPOLOGY)
    pairs = case.objects("pairs", "pairs of GPUs")
    if not pairs:
        raise MalformedError("pairs is not a list of pairs of GPUs")
    wrong = [_name(pair) for pair in pairs if not flag(pair, "exact")]
    if wrong:
        return case.fail("COPY_WRONG", f"bytes changed between GPUs: {', '.join(wrong)}", _HARDWARE)
    return _rates(case, pairs)


def _rates(case: Case, pairs: Sequence[Mapping[str, Any]]) -> Finding:
    case.use("C28.matrix")
    rates = {_name(pair): number(pair, "gb_per_s") for pair in pairs}
    least, most = min(rates, key=rates.__getitem__), max(rates, key=rates.__getitem__)
    case.metric("slowest_pair", rates[least], "GB/s", "higher")
    case.derive(median=median(rates.values()), rates=rates)
    message = f"copies between GPUs are exact, {rates[least]:.1f} ({least}) to {rates[most]:.1f} GB/s ({most})"
    # The path between two GPUs is the same in both directions, although pairs may be connected differently.
    ratios = {name: rate / rates[_back(name)] for name, rate in rates.items() if rates.get(_back(name))}
    one_sided = [name for name, ratio in ratios.items() if ratio < case.number("warn_below")]
    if one_sided:
        warning = f"{message}; one direction is far slower than the other: {', '.join(one_sided)}"
        return case.warn("LINK_ONE_SIDED", warning, _TOPOLOGY)
    apart = sorted({"-".join(sorted(_name(pair).split(">"))) for pair in pairs if pair.get("peer_access") is False})
    if apart:
        advice = "The GPUs cannot reach each other: nvidia-smi topo -p2p r, and turn ACS off in the firmware."
        return case.warn("NO_PEER_ACCESS", f"{message}; through the host: {', '.join(apart)}", advice)
    return case.passed(message)


def _name(pair: Mapping[str, Any]) -> str:
    return f"{number(pair, 'source'):.0f}>{number(pair, 'target'):.0f}"


def _back(name: str) -> str:
    source, _, target = name.partition(">")
    return f"{target}>{source}"
