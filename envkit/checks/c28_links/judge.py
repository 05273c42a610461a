"""C28: are copies in both directions at once and between GPUs exact and fast, and are all NVLinks up?"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any

from envkit.checks import thresholds
from envkit.checks.fields import MalformedError, by_part, flag, last_line, mapping, number, optional_number, text
from envkit.checks.model import Finding, Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from envkit.checks.model import Env, Observation, Spec

_HARDWARE = ("Drain the GPUs named and run `dcgmi diag -r 3` on the host.",)
_LINKS = (
    "Look at the links: nvidia-smi nvlink -s, nvidia-smi nvlink -e",
    "With NVSwitch, look at its service on the host: systemctl status nvidia-fabricmanager",
)
_TOPOLOGY = ("Compare with the topology: nvidia-smi topo -m, nvidia-smi topo -p2p r",)
_ONE_ENGINE = ("Transfer results in larger pieces between steps: one direction slows the other down here.",)


def judge(observation: Observation, spec: Spec, env: Env) -> Finding:
    """Judge C28.both_ways, C28.nvlink and C28.matrix."""
    rules = {"both_ways": _both_ways, "nvlink": _nvlink, "matrix": _matrix}
    return by_part(rules, observation, spec, env)


def _both_ways(observation: Observation, _spec: Spec, _env: Env) -> Finding:
    observed = mapping(observation, "observed")
    row = thresholds.load().row("C28.both_ways")
    both, gain = number(observed, "both_gb_per_s"), number(observed, "gain")
    metric = {"name": "bidirectional_bandwidth", "value": both, "unit": "GB/s", "better": "higher"}
    derived = {"gain": gain}
    up, down = number(observed, "up_gb_per_s"), number(observed, "down_gb_per_s")
    message = f"{both:.1f} GB/s in both directions at once; alone {up:.1f} to the device, {down:.1f} from it"
    if not flag(observed, "exact"):
        rule = {"type": "equals", "exact": True, "gates": True}
        return Finding(Verdict.FAIL, f"{message}; bytes changed", "COPY_WRONG", _HARDWARE, rule, metric, derived)
    if gain < row.number("warn_below"):
        slow = f"{message}: the directions take turns"
        return Finding(Verdict.WARN, slow, "COPIES_TAKE_TURNS", _ONE_ENGINE, row.record(), metric, derived)
    return Finding(Verdict.PASS, message, None, (), row.record(), metric, derived)


def _nvlink(observation: Observation, _spec: Spec, _env: Env) -> Finding:
    observed = mapping(observation, "observed")
    row = thresholds.load().row("C28.nvlink")
    states = observed.get("links")
    if not isinstance(states, list) or not all(item is None or isinstance(item, dict) for item in states):
        raise MalformedError("links is not a list of GPUs")
    active = [0.0 if item is None else number(item, "active") for item in states]
    expected = [_expected(item, max(active)) for item in states]
    metric = {"name": "nvlinks_active", "value": min(active), "unit": "links", "better": "higher"}
    errors = {f"gpu:{index}": count for index, item in enumerate(states) if (count := _errors(item))}
    derived = {"active": active, "owed": expected, "errors": errors}
    listed = ", ".join(f"{count:.0f} of gpu:{index}" for index, count in enumerate(active))
    message = f"active NVLinks: {listed}"
    if not max(active):
        # Cards that could be bridged and are not: a configuration, not a fault.
        return Finding(Verdict.PASS, f"{message}; none is connected", None, (), row.record(), metric, derived)
    share = min(count / links for count, links in zip(active, expected, strict=True) if links)
    if share < row.number("fail_below"):
        return Finding(Verdict.FAIL, message, "NVLINKS_INACTIVE", _LINKS, row.record(), metric, derived)
    if share < 1:
        return Finding(Verdict.WARN, message, "NVLINK_INACTIVE", _LINKS, row.record(), metric, derived)
    if errors:
        worst = ", ".join(f"{name} {count:.0f}" for name, count in errors.items())
        warning = f"{message}; errors since the driver was loaded: {worst}"
        return Finding(Verdict.WARN, warning, "NVLINK_ERRORS", _LINKS, row.record(), metric, derived)
    return Finding(Verdict.PASS, f"{message}, without errors", None, (), row.record(), metric, derived)


def _expected(state: Mapping[str, Any] | None, most: float) -> float:
    """Return the links that should be up: all if they lead to a switch, else as many as the GPU with the most has."""
    if state is not None and state.get("to") == ["switch"]:
        return number(state, "links")
    return most


def _errors(state: Mapping[str, Any] | None) -> float:
    """Return the errors that a healthy link does not have. Links repair single replays and CRC errors themselves."""
    counts = mapping(state, "errors") if state is not None else {}
    return optional_number(counts, "recovery") or 0.0


def _matrix(observation: Observation, _spec: Spec, _env: Env) -> Finding:
    observed = mapping(observation, "observed")
    rule = {"type": "equals", "expected": "exact", "gates": True}
    if text(observed, "outcome") != "answered":
        error = str(observed.get("text") or "")
        message = f"copies between GPUs: {last_line(error)[:300] or 'no message'}"
        code = "GPU_COPIES_TIME_LIMIT" if observed["outcome"] == "timeout" else "GPU_COPIES_FAIL"
        verdict = Verdict.INCONCLUSIVE if observed["outcome"] == "timeout" else Verdict.FAIL
        return Finding(verdict, message, code, _TOPOLOGY, rule)
    pairs = observed.get("pairs")
    if not isinstance(pairs, list) or not pairs or not all(isinstance(item, dict) for item in pairs):
        raise MalformedError("pairs is not a list of pairs of GPUs")
    wrong = [_name(pair) for pair in pairs if not flag(pair, "exact")]
    if wrong:
        message = f"bytes changed between GPUs: {', '.join(wrong)}"
        return Finding(Verdict.FAIL, message, "COPY_WRONG", _HARDWARE, rule)
    return _rates(pairs)


def _rates(pairs: Sequence[Mapping[str, Any]]) -> Finding:
    row = thresholds.load().row("C28.matrix")
    rates = {_name(pair): number(pair, "gb_per_s") for pair in pairs}
    least, most = min(rates, key=rates.__getitem__), max(rates, key=rates.__getitem__)
    metric = {"name": "slowest_pair", "value": rates[least], "unit": "GB/s", "better": "higher"}
    message = f"copies between GPUs are exact, {rates[least]:.1f} ({least}) to {rates[most]:.1f} GB/s ({most})"
    derived = {"median": median(rates.values()), "rates": rates}
    # The path between two GPUs is the same in both directions, although pairs may be connected differently.
    ratios = {name: rate / rates[_back(name)] for name, rate in rates.items() if rates.get(_back(name))}
    one_sided = [name for name, ratio in ratios.items() if ratio < row.number("warn_below")]
    if one_sided:
        warning = f"{message}; one direction is far slower than the other: {', '.join(one_sided)}"
        return Finding(Verdict.WARN, warning, "LINK_ONE_SIDED", _TOPOLOGY, row.record(), metric, derived)
    apart = sorted({"-".join(sorted(_name(pair).split(">"))) for pair in pairs if pair.get("peer_access") is False})
    if apart:
        warning = f"{message}; through the host: {', '.join(apart)}"
        advice = ("The GPUs cannot reach each other: nvidia-smi topo -p2p r, and turn ACS off in the firmware.",)
        return Finding(Verdict.WARN, warning, "NO_PEER_ACCESS", advice, row.record(), metric, derived)
    return Finding(Verdict.PASS, message, None, (), row.record(), metric, derived)


def _name(pair: Mapping[str, Any]) -> str:
    return f"{number(pair, 'source'):.0f}>{number(pair, 'target'):.0f}"


def _back(name: str) -> str:
    source, _, target = name.partition(">")
    return f"{target}>{source}"
