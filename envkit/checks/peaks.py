"""Upper limits of a GPU by its own numbers: operations by its multiprocessors, bytes by its memory bus. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from envkit.checks import thresholds
from envkit.checks.observed import optional_number
from envkit.checks.reading import number

if TYPE_CHECKING:
    from collections.abc import Mapping

    from envkit.checks.thresholds import Threshold

PRODUCT = "gpu.product"
"""The row of thresholds.yaml with the operations per clock of each compute capability, and the floor."""
# Older drivers report a card as "GeForce RTX 2080", newer ones with the vendor in front.
_GEFORCE = ("GeForce", "NVIDIA GeForce")
_TRANSFERS = 2
"""Transfers per cycle of NVML's memory clock: 5120 bits at 2619 MHz are the 3.35 TB/s of an H100's data sheet."""


def product_row() -> Threshold:
    """Return the row with the floor for matrix products in half precision."""
    return thresholds.load().row(PRODUCT)


def without_tensor_cores(capability: object, name: object) -> bool:
    """Whether a GPU has no tensor cores although others of its compute capability do."""
    row = thresholds.load().row("C15.no_tensor_cores")
    return str(capability) == row.text("capability") and re.search(str(row.text("name")), str(name)) is not None


def product_limit(limits: Mapping[str, Any]) -> float | None:
    """Return the most TFLOP/s for float16 or bfloat16 products, or None if one of its factors is unknown."""
    row = product_row()
    per_clock = optional_number(row.values, f"cc{limits.get('capability')}")
    count, clock = optional_number(limits, "multiprocessors"), optional_number(limits, "max_sm_mhz")
    if not per_clock or not count or not clock or without_tensor_cores(limits.get("capability"), limits.get("name")):
        return None
    # GeForce cards accumulate float16 products in float32 at half the rate of workstation cards with the same chip.
    share = row.number("geforce") if str(limits.get("name") or "").startswith(_GEFORCE) else 1.0
    return per_clock * share * count * clock / 1e6  # MHz to TFLOP/s


def power_held(health: Any, top: float | None) -> str:
    """Return the clock at which the power limit holds a GPU under load, or an empty text if it does not.

    Args:
        health: what the GPU reports under load (clock, events), None if unknown.
        top: its highest clock in MHz, None if unknown.
    """
    events = health.get("events") if isinstance(health, dict) else None
    if not isinstance(events, list) or "sw_power_cap" not in events:
        return ""
    clock = number(health.get("sm_mhz"))
    at = "" if clock is None else f" at {clock:.0f} MHz" if top is None else f" at {clock:.0f} of {top:.0f} MHz"
    return f"its power limit holds the clock{at}"


def memory_limit(limits: Mapping[str, Any]) -> float | None:
    """Return GB/s (1e9 bytes) that the memory bus carries, or None if its width or clock is unknown."""
    bits, clock = optional_number(limits, "memory_bits"), optional_number(limits, "memory_mhz")
    return bits / 8 * clock * _TRANSFERS / 1e3 if bits and clock else None  # MB/s to GB/s
