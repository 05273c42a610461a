from __future__ import annotations

from typing import Any

import pytest

from tests.support.judging import observation
from tests.support.records import kernel, record_of
from tests.support.verdicts import CLEAN, ERROR, FAIL, INCONCLUSIVE, NOISY, PASS, SKIP, WARN, found, said

GEN4 = {"gen": 4, "width": 16, "gen_max": 4, "width_max": 16, "busy": True, "c2c": False}
GEN5 = {**GEN4, "gen": 5, "gen_max": 5}
T4 = {**GEN4, "gen": 3, "gen_max": 3}
C2C = {**GEN4, "gen": 5, "gen_max": 5, "c2c": True}
GB10 = {**GEN4, "gen": 1, "width": 1, "gen_max": 1, "width_max": 1, "c2c": False, "integrated": True}
UNKNOWN = {"gen": None, "width": None, "gen_max": None, "width_max": None, "busy": True, "c2c": None}

SAMPLES = {"unit": "ms", "n": 1, "values": [10.0]}


def copied(name: str, rate: float, link: dict[str, Any], noise: dict[str, Any] | None = CLEAN) -> tuple[str, Any]:
    observed = {"gb_per_s": rate, "link": link, "decides": name.endswith("_256MiB")}
    return said(f"C10.{name}", observed, subject="gpu:0", noise=noise, samples=SAMPLES)


@pytest.mark.parametrize(
    ("rate", "link", "expected"),
    [
        (25.9, GEN4, (PASS, None)),
        (52.8, GEN5, (PASS, None)),
        (22.1, GEN4, (PASS, None)),
        (20.0, GEN4, (WARN, "BANDWIDTH_LOW")),
        (9.0, T4, (WARN, "BANDWIDTH_LOW")),
        (15.0, GEN4, (FAIL, "BANDWIDTH_BELOW_FLOOR")),
        (3.78, T4, (FAIL, "BANDWIDTH_BELOW_FLOOR")),
        (25.9, GEN5, (FAIL, "BANDWIDTH_BELOW_FLOOR")),
        (33.0, GEN4, (PASS, None)),
        (33.2, GEN4, (ERROR, "ABOVE_LINK_LIMIT")),
        (1700.0, GEN5, (ERROR, "ABOVE_LINK_LIMIT")),
        (1700.0, UNKNOWN, (ERROR, "ABOVE_LINK_LIMIT")),
        (25.9, UNKNOWN, (WARN, "LINK_UNKNOWN")),
        (330.0, C2C, (PASS, None)),
        (9.0, {**GEN5, "cc_mode": True}, (WARN, "CONFIDENTIAL_COMPUTING")),
        (9.0, {**GEN5, "cc_mode": None}, (FAIL, "BANDWIDTH_BELOW_FLOOR")),
        (25.9, {**GEN4, "gen": 1, "busy": False}, (PASS, None)),
        (15.0, {**GEN4, "gen": 1, "busy": False}, (INCONCLUSIVE, "LINK_READ_IDLE")),
        (8.0, {**GEN4, "gen": 1, "busy": False}, (INCONCLUSIVE, "LINK_READ_IDLE")),
        (7.8, {**GEN4, "gen": 1, "busy": False}, (FAIL, "BANDWIDTH_BELOW_FLOOR")),
        (3.78, {**GEN4, "gen": 1, "busy": False}, (FAIL, "BANDWIDTH_BELOW_FLOOR")),
        (8.3, {**GEN5, "busy": False}, (FAIL, "BANDWIDTH_BELOW_FLOOR")),
        (25.9, {**GEN5, "busy": False}, (FAIL, "BANDWIDTH_BELOW_FLOOR")),
        (40.0, {**GEN5, "busy": False}, (WARN, "BANDWIDTH_LOW")),
        (55.4, {**GEN5, "busy": False}, (PASS, None)),
        (67.0, {**GEN5, "busy": False}, (ERROR, "ABOVE_LINK_LIMIT")),
        (3.78, {**GEN4, "gen": 1, "busy": False, "source": "sysfs"}, (INCONCLUSIVE, "LINK_READ_IDLE")),
        (8.3, {**GEN5, "busy": False, "cc_mode": True}, (WARN, "CONFIDENTIAL_COMPUTING")),
        (3.78, {**GEN4, "gen": 1, "busy": False, "cc_mode": True}, (WARN, "CONFIDENTIAL_COMPUTING")),
        (25.9, {**UNKNOWN, "busy": False}, (WARN, "LINK_UNKNOWN")),
    ],
)
def test_the_deciding_copy_is_held_against_the_link_as_it_was(
    rate: float, link: dict[str, Any], expected: tuple[str, str | None]
) -> None:
    assert copied("h2d_pinned_256MiB", rate, link) == expected


def test_the_way_back_has_a_lower_floor_until_it_is_calibrated() -> None:
    assert copied("d2h_pinned_256MiB", 7.8, T4) == (WARN, "BANDWIDTH_LOW")
    assert copied("d2h_pinned_256MiB", 6.0, T4) == (FAIL, "BANDWIDTH_BELOW_FLOOR")


def test_a_busy_machine_does_not_unmake_a_floor_that_was_reached() -> None:
    assert copied("h2d_pinned_256MiB", 25.9, GEN4, NOISY) == (PASS, None)
    assert copied("h2d_pinned_256MiB", 25.9, GEN4, None) == (PASS, None)


@pytest.mark.parametrize("rate", [20.0, 15.0])
def test_on_a_busy_machine_a_slow_copy_is_inconclusive(rate: float) -> None:
    assert copied("h2d_pinned_256MiB", rate, GEN4, NOISY) == (INCONCLUSIVE, "NOISY")
    assert copied("h2d_pinned_256MiB", rate, GEN4, None) == (INCONCLUSIVE, "NOISY")


@pytest.mark.parametrize(
    ("rate", "link", "expected"),
    [
        (3.4, {**GEN4, "gen": 1}, "3.4 GB/s = 0.85 of PCIe 1.0 x16 as negotiated, 0.11 of PCIe 4.0 x16"),
        (1.7, {**GEN4, "width": 1}, "1.7 GB/s = 0.86 of PCIe 4.0 x1 as negotiated, 0.05 of PCIe 4.0 x16"),
        (3.4, {**GEN5, "gen": 3, "width": 4}, "3.4 GB/s = 0.86 of PCIe 3.0 x4 as negotiated, 0.05 of PCIe 5.0 x16"),
    ],
)
def test_a_link_that_fell_back_is_no_excuse_for_its_rate(rate: float, link: dict[str, Any], expected: str) -> None:
    """The floor was a share of the link as it was, so every one of these passed."""
    observed = {"gb_per_s": rate, "link": link, "decides": True}
    finding = found("C10.h2d_pinned_256MiB", observed, subject="gpu:0", noise=CLEAN, samples=SAMPLES)
    assert (finding.verdict, finding.reason_code) == (FAIL, "BANDWIDTH_BELOW_FLOOR")
    assert finding.message.startswith(expected)


@pytest.mark.parametrize("link", [{**GEN4, "gen": 3}, {**GEN4, "width": 8}])
def test_one_generation_or_half_of_the_lanes_less_is_judged_as_it_is(link: dict[str, Any]) -> None:
    assert copied("h2d_pinned_256MiB", 12.9, link) == (PASS, None)
    assert copied("h2d_pinned_256MiB", 7.0, link) == (FAIL, "BANDWIDTH_BELOW_FLOOR")


@pytest.mark.parametrize(
    ("changed", "rate", "expected"),
    [
        ({"integrated": True}, 55.0, (PASS, None)),
        ({"own_memory": False}, 55.0, (PASS, None)),
        ({"bus": "fpci"}, 55.0, (PASS, None)),
        ({"integrated": True}, 140.0, (PASS, None)),
        ({}, 55.0, (WARN, "LINK_UNKNOWN")),
        ({"source": "sysfs"}, 55.0, (WARN, "LINK_UNKNOWN")),
    ],
)
@pytest.mark.parametrize("size", [1, 256])
def test_a_placeholder_of_a_link_makes_no_error(
    changed: dict[str, Any], rate: float, expected: tuple[Any, Any], size: int
) -> None:
    """GB10 answers Gen1 x1, virtual machines show 2.5 GT/s: 55 GB/s was an ERROR, in 16 findings."""
    link = {**GEN4, "gen": 1, "width": 1, "gen_max": 1, "width_max": 1, **changed}
    clocks = {"event_gb_per_s": rate, "wall_gb_per_s": rate * 0.98}
    observed = {"gb_per_s": rate, "link": link, "decides": size == 256, "clocks": clocks}
    name = f"C10.h2d_pinned_{size}MiB"
    assert said(name, observed, noise=CLEAN, samples=SAMPLES) == (expected if size == 256 else (PASS, None))
    # The GPU's events run twice as fast as the host's clock: then the clock is to blame, whatever the link is.
    wrong = {**observed, "gb_per_s": 280.0, "clocks": {"event_gb_per_s": 280.0, "wall_gb_per_s": 140.0}}
    assert said(name, wrong, noise=CLEAN, samples=SAMPLES) == (ERROR, "ABOVE_LINK_LIMIT")


def test_the_link_is_not_called_slow_where_copies_refute_it() -> None:
    link = {**GEN4, "gen": 1, "width": 4}
    assert said("C10.link", {"link": link, "gb_per_s": 25.0}, noise=CLEAN) == (SKIP, "LINK_UNKNOWN")
    assert said("C10.link", {"link": link, "gb_per_s": 0.9}, noise=CLEAN) == (FAIL, "LINK_DOWNTRAINED")


@pytest.mark.parametrize(
    ("rate", "expected"),
    [
        (346.0, (PASS, None)),
        (200.0, (WARN, "BANDWIDTH_LOW")),
        (55.0, (FAIL, "BANDWIDTH_BELOW_FLOOR")),
        (1.0, (FAIL, "BANDWIDTH_BELOW_FLOOR")),
        (480.0, (ERROR, "ABOVE_LINK_LIMIT")),
    ],
)
def test_chip_to_chip_has_a_floor_and_a_bound(rate: float, expected: tuple[Any, Any]) -> None:
    assert copied("h2d_pinned_256MiB", rate, C2C) == expected


def test_an_error_of_a_rule_that_informs_warns() -> None:
    rate = {"gb_per_s": 1700.0, "link": GEN5, "decides": False}
    curve = observation("C10.h2d_pinned_1MiB", "gpu:0", observed=rate, noise=CLEAN, samples=SAMPLES)
    record = record_of([kernel(), curve])
    assert (record["summary"]["verdict"], record["summary"]["exit_code"]) == ("WARN", 0)
    deciding = {**curve, "id": "C10.h2d_pinned_256MiB", "observed": {**rate, "decides": True}}
    assert record_of([kernel(), deciding])["summary"]["exit_code"] == 6


def test_an_impossible_rate_is_an_error_on_a_busy_machine_too() -> None:
    assert copied("h2d_pinned_256MiB", 1700.0, GEN4, NOISY) == (ERROR, "ABOVE_LINK_LIMIT")


def test_a_rate_without_its_samples_is_not_believed() -> None:
    observed = {"gb_per_s": 25.9, "link": GEN4, "decides": True}
    assert said("C10.h2d_pinned_256MiB", observed, noise=CLEAN) == (ERROR, "MALFORMED_OBSERVATION")


@pytest.mark.parametrize("name", ["h2d_pinned_1MiB", "d2h_pageable_256MiB", "h2d_pageable_64MiB"])
def test_the_rest_of_the_curve_informs_and_is_bounded_above(name: str) -> None:
    finding = found(
        f"C10.{name}", {"gb_per_s": 2.0, "link": GEN4, "decides": name.endswith("256MiB")}, noise=NOISY, samples=SAMPLES
    )
    assert (finding.verdict, finding.rule["gates"]) == (PASS, False)
    assert copied(name, 40.0, GEN4) == (ERROR, "ABOVE_LINK_LIMIT")


def test_the_message_names_rate_share_and_link() -> None:
    observed = {"gb_per_s": 25.9, "link": GEN4, "decides": True}
    finding = found("C10.h2d_pinned_256MiB", observed, noise=CLEAN, samples=SAMPLES)
    assert finding.message == "25.9 GB/s = 0.82 of PCIe 4.0 x16"
    assert finding.metric == {"name": "bandwidth", "value": 25.9, "unit": "GB/s", "better": "higher"}


@pytest.mark.parametrize(
    ("link", "expected"),
    [
        (GEN4, (PASS, None)),
        ({**GEN4, "width": 8}, (WARN, "LINK_DOWNTRAINED")),
        ({**GEN4, "gen": 3}, (WARN, "LINK_DOWNTRAINED")),
        ({**GEN4, "gen": 2}, (FAIL, "LINK_DOWNTRAINED")),
        ({**GEN4, "gen": 3, "width": 8}, (FAIL, "LINK_DOWNTRAINED")),
        ({**GEN4, "width": 1}, (FAIL, "LINK_DOWNTRAINED")),
        ({**GEN4, "width": 1, "source": "sysfs"}, (WARN, "LINK_DOWNTRAINED")),
        (GB10, (SKIP, "NOT_PCIE")),
        ({**GEN4, "gen": 1, "busy": False}, (INCONCLUSIVE, "LINK_READ_IDLE")),
        ({**GEN4, "busy": False}, (PASS, None)),
        ({**GEN4, "busy": False, "source": "sysfs"}, (INCONCLUSIVE, "LINK_READ_IDLE")),
        (UNKNOWN, (SKIP, "LINK_UNKNOWN")),
        (C2C, (SKIP, "NOT_PCIE")),
    ],
)
def test_link(link: dict[str, Any], expected: tuple[str, str | None]) -> None:
    assert said("C10.link", {"link": link}, noise=CLEAN) == expected


@pytest.mark.parametrize(
    ("ratios", "noise", "expected"),
    [
        ({"1": 3.4, "256": 1.5}, CLEAN, (PASS, None)),
        ({"1": 0.5, "256": 1.05}, CLEAN, (PASS, None)),
        ({"1": 3.4, "256": 0.8}, CLEAN, (WARN, "PINNED_SLOWER")),
        ({"1": 3.4, "256": 0.8}, NOISY, (INCONCLUSIVE, "NOISY")),
        ({"1": 3.4, "256": None}, CLEAN, (ERROR, "MALFORMED_OBSERVATION")),
        ({}, CLEAN, (ERROR, "MALFORMED_OBSERVATION")),
    ],
)
def test_the_largest_copy_decides_the_ratio(
    ratios: dict[str, Any], noise: dict[str, Any], expected: tuple[str, str | None]
) -> None:
    assert said("C10.h2d_ratio", {"ratio": ratios, "link": GEN4}, noise=noise) == expected


def test_a_ratio_never_fails_an_image() -> None:
    finding = found("C10.d2h_ratio", {"ratio": {"256": 0.1}, "link": GEN4}, noise=CLEAN)
    assert (finding.verdict, finding.rule["gates"]) == (WARN, False)


@pytest.mark.parametrize(("exact", "expected"), [(True, (PASS, None)), (False, (FAIL, "COPY_WRONG"))])
def test_bytes_come_back_unchanged(exact: bool, expected: tuple[str, str | None]) -> None:
    assert said("C10.integrity", {"exact": exact, "bytes": 268435456}) == expected
    times = {"host_return_ms": 0.1, "finished_ms": 10.0}
    observed = {"d2h_exact_after_sync": exact, "pinned_non_blocking": times, "pageable_non_blocking": times}
    assert said("C10.non_blocking", observed, noise=NOISY) == expected


NEAR = {"nodes": 2, "node": 1, "cpus": "16-31", "cpu": 3, "local_allowed": 16}


@pytest.mark.parametrize("rate", [20.0, 7.5])
def test_a_copy_that_is_slow_from_the_other_socket_alone_is_no_failure(rate: float) -> None:
    observed = {"gb_per_s": rate, "link": GEN4, "decides": True, "placement": NEAR, "local_gb_per_s": 25.9}
    finding = found("C10.h2d_pinned_256MiB", observed, noise=CLEAN, samples=SAMPLES)
    assert (finding.verdict, finding.reason_code) == (WARN, "WRONG_SOCKET")
    assert "taskset -c 16-31 " in finding.advice[0]


@pytest.mark.parametrize(("rate", "local", "code"), [(7.5, 8.0, "BANDWIDTH_BELOW_FLOOR"), (25.9, 26.0, None)])
def test_the_socket_explains_only_what_is_slow_there_and_fast_here(rate: float, local: float, code: str | None) -> None:
    observed = {"gb_per_s": rate, "link": GEN4, "decides": True, "placement": NEAR, "local_gb_per_s": local}
    assert found("C10.h2d_pinned_256MiB", observed, noise=CLEAN, samples=SAMPLES).reason_code == code


def test_a_container_without_a_cpu_near_the_gpu_is_told_which_it_needs() -> None:
    place = {**NEAR, "local_allowed": 0}
    observed = {"gb_per_s": 7.5, "link": GEN4, "decides": True, "placement": place, "local_gb_per_s": None}
    finding = found("C10.h2d_pinned_256MiB", observed, noise=CLEAN, samples=SAMPLES)
    assert (finding.verdict, finding.reason_code) == (FAIL, "BANDWIDTH_BELOW_FLOOR")
    assert finding.advice[0] == "Start the container with --cpuset-cpus=16-31."


def test_with_little_memory_the_copy_of_64_mib_decides() -> None:
    observed = {"gb_per_s": 7.5, "link": GEN4, "decides": True}
    finding = found("C10.h2d_pinned_64MiB", observed, noise=CLEAN, samples=SAMPLES)
    assert (finding.verdict, finding.reason_code) == (FAIL, "BANDWIDTH_BELOW_FLOOR")
