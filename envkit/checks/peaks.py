"""What a GPU's own numbers allow at most: operations by its multiprocessors, bytes by its memory bus. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from envkit.checks import thresholds
from envkit.checks.fields import optional_number

if TYPE_CHECKING:
    from collections.abc import Mapping

    from envkit.checks.thresholds import Threshold

PRODUCT = "gpu.product"
"""The row of thresholds.yaml with the operations of each compute capability, and the floor."""
_GEFORCE = ("GeForce", "NVIDIA GeForce")
_TRANSFERS = 2
"""Transfers per cycle of NVML's memory clock: 5120 bits at 2619 MHz are the 3.35 TB/s of an H100's data sheet."""


def product_row() -> Threshold:
    """Return the row that holds the floor of products in half precision."""
    return thresholds.load().row(PRODUCT)


def without_tensor_cores(capability: object, name: object) -> bool:
    """Whether a GPU has none although others of its compute capability do."""
    row = thresholds.load().row("C15.no_tensor_cores")
    return str(capability) == row.text("capability") and re.search(str(row.text("name")), str(name)) is not None


def product_limit(limits: Mapping[str, Any]) -> float | None:
    """Return TFLOP/s that products in float16 or bfloat16 cannot exceed, None where a number for it is unknown."""
    row = product_row()
    each = optional_number(row.values, f"cc{limits.get('capability')}")
    count, clock = optional_number(limits, "multiprocessors"), optional_number(limits, "max_sm_mhz")
    if not each or not count or not clock or without_tensor_cores(limits.get("capability"), limits.get("name")):
        return None
    # GeForce cards add products of float16 up in float32 at half the rate of the same chip for workstations.
    share = row.number("geforce") if str(limits.get("name") or "").startswith(_GEFORCE) else 1.0
    return each * share * count * clock / 1e6


def memory_limit(limits: Mapping[str, Any]) -> float | None:
    """Return GB/s (1e9 bytes) that the memory bus carries, None where its width or its clock is unknown."""
    bits, clock = optional_number(limits, "memory_bits"), optional_number(limits, "memory_mhz")
    return bits / 8 * clock * _TRANSFERS / 1e3 if bits and clock else None
