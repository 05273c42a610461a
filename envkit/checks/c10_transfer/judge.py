"""C10: are copies between host and device exact, and as fast as the link allows?"""

from __future__ import annotations

from dataclasses import dataclass, replace
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
_RESEAT = (
    "Reseat the card or riser, and look at the slot's lanes and speed in the firmware settings.",
    "A GPU in an external enclosure has at most four lanes, so this link is normal there.",
)
_IMPOSSIBLE_GB_S = 1700.0
"""Measured with an unsynchronized clock for a 400 MB copy over PCIe. The upper bound must reject it."""


def judge(observation: Observation, spec: Spec, env: Env) -> Finding:
    """Judge one copy, the link, a ratio, a non_blocking copy or the integrity of the bytes."""
    part = part_of(observation)
    rules = {"integrity": _integrity, "link": _link, "non_blocking": _non_blocking}
    if part in rules:
        return rules[part](observation, spec, env)
    return (_ratio if part.endswith("_ratio") else _copy)(observation, spec, env)


@dataclass(frozen=True, slots=True)
class Link:
    """The link between host and GPU, with what it carries in one direction in GB/s, if known."""

    kind: str  # 'pcie' | 'c2c' | 'integrated'
    name: str
    limit: float | None  # as it was under load, or while idle if it was at its maximum
    most_name: str
    most: float | None  # what slot and card support; None if read from sysfs, which virtual machines emulate

    @property
    def base(self) -> float | None:
        """Return the rate that floors refer to: the link as it is, at least half of what slot and card support."""
        # A link that fell back by more than one generation, or to a quarter of its lanes, is no excuse for a low rate.
        return None if self.limit is None else max(self.limit, (self.most or 0.0) / 2)


def link_of(link: Mapping[str, Any]) -> Link:
    """Return the link that an observation describes.

    For GPUs that use the host's own memory NVML reports a PCIe link that does not exist (Gen1 x1 on GB10), and older
    drivers do not report NVLink-C2C.
    """
    table = thresholds.load()
    if (
        link.get("integrated") is True
        or link.get("own_memory") is False
        or link.get("bus") not in (None, "pci", "pcie")
    ):
        return Link("integrated", "the memory it shares with the host", None, "", None)
    if link.get("c2c") is True:
        limit = table.row("C10.coherent").number("limit_gb_per_s")
        return Link("c2c", "NVLink-C2C", limit, "NVLink-C2C", limit)
    name, now = _pcie(optional_number(link, "gen"), optional_number(link, "width"))
    most_name, most = _pcie(optional_number(link, "gen_max"), optional_number(link, "width_max"))
    # In a virtual machine sysfs shows an emulated link, whose maximum says nothing about the real slot.
    if link.get("source") == "sysfs":
        most = None
    # An idle link slows down, so a slow reading says nothing about it under load. A reading at full rate does.
    asleep = link.get("busy") is False and (now is None or most is None or now < most)
    return Link("pcie", name, None if now is None or asleep else min(now, most or now), most_name, most)


def _pcie(generation: float | None, width: float | None) -> tuple[str, float | None]:
    if generation is None or width is None:
        return "an unknown link", None
    name = f"PCIe {generation:.0f}.0 x{width:.0f}"
    return name, thresholds.load().link_limit(int(generation), int(width))


def _copy(observation: Observation, _spec: Spec, _env: Env) -> Finding:
    observed, name = observation["observed"], part_of(observation)
    rate, raw = number(observed, "gb_per_s"), mapping(observed, "link")
    mapping(observation, "samples")  # a rate without its samples cannot be recomputed, so it is not believed
    table, link = thresholds.load(), link_of(raw)
    deciding = flag(observed, "decides") and "_pinned" in name
    row = table.row(f"C10.{name.partition('_')[0]}_pinned" if deciding else "C10.curve")
    if deciding and link.kind == "c2c":
        row = table.row("C10.coherent")
    rule = row.record() if deciding else row.record(type="informs")
    metric = {"name": "bandwidth", "value": rate, "unit": "GB/s", "better": "higher"}
    limit = link.limit
    # Without a known link, only a rate above that of the fastest link is impossible.
    bound = row.number("error_above") * (limit if limit is not None else table.fastest_link())
    derived = {"limit": limit, "fraction_of_limit": rate / limit if limit else None}
    if bound >= _IMPOSSIBLE_GB_S:
        rule = {**rule, "gates": True}
        return Finding(Verdict.ERROR, f"a bound of {bound:.0f} GB/s rejects nothing", "CONTROL_FAILED", rule=rule)
    above = rate > bound
    if above and not _reading_is_wrong(observed, raw):
        message = f"{rate:.1f} GB/s is more than any such link carries ({bound:.1f} GB/s): the clock is wrong"
        advice = ("Report this with the record (envkit verify -o FILE): this rate is impossible.",)
        return Finding(Verdict.ERROR, message, "ABOVE_LINK_LIMIT", advice, rule, metric, derived)
    if not deciding:
        return Finding(Verdict.PASS, f"{rate:.1f} GB/s", rule=rule, metric=metric, derived=derived)
    finding = _deciding(rate, link, observed, row, rule, above=above)
    return replace(finding, metric=metric, derived=derived)


def _deciding(
    rate: float, link: Link, observed: Mapping[str, Any], row: Threshold, rule: Mapping[str, Any], *, above: bool
) -> Finding:
    """Judge the copy that decides. `above`: the rate is above the link's limit by two clocks, so the limit is wrong."""
    raw = mapping(observed, "link")
    read_idle = link.kind == "pcie" and link.limit is None and raw.get("busy") is False and raw.get("gen") is not None
    base = link.most if read_idle else link.base
    if read_idle and (base is None or not _decided_by_any_link(rate, base, row)):
        message = f"{rate:.1f} GB/s; the link was only read while idle, when it is slower, so there is no floor"
        return Finding(Verdict.INCONCLUSIVE, message, "LINK_READ_IDLE", ("Run it again.",), rule)
    if above or base is None:
        return _without_limit(rate, link, rule)
    passed = Finding(Verdict.PASS, _share(rate, link), rule=rule)
    finding = _by_socket(_against_floor(passed, rate / base, row), observed, base * row.number("pass"))
    # Encrypted copies go through a bounce buffer, so they are slow on a healthy machine.
    if finding.verdict is Verdict.FAIL and raw.get("cc_mode") is True:
        message = f"{finding.message}, with every copy encrypted (confidential computing)"
        return replace(finding, verdict=Verdict.WARN, message=message, reason_code="CONFIDENTIAL_COMPUTING")
    return finding


def _decided_by_any_link(rate: float, most: float, row: Threshold) -> bool:
    """Whether a rate has the same verdict for every link that floors may refer to: from half of the maximum to all."""
    return rate < row.number("fail_below") * most / 2 or rate >= row.number("pass") * most


def _share(rate: float, link: Link) -> str:
    if link.limit is None:
        assert link.most is not None
        share = f"{rate:.1f} GB/s = {rate / link.most:.2f} of {link.most_name}, which slot and card support"
        return f"{share}; the link was only read while idle"
    share = f"{rate:.1f} GB/s = {rate / link.limit:.2f} of {link.name}"
    if link.most is None or link.limit >= link.most:
        return share
    return f"{share} as negotiated, {rate / link.most:.2f} of {link.most_name}, which slot and card support"


def _reading_is_wrong(observed: Mapping[str, Any], link: Mapping[str, Any]) -> bool:
    """Whether a rate above the link's limit shows that the link was misread, and not that the clock is wrong.

    Two independent clocks, the GPU's events and the host's, timed the same copies.
    """
    clocks = observed.get("clocks")
    if not isinstance(clocks, dict):
        return link.get("source") == "sysfs"
    by_event, by_wall = number(clocks, "event_gb_per_s"), number(clocks, "wall_gb_per_s")
    return by_event <= by_wall * thresholds.load().row("C10.curve").number("clocks_differ_above")


def _against_floor(passed: Finding, fraction: float, row: Threshold) -> Finding:
    if fraction < row.number("fail_below"):
        return replace(passed, verdict=Verdict.FAIL, reason_code="BANDWIDTH_BELOW_FLOOR", advice=_SLOW)
    if fraction < row.number("pass"):
        return replace(passed, verdict=Verdict.WARN, reason_code="BANDWIDTH_LOW", advice=_SLOW)
    return passed


def _by_socket(finding: Finding, observed: Mapping[str, Any], enough: float) -> Finding:
    """Return the finding, or WRONG_SOCKET if the same copy is fast from the CPUs near the GPU.

    The scheduler chooses the socket that a process starts on, so it says nothing about the image or the machine.
    """
    placement = observed.get("placement")
    local = optional_number(observed, "local_gb_per_s")
    if finding.verdict is Verdict.PASS or not isinstance(placement, dict) or not isinstance(placement.get("cpus"), str):
        return finding
    node = f"NUMA node {placement['node']}" if placement.get("node") is not None else "its own socket"
    if local is not None and local >= enough:
        message = f"{finding.message}; {local:.1f} GB/s from the CPUs of {node}, where the GPU is"
        advice = (f"Run on the GPU's own socket: taskset -c {placement['cpus']} COMMAND",)
        return replace(finding, verdict=Verdict.WARN, message=message, reason_code="WRONG_SOCKET", advice=advice)
    if placement.get("local_allowed") == 0:
        message = f"{finding.message}; the container may use no CPU of {node}, where the GPU is"
        cpus = f"Start the container with --cpuset-cpus={placement['cpus']}."
        return replace(finding, message=message, advice=(cpus, *finding.advice))
    return finding


def _without_limit(rate: float, link: Link, rule: Mapping[str, Any]) -> Finding:
    rule = {**rule, "gates": False}
    if link.kind == "integrated":
        message = f"{rate:.1f} GB/s within {link.name}, for which there is no floor"
        return Finding(Verdict.PASS, message, rule=rule)
    if link.limit is not None:
        message = f"{rate:.1f} GB/s by two clocks, more than {link.name} carries: the reported link is wrong"
        advice = ("Compare the rate with the GPU's data sheet; a virtual machine may report an emulated link.",)
    else:
        message = f"{rate:.1f} GB/s; the link's generation and width are unknown here, so there is no floor"
        advice = ("Start the container with NVIDIA_DRIVER_CAPABILITIES=compute,utility, so that the link can be read.",)
    return Finding(Verdict.WARN, message, "LINK_UNKNOWN", advice, rule)


def _link(observation: Observation, _spec: Spec, _env: Env) -> Finding:
    observed = observation["observed"]
    raw = mapping(observed, "link")
    link, row = link_of(raw), thresholds.load().row("C10.link")
    rule = row.record(gen_max=raw.get("gen_max"), width_max=raw.get("width_max"))
    if link.kind != "pcie":
        return Finding(Verdict.SKIP, f"the GPU reaches the host over {link.name}", "NOT_PCIE", rule=rule)
    now = _pcie(optional_number(raw, "gen"), optional_number(raw, "width"))[1]
    most = _pcie(optional_number(raw, "gen_max"), optional_number(raw, "width_max"))[1]
    if now is None or most is None:
        return Finding(Verdict.SKIP, "the link cannot be read in this container", "LINK_UNKNOWN", rule=rule)
    if not flag(raw, "busy") and link.limit is None:
        message = "the copies ended before the link was read, and an idle link does not show its speed"
        return Finding(Verdict.INCONCLUSIVE, message, "LINK_READ_IDLE", ("Run it again.",), rule)
    rate = optional_number(observed, "gb_per_s")
    if rate is not None and rate > now * thresholds.load().row("C10.curve").number("error_above"):
        message = f"the link is reported as {link.name}, but copies reach {rate:.1f} GB/s"
        return Finding(Verdict.SKIP, message, "LINK_UNKNOWN", rule=rule)
    share = now / most
    if share < row.number("pass"):
        message = f"{link.name} under load, although GPU and slot support {link.most_name}"
        # The sysfs of a virtual machine shows a link that the hypervisor emulates.
        failed = share < row.number("fail_below") and raw.get("source") != "sysfs"
        return Finding(Verdict.FAIL if failed else Verdict.WARN, message, "LINK_DOWNTRAINED", _RESEAT, rule)
    when = "under load" if flag(raw, "busy") else "while idle"
    return Finding(Verdict.PASS, f"{link.name} {when}, its maximum", rule=rule)


def _ratio(observation: Observation, _spec: Spec, _env: Env) -> Finding:
    row = thresholds.load().row("C10.pinned_over_pageable")
    rule = row.record()
    ratios = mapping(observation["observed"], "ratio")
    values = {size: number(ratios, size) for size in ratios}
    # The largest copy decides, because launching takes a negligible part of its time.
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
        message = "a non_blocking copy to the host is wrong even after synchronizing"
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
