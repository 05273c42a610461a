from typing import Any

import pytest

from envkit.checks.case import Case
from envkit.checks.catalog import judges
from tests.support.judging import observation
from tests.support.verdicts import ERROR, FAIL, PASS, WARN, found, said

LOAD = {
    "compared": 3750,
    "seconds": 60.2,
    "products": 30000,
    "different": 0,
    "tflops_first": 600.0,
    "tflops_last": 588.0,
}


def row(**changed: Any) -> dict[str, Any]:
    return {"at_s": 1.0, "sm_mhz": 1900, "celsius": 60, "watts": 500.0, "events": [], **changed}


def telemetry(*rows: dict[str, Any], **changed: Any) -> dict[str, Any]:
    found_rows = list(rows) or [row()] * 9
    return {
        "seconds": 60.0,
        "max_sm_mhz": 1980,
        "rows": found_rows,
        "xids": [],
        "uncorrected_ecc": 0,
        "pcie_replays": 0,
        **changed,
    }


def test_a_minute_without_a_change_passes() -> None:
    finding = found("C24.load", LOAD)
    assert finding.message == "30000 equal products (3750 compared) in 60 s; 600 TFLOP/s at start, 588 at end"
    assert finding.derived["last_over_first"] == pytest.approx(0.98)
    assert said("C24.load", {**LOAD, "different": 1}) == (FAIL, "RESULTS_CHANGE_UNDER_LOAD")


@pytest.mark.parametrize(
    ("observed", "expected"),
    [
        (telemetry(), (PASS, None)),
        (telemetry(xids=[79]), (FAIL, "XID")),
        (telemetry(uncorrected_ecc=1), (FAIL, "ECC_UNCORRECTED")),
        (telemetry(pcie_replays=80), (PASS, None)),
        (telemetry(pcie_replays=81), (FAIL, "PCIE_REPLAYS")),
        (telemetry(row(sm_mhz=1400)), (WARN, "CLOCK_LOW")),
        (telemetry(row(sm_mhz=1400, events=["sw_power_cap"])), (PASS, None)),
        (telemetry(row(sm_mhz=146, events=["sw_power_cap"])), (FAIL, "CLOCK_COLLAPSED")),
        (telemetry(row(events=["hw_thermal_slowdown"])), (WARN, "CLOCK_SLOWED")),
        (telemetry(row(sm_mhz=None)), (PASS, None)),
        (telemetry(rows=[]), (ERROR, "MALFORMED_OBSERVATION")),
        (telemetry(rows=[], xids=[79]), (FAIL, "XID")),
        (telemetry(rows=[row(events="x")]), (ERROR, "MALFORMED_OBSERVATION")),
    ],
)
def test_only_faults_of_the_device_count(observed: dict[str, Any], expected: tuple[Any, Any]) -> None:
    assert said("C24.telemetry", observed) == expected
    assert found("C24.telemetry", observed).rule.get("gates", False) is (expected[0] is FAIL)


def test_the_cold_first_third_does_not_count() -> None:
    rows = [row(sm_mhz=300)] * 3 + [row()] * 6
    assert said("C24.telemetry", telemetry(*rows)) == (PASS, None)


def test_a_container_that_cannot_hear_xids_says_so() -> None:
    assert found("C24.telemetry", telemetry(xids=None)).message.endswith(
        "Xid messages cannot be read in this container"
    )


@pytest.mark.parametrize(
    ("name", "mhz", "expected"),
    [
        ("NVIDIA GeForce RTX 4090", 2400, (PASS, None)),
        ("NVIDIA GeForce RTX 4090", 1900, (WARN, "CLOCK_LOW")),
        ("NVIDIA GeForce RTX 4090", 600, (FAIL, "CLOCK_COLLAPSED")),
        ("NVIDIA A10G", 2400, (WARN, "CLOCK_LOW")),
    ],
)
def test_a_geforce_tells_the_top_of_its_curve_and_not_its_boost(name: str, mhz: int, expected: tuple[Any, Any]) -> None:
    observed = telemetry(row(sm_mhz=mhz), max_sm_mhz=3105)
    finding = judges()["C24"](Case(observation("C24.telemetry", observed=observed), {}, {"gpu": [{"name": name}]}))
    assert (finding.verdict, finding.reason_code) == expected
