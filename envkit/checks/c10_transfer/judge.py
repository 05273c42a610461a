"""C10: are copies between host and device exact, and as fast as the link allows?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from envkit.checks import thresholds
from envkit.checks.model import Verdict
from envkit.checks.observed import flag, mapping, number, optional_number

if TYPE_CHECKING:
    from collections.abc import Mapping

    from envkit.checks.case import Case
    from envkit.checks.model import Finding

_SLOW = (
    "Run on the GPU's own socket (numactl --cpunodebind), and look for a slot with fewer lanes: nvidia-smi topo -m",
    "In a virtual machine, ask for the GPU's full link; in confidential-computing mode copies are slower by design.",
)
_RESEAT = (
    "Reseat the card or riser, and look at the slot's lanes and speed in the firmware settings.",
    "A GPU in an external enclosure has at most four lanes, so this link is normal there.",
)
_CORRUPT = "The GPU or its link corrupts data: run dcgmi diag -r 3 on the host."
_AGAIN = "Run it again."
_IMPOSSIBLE_GB_S = 1700.0
"""Measured with an unsynchronized clock for a 400 MB copy over PCIe. The upper bound must reject it."""


def judge(case: Case) -> Finding:
    """Judge one copy, the link, a ratio, a non_blocking copy or the integrity of the bytes."""
    parts = {"integrity": _integrity, "link": _link, "non_blocking": _non_blocking}
    return parts.get(case.part, _ratio if case.part.endswith("_ratio") else _copy)(case)


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


def _copy(case: Case) -> Finding:
    rate, raw = case.value("gb_per_s"), case.mapping("link")
    mapping(case.observation, "samples")  # a rate without its samples cannot be recomputed, so it is not believed
    link = link_of(raw)
    deciding = case.flag("decides") and "_pinned" in case.part
    if deciding:
        case.use("C10.coherent" if link.kind == "c2c" else f"C10.{case.part.partition('_')[0]}_pinned")
    else:
        case.use("C10.curve", type="informs")
    # Without a known link, only a rate above that of the fastest link is impossible.
    bound = case.number("error_above") * (thresholds.load().fastest_link() if link.limit is None else link.limit)
    if bound >= _IMPOSSIBLE_GB_S:
        case.amend(gates=True)
        return case.error("CONTROL_FAILED", f"a bound of {bound:.0f} GB/s rejects nothing")
    case.metric("bandwidth", rate, "GB/s", "higher")
    case.derive(limit=link.limit, fraction_of_limit=rate / link.limit if link.limit else None)
    above = rate > bound
    if above and not _reading_is_wrong(case, raw):
        message = f"{rate:.1f} GB/s is more than any such link carries ({bound:.1f} GB/s): the clock is wrong"
        advice = "Report this with the record (envkit verify -o FILE): this rate is impossible."
        return case.error("ABOVE_LINK_LIMIT", message, advice)
    return _deciding(case, rate, link, above=above) if deciding else case.passed(f"{rate:.1f} GB/s")


def _deciding(case: Case, rate: float, link: Link, *, above: bool) -> Finding:
    """Judge the copy that decides. `above`: the rate is above the link's limit by two clocks, so the limit is wrong."""
    raw = case.mapping("link")
    read_idle = link.kind == "pcie" and link.limit is None and raw.get("busy") is False and raw.get("gen") is not None
    base = link.most if read_idle else link.base
    if read_idle and (base is None or not _decided_by_any_link(case, rate, base)):
        message = f"{rate:.1f} GB/s; the link was only read while idle, when it is slower, so there is no floor"
        return case.inconclusive("LINK_READ_IDLE", message, _AGAIN)
    if above or base is None:
        return _without_limit(case, rate, link)
    return _against_floor(case, rate, base, _share(rate, link))


def _against_floor(case: Case, rate: float, base: float, message: str) -> Finding:
    local, floor = case.optional("local_gb_per_s"), case.number("pass")
    failed = rate / base < case.number("fail_below")
    if rate / base >= floor and not failed:
        return case.passed(message)
    advice: tuple[str, ...] = _SLOW
    placement = case.observed.get("placement")
    if isinstance(placement, dict) and isinstance(placement.get("cpus"), str):
        # The scheduler chooses the socket that a process starts on: that says nothing about the image or the machine.
        node = f"NUMA node {placement['node']}" if placement.get("node") is not None else "its own socket"
        if local is not None and local >= base * floor:
            message = f"{message}; {local:.1f} GB/s from the CPUs of {node}, where the GPU is"
            near = f"Run on the GPU's own socket: taskset -c {placement['cpus']} COMMAND"
            return case.warn("WRONG_SOCKET", message, near)
        if placement.get("local_allowed") == 0:
            message = f"{message}; the container may use no CPU of {node}, where the GPU is"
            advice = (f"Start the container with --cpuset-cpus={placement['cpus']}.", *advice)
    if not failed:
        return case.warn("BANDWIDTH_LOW", message, *advice)
    # Encrypted copies go through a bounce buffer, so they are slow on a healthy machine.
    if case.mapping("link").get("cc_mode") is True:
        encrypted = f"{message}, with every copy encrypted (confidential computing)"
        return case.warn("CONFIDENTIAL_COMPUTING", encrypted, *advice)
    return case.fail("BANDWIDTH_BELOW_FLOOR", message, *advice)


def _decided_by_any_link(case: Case, rate: float, most: float) -> bool:
    """Whether a rate has the same verdict for every link that floors may refer to: from half of the maximum to all."""
    return rate < case.number("fail_below") * most / 2 or rate >= case.number("pass") * most


def _share(rate: float, link: Link) -> str:
    if link.limit is None:
        assert link.most is not None
        share = f"{rate:.1f} GB/s = {rate / link.most:.2f} of {link.most_name}, which slot and card support"
        return f"{share}; the link was only read while idle"
    share = f"{rate:.1f} GB/s = {rate / link.limit:.2f} of {link.name}"
    if link.most is None or link.limit >= link.most:
        return share
    return f"{share} as negotiated, {rate / link.most:.2f} of {link.most_name}, which slot and card support"


def _reading_is_wrong(case: Case, link: Mapping[str, Any]) -> bool:
    """Whether a rate above the link's limit shows that the link was misread, and not that the clock is wrong.

    Two independent clocks, the GPU's events and the host's, timed the same copies.
    """
    clocks = case.observed.get("clocks")
    if not isinstance(clocks, dict):
        return link.get("source") == "sysfs"
    by_event, by_wall = number(clocks, "event_gb_per_s"), number(clocks, "wall_gb_per_s")
    return by_event <= by_wall * case.number("clocks_differ_above", "C10.curve")


def _without_limit(case: Case, rate: float, link: Link) -> Finding:
    case.amend(gates=False)
    if link.kind == "integrated":
        return case.passed(f"{rate:.1f} GB/s within {link.name}, for which there is no floor")
    if link.limit is not None:
        message = f"{rate:.1f} GB/s by two clocks, more than {link.name} carries: the reported link is wrong"
        advice = "Compare the rate with the GPU's data sheet; a virtual machine may report an emulated link."
    else:
        message = f"{rate:.1f} GB/s; the link's generation and width are unknown here, so there is no floor"
        advice = "Start the container with NVIDIA_DRIVER_CAPABILITIES=compute,utility, so that the link can be read."
    return case.warn("LINK_UNKNOWN", message, advice)


def _link(case: Case) -> Finding:
    raw = case.mapping("link")
    link = link_of(raw)
    case.use("C10.link", gen_max=raw.get("gen_max"), width_max=raw.get("width_max"))
    if link.kind != "pcie":
        return case.skip("NOT_PCIE", f"the GPU reaches the host over {link.name}")
    now = _pcie(optional_number(raw, "gen"), optional_number(raw, "width"))[1]
    most = _pcie(optional_number(raw, "gen_max"), optional_number(raw, "width_max"))[1]
    if now is None or most is None:
        return case.skip("LINK_UNKNOWN", "the link cannot be read in this container")
    busy = flag(raw, "busy")
    if not busy and link.limit is None:
        message = "the copies ended before the link was read, and an idle link does not show its speed"
        return case.inconclusive("LINK_READ_IDLE", message, _AGAIN)
    rate = case.optional("gb_per_s")
    if rate is not None and rate > now * case.number("error_above", "C10.curve"):
        return case.skip("LINK_UNKNOWN", f"the link is reported as {link.name}, but copies reach {rate:.1f} GB/s")
    share = now / most
    if share < case.number("pass"):
        # The sysfs of a virtual machine shows a link that the hypervisor emulates.
        failed = share < case.number("fail_below") and raw.get("source") != "sysfs"
        message = f"{link.name} under load, although GPU and slot support {link.most_name}"
        return case.finding(Verdict.FAIL if failed else Verdict.WARN, "LINK_DOWNTRAINED", message, *_RESEAT)
    return case.passed(f"{link.name} {'under load' if busy else 'while idle'}, its maximum")


def _ratio(case: Case) -> Finding:
    case.use("C10.pinned_over_pageable")
    ratios = case.mapping("ratio")
    values = {size: number(ratios, size) for size in ratios}
    # The largest copy decides, because launching takes a negligible part of its time.
    decisive = values[max(values, key=int)]
    message = f"pinned over pageable: {', '.join(f'{size} MiB {value:.2f}' for size, value in values.items())}"
    case.metric("pinned_over_pageable", decisive, "1", "higher")
    if decisive < case.number("warn_below"):
        advice = "Pinned memory is slower than pageable here: measure pin_memory=False in your own loop."
        return case.warn("PINNED_SLOWER", message, advice)
    return case.passed(message)


def _non_blocking(case: Case) -> Finding:
    case.rule("equals", d2h_exact_after_sync=True)
    if not case.flag("d2h_exact_after_sync"):
        return case.fail("COPY_WRONG", "a non_blocking copy to the host is wrong even after synchronizing", _CORRUPT)
    pinned, pageable = case.mapping("pinned_non_blocking"), case.mapping("pageable_non_blocking")
    returned, finished = number(pinned, "host_return_ms"), number(pinned, "finished_ms")
    early = 1 - returned / finished if finished else 0.0
    case.derive(host_free_share=early, pageable_host_return_ms=number(pageable, "host_return_ms"))
    return case.passed(f"the host is free for {early:.0%} of a pinned non_blocking copy; exact after synchronizing")


def _integrity(case: Case) -> Finding:
    case.rule("equals", exact=True)
    size = case.value("bytes")
    if not case.flag("exact"):
        return case.fail("COPY_WRONG", f"{size:.0f} bytes came back changed", _CORRUPT)
    return case.passed(f"{size:.0f} bytes copied to the device and back unchanged")
