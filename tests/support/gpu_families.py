"""GPU families as a run observes them: the link, and healthy numbers from data sheets and cited measurements.

The table in docs/reference/checks.md is generated from these rows and the thresholds, and a test judges each row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from envkit.checks import thresholds
from envkit.checks.c10_transfer.judge import link_of
from tests.support.judging import observation
from tests.support.verdicts import CLEAN

Tree = dict[str, Any]
SAMPLES = {"unit": "ms", "n": 1, "values": [10.0]}


def pcie(gen: int, width: int = 16, **changed: Any) -> Tree:
    """Return a link as NVML reports it under load, at its maximum."""
    known = {"gen": gen, "width": width, "gen_max": gen, "width_max": width, "busy": True, "c2c": False}
    return {**known, "source": "nvml", "integrated": False, "own_memory": True, "bus": "pcie", **changed}


# GPUs that use the host's memory: NVML reports Gen1 x1 for GB10, and nothing for Orin and Thor.
PLACEHOLDER = pcie(1, 1, integrated=True, own_memory=False, bus=None)
NOTHING = {**PLACEHOLDER, "gen": None, "width": None, "gen_max": None, "width_max": None, "source": None}
EMULATED = pcie(1, 1, source="sysfs", integrated=None, own_memory=None, bus=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A kind of GPU. Rates are in GB/s, `gain` is float16 over strict float32, `clock` is a share of the top clock."""

    name: str
    cc: str
    link: Tree
    h2d: float
    d2h: float
    gain: float
    clock: float = 0.95
    events: tuple[str, ...] = ()
    expected: Mapping[str, tuple[str, str | None]] = field(default_factory=dict)  # a healthy GPU's, except PASS


_CAP = ("sw_power_cap",)
_LOW = ("WARN", "BANDWIDTH_LOW")
_UNKNOWN = {"h2d": ("WARN", "LINK_UNKNOWN"), "d2h": ("WARN", "LINK_UNKNOWN"), "link": ("SKIP", "LINK_UNKNOWN")}
_ON_HOST = {"link": ("SKIP", "NOT_PCIE")}
FAMILIES = (
    Family(name="Tesla V100", cc="7.0", link=pcie(3), h2d=12.3, d2h=12.9, gain=6.5),
    Family(name="GeForce RTX 2080 Ti", cc="7.5", link=pcie(3), h2d=12.0, d2h=12.5, gain=3.5, clock=0.85),
    Family(
        name="GeForce GTX 1660", cc="7.5", link=pcie(3), h2d=12.0, d2h=12.5, gain=1.0,
        expected={"gain": ("SKIP", "NO_TENSOR_CORES")},
    ),
    Family(
        name="Tesla T4", cc="7.5", link=pcie(3), h2d=9.0, d2h=7.9, gain=4.5, clock=0.45, events=_CAP,
        expected={"h2d": _LOW, "d2h": _LOW},
    ),
    Family(name="Tesla T4 in a slot of 8 lanes", cc="7.5", link=pcie(3, 8), h2d=6.2, d2h=6.4, gain=4.5, clock=0.95),
    Family(name="A100 SXM", cc="8.0", link=pcie(4), h2d=25.9, d2h=25.9, gain=15.0),
    Family(name="A100 PCIe, 250 W", cc="8.0", link=pcie(4), h2d=24.5, d2h=25.5, gain=11.0, clock=0.75, events=_CAP),
    Family(name="A100 MIG 1g", cc="8.0", link=pcie(4), h2d=24.0, d2h=24.5, gain=10.5),
    Family(name="A10G", cc="8.6", link=pcie(4), h2d=24.5, d2h=25.5, gain=3.0),
    Family(name="L4", cc="8.9", link=pcie(4, 8), h2d=12.6, d2h=13.0, gain=4.0, clock=0.5, events=_CAP),
    Family(name="GeForce RTX 3090", cc="8.6", link=pcie(4), h2d=24.8, d2h=26.0, gain=2.4, clock=0.88),
    Family(name="GeForce RTX 4090", cc="8.9", link=pcie(4), h2d=23.9, d2h=26.3, gain=2.7, clock=0.82),
    Family(name="H100 SXM", cc="9.0", link=pcie(5), h2d=55.0, d2h=54.0, gain=12.0, clock=0.75, events=_CAP),
    Family(name="H100 PCIe", cc="9.0", link=pcie(5), h2d=52.0, d2h=52.8, gain=10.5, clock=0.7, events=_CAP),
    Family(name="H200", cc="9.0", link=pcie(5), h2d=55.0, d2h=54.0, gain=12.0, clock=0.8, events=_CAP),
    Family(name="B200", cc="10.0", link=pcie(5), h2d=55.0, d2h=54.0, gain=13.0, clock=0.8, events=_CAP),
    Family(name="GeForce RTX 5090", cc="12.0", link=pcie(5), h2d=54.0, d2h=54.0, gain=2.8, clock=0.84),
    Family(
        name="GH200", cc="9.0", link=pcie(5, c2c=True), h2d=346.0, d2h=290.0, gain=12.0, expected=_ON_HOST
    ),
    Family(
        name="GB200", cc="10.0", link=pcie(5, c2c=True), h2d=346.0, d2h=290.0, gain=13.0, expected=_ON_HOST
    ),
    Family(
        name="GH200, driver without C2C calls", cc="9.0", link=pcie(5, c2c=None), h2d=346.0, d2h=290.0, gain=12.0,
        expected=_UNKNOWN,
    ),
    Family(name="GB10 (DGX Spark)", cc="12.1", link=PLACEHOLDER, h2d=55.0, d2h=58.0, gain=4.0, expected=_ON_HOST),
    Family(name="Jetson AGX Orin", cc="8.7", link=NOTHING, h2d=30.0, d2h=30.0, gain=4.0, expected=_ON_HOST),
    Family(name="Jetson Thor", cc="11.0", link=NOTHING, h2d=60.0, d2h=60.0, gain=4.0, expected=_ON_HOST),
    Family(
        name="virtual machine, emulated link", cc="8.0", link=EMULATED, h2d=24.0, d2h=25.0, gain=12.0,
        expected=_UNKNOWN,
    ),
)  # fmt: skip


def rate(family: Family, direction: str, value: float, **link: Any) -> Tree:
    """Return the observation of the deciding copy in one direction, with fields of the link changed."""
    clocks = {"event_gb_per_s": value, "wall_gb_per_s": value * 0.98}
    observed = {"gb_per_s": value, "link": {**family.link, **link}, "decides": True, "clocks": clocks}
    return observation(f"C10.{direction}_pinned_256MiB", "gpu:0", observed=observed, noise=CLEAN, samples=SAMPLES)


def link(family: Family, value: float | None = None, **changed: Any) -> Tree:
    """Return the observation of the link, with the rate that copies reached."""
    observed = {"link": {**family.link, **changed}, "gb_per_s": family.h2d if value is None else value}
    return observation("C10.link", "gpu:0", observed=observed, noise=CLEAN)


def gain(family: Family, value: float) -> Tree:
    """Return the observation of a float16 product that is `value` times as fast as in float32."""
    observed = {"precision": "fp16", "size": 4096, "capability": family.cc, "name": f"NVIDIA {family.name}"}
    observed |= {"tflops": 20 * value, "tflops_fp32": 20.0, "over_fp32": value, "output_dtype": "float16"}
    return observation("C15.gemm.fp16", "gpu:0", observed=observed, noise=CLEAN)


def clock(family: Family, share: float) -> Tree:
    """Return the observation of a minute of load at a share of the top clock."""
    rows = [{"sm_mhz": 2000 * share, "celsius": 60, "watts": 300.0, "events": list(family.events)}] * 9
    observed = {"seconds": 60.0, "max_sm_mhz": 2000, "rows": rows, "xids": [], "uncorrected_ecc": 0, "pcie_replays": 0}
    return observation("C24.telemetry", "gpu:0", observed=observed)


def healthy(family: Family) -> dict[str, Tree]:
    """Return the observations of a healthy GPU, by what they measure."""
    return {
        "h2d": rate(family, "h2d", family.h2d),
        "d2h": rate(family, "d2h", family.d2h),
        "link": link(family),
        "gain": gain(family, family.gain),
        "clock": clock(family, family.clock),
    }


def table() -> str:
    """Return the Markdown table of each family's thresholds."""
    head = (
        "GPU (compute capability)",
        "link",
        "H2D, GB/s: FAIL below, PASS from",
        "D2H, GB/s",
        "fp16 over fp32: FAIL, WARN below",
        "clock: FAIL, WARN below",
    )
    lines = [f"| {' | '.join(head)} |", "|---|---|---|---|---|---|"]
    lines += [
        f"| {family.name} ({family.cc}) | {_named(family)} | {_floor(family, 'h2d')} | {_floor(family, 'd2h')} "
        f"| {_gain(family)} | {_clock(family)} |"
        for family in FAMILIES
    ]
    return "\n".join(lines) + "\n"


def _named(family: Family) -> str:
    link = link_of(family.link)
    return "the host's memory" if link.kind == "integrated" else "not known" if _is_unknown(family) else link.name


def _is_unknown(family: Family) -> bool:
    return family.expected.get("h2d") == ("WARN", "LINK_UNKNOWN")


def _floor(family: Family, direction: str) -> str:
    link, rows = link_of(family.link), thresholds.load()
    if link.base is None or _is_unknown(family):
        return "none"
    row = rows.row("C10.coherent" if link.kind == "c2c" else f"C10.{direction}_pinned")
    return f"{link.base * row.number('fail_below'):.1f}, {link.base * row.number('pass'):.1f}"


def _gain(family: Family) -> str:
    if "gain" in family.expected:
        return "no tensor cores"
    rows = thresholds.load()
    usual = rows.row("C15.expected").values.get(f"cc{family.cc}")
    return f"{rows.row('C15.tensor_cores').number('fail_below'):g}, {'-' if usual is None else f'{usual:g}'}"


def _clock(family: Family) -> str:
    row = thresholds.load().row("C24.clock")
    warn = row.number("warn_below_geforce" if "GeForce" in family.name else "warn_below")
    return f"{row.number('fail_below'):g}, {warn:g}"
