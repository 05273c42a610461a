"""C10: are copies between host and device exact, and as fast as the link allows?"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from envkit.checks import thresholds
from envkit.checks.fields import flag, mapping, number, optional_number, part_of
from envkit.checks.model import Finding, Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping

    from envkit.checks.model import Env, Observation, Spec
    from envkit.checks.thresholds import Threshold

_SLOW = (
    "Run on the GPU's own socket (numactl --cpunodebind), and look for a slot with fewer lanes: nvidia-smi topo -m",
    "In a virtual machine, ask for the GPU's full link; in confidential-computing mode copies are slower by design.",
)
_IMPOSSIBLE_GB_S = 1700.0
"""What an unsynchronized clock measured for a 400 MB copy over PCIe; the bound must reject it."""


def judge(observation: Observation, spec: Spec, env: Env) -> Finding:
    """Judge one copy, the link, a ratio, host asynchrony or the bytes themselves."""
    part = part_of(observation)
    rules = {"integrity": _integrity, "link": _link, "non_blocking": _non_blocking}
    if part in rules:
        return rules[part](observation, spec, env)
    return (_ratio if part.endswith("_ratio") else _copy)(observation, spec, env)


def limit_of(link: Mapping[str, Any]) -> float | None:
    """Return GB/s of the link as it was under load; None where it is not known so, or not PCIe (NVLink-C2C)."""
    generation, width = optional_number(link, "gen"), optional_number(link, "width")
    if link.get("c2c") is True or link.get("busy") is False or generation is None or width is None:
        return None
    return thresholds.load().link_limit(int(generation), int(width))


def _name(link: Mapping[str, Any]) -> str:
    return f"PCIe {int(number(link, 'gen'))}.0 x{int(number(link, 'width'))}"


def _copy(observation: Observation, _spec: Spec, _env: Env) -> Finding:
    observed, name = observation["observed"], part_of(observation)
    rate, link = number(observed, "gb_per_s"), mapping(observed, "link")
    mapping(observation, "samples")  # a rate without its samples cannot be recomputed, so it is not believed
    table = thresholds.load()
    deciding = flag(observed, "decides") and "_pinned" in name
    row = table.row(f"C10.{name.partition('_')[0]}_pinned" if deciding else "C10.curve")
    rule = row.record() if deciding else row.record(type="informs")
    metric = {"name": "bandwidth", "value": rate, "unit": "GB/s", "better": "higher"}
    limit = limit_of(link)
    bound = row.number("error_above") * (limit if limit is not None else table.fastest_link())
    derived = {"limit": limit, "fraction_of_limit": rate / limit if limit else None}
    if bound >= _IMPOSSIBLE_GB_S:
        return Finding(Verdict.ERROR, f"a bound of {bound:.0f} GB/s rejects nothing", "CONTROL_FAILED", rule=rule)
    if rate > bound and link.get("c2c") is not True:
        message = f"{rate:.1f} GB/s is more than any such link carries ({bound:.1f} GB/s): the clock is wrong"
        advice = ("Report this with the record (envkit verify -o FILE): no such number can be real.",)
        return Finding(Verdict.ERROR, message, "ABOVE_LINK_LIMIT", advice, rule, metric, derived)
    if not deciding:
        return Finding(Verdict.PASS, f"{rate:.1f} GB/s", rule=rule, metric=metric, derived=derived)
    if limit is None:
        return _without_limit(rate, link, rule, metric)
    passed = Finding(Verdict.PASS, f"{rate:.1f} GB/s = {rate / limit:.2f} of {_name(link)}", rule=rule)
    finding = replace(_against_floor(passed, rate / limit, row), metric=metric, derived=derived)
    finding = _by_socket(finding, observed, limit * row.number("pass"))
    if finding.verdict is Verdict.FAIL and link.get("cc_mode") is True:
        message = f"{finding.message}, with every copy encrypted (confidential computing)"
        return replace(finding, verdict=Verdict.WARN, message=message, reason_code="CONFIDENTIAL_COMPUTING")
    return finding


def _against_floor(passed: Finding, fraction: float, row: Threshold) -> Finding:
    if fraction < row.number("fail_below"):
        return replace(passed, verdict=Verdict.FAIL, reason_code="BANDWIDTH_BELOW_FLOOR", advice=_SLOW)
    if fraction < row.number("pass"):
        return replace(passed, verdict=Verdict.WARN, reason_code="BANDWIDTH_LOW", advice=_SLOW)
    return passed


def _by_socket(finding: Finding, observed: Mapping[str, Any], enough: float) -> Finding:
    """Return the finding, or WRONG_SOCKET where the same copy is fast from the CPUs near the GPU.

    Which socket a process starts on is up to the scheduler, so it says nothing about the image or the machine.
    """
    place = observed.get("placement")
    local = optional_number(observed, "local_gb_per_s")
    if finding.verdict is Verdict.PASS or not isinstance(place, dict) or not isinstance(place.get("cpus"), str):
        return finding
    node = f"NUMA node {place['node']}" if place.get("node") is not None else "its own socket"
    if local is not None and local >= enough:
        message = f"{finding.message}; {local:.1f} GB/s from the CPUs of {node}, where the GPU is"
        advice = (f"Run on the GPU's own socket: taskset -c {place['cpus']} COMMAND",)
        return replace(finding, verdict=Verdict.WARN, message=message, reason_code="WRONG_SOCKET", advice=advice)
    if place.get("local_allowed") == 0:
        message = f"{finding.message}; the container may use no CPU of {node}, where the GPU is"
        cpus = f"Start the container with --cpuset-cpus={place['cpus']}."
        return replace(finding, message=message, advice=(cpus, *finding.advice))
    return finding


def _without_limit(rate: float, link: Mapping[str, Any], rule: Mapping[str, Any], metric: Mapping[str, Any]) -> Finding:
    if link.get("c2c") is not True and link.get("busy") is False and link.get("gen") is not None:
        message = f"{rate:.1f} GB/s; the link was only seen idle, where it is slower, so there is no floor"
        return Finding(Verdict.INCONCLUSIVE, message, "LINK_READ_IDLE", ("Run it again.",), rule, metric)
    rule = {**rule, "gates": False}
    if link.get("c2c") is True:
        return Finding(
            Verdict.PASS, f"{rate:.1f} GB/s over NVLink-C2C, for which there is no floor", rule=rule, metric=metric
        )
    message = f"{rate:.1f} GB/s; the link's generation and width are unknown here, so there is no floor"
    advice = ("Start the container with NVIDIA_DRIVER_CAPABILITIES=compute,utility, so that the link can be read.",)
    return Finding(Verdict.WARN, message, "LINK_UNKNOWN", advice, rule, metric)


def _link(observation: Observation, _spec: Spec, _env: Env) -> Finding:
    link = mapping(observation["observed"], "link")
    rule = {"type": "equals", "gates": False, "gen_max": link.get("gen_max"), "width_max": link.get("width_max")}
    if link.get("c2c") is True:
        return Finding(Verdict.SKIP, "the GPU reaches the host over NVLink-C2C", "NOT_PCIE", rule=rule)
    values = [optional_number(link, key) for key in ("gen", "width", "gen_max", "width_max")]
    generation, width, top, lanes = values
    if generation is None or width is None or top is None or lanes is None:
        return Finding(Verdict.SKIP, "the link cannot be read in this container", "LINK_UNKNOWN", rule=rule)
    if not flag(link, "busy"):
        message = "the copies ended before the link was read; an idle link says nothing"
        return Finding(Verdict.INCONCLUSIVE, message, "LINK_READ_IDLE", ("Run it again.",), rule)
    if generation < top or width < lanes:
        message = f"{_name(link)} under load, although GPU and slot support PCIe {top:.0f}.0 x{lanes:.0f}"
        advice = ("Reseat the card or riser, and look at the slot's lanes and speed in the firmware settings.",)
        return Finding(Verdict.WARN, message, "LINK_DOWNTRAINED", advice, rule)
    return Finding(Verdict.PASS, f"{_name(link)} under load, its maximum", rule=rule)


def _ratio(observation: Observation, _spec: Spec, _env: Env) -> Finding:
    row = thresholds.load().row("C10.pinned_over_pageable")
    rule = row.record()
    ratios = mapping(observation["observed"], "ratio")
    values = {size: number(ratios, size) for size in ratios}
    largest = max(values, key=int)
    text = ", ".join(f"{size} MiB {value:.2f}" for size, value in values.items())
    message = f"pinned over pageable: {text}"
    metric = {"name": "pinned_over_pageable", "value": values[largest], "unit": "1", "better": "higher"}
    if values[largest] < row.number("warn_below"):
        advice = ("Pinned memory is slower than pageable here: measure pin_memory=False in your own loop.",)
        return Finding(Verdict.WARN, message, "PINNED_SLOWER", advice, rule, metric)
    return Finding(Verdict.PASS, message, rule=rule, metric=metric)


def _non_blocking(observation: Observation, _spec: Spec, _env: Env) -> Finding:
    observed = observation["observed"]
    rule = {"type": "equals", "d2h_exact_after_sync": True}
    if not flag(observed, "d2h_exact_after_sync"):
        message = "a non_blocking copy to the host is wrong even after a synchronization"
        advice = ("The GPU or its link corrupts data: run dcgmi diag -r 3 on the host.",)
        return Finding(Verdict.FAIL, message, "COPY_WRONG", advice, rule)
    pinned, pageable = mapping(observed, "pinned_non_blocking"), mapping(observed, "pageable_non_blocking")
    returned, finished = number(pinned, "host_return_ms"), number(pinned, "finished_ms")
    early = 1 - returned / finished if finished else 0.0
    derived = {"host_free_share": early, "pageable_host_return_ms": number(pageable, "host_return_ms")}
    message = f"the host is free for {early:.0%} of a pinned non_blocking copy; exact after synchronizing"
    return Finding(Verdict.PASS, message, rule=rule, derived=derived)


def _integrity(observation: Observation, _spec: Spec, _env: Env) -> Finding:
    observed = observation["observed"]
    rule = {"type": "equals", "exact": True}
    size = number(observed, "bytes")
    if not flag(observed, "exact"):
        advice = ("The GPU or its link corrupts data: run dcgmi diag -r 3 on the host.",)
        return Finding(Verdict.FAIL, f"{size:.0f} bytes came back changed", "COPY_WRONG", advice, rule)
    return Finding(Verdict.PASS, f"{size:.0f} bytes copied to the device and back unchanged", rule=rule)
