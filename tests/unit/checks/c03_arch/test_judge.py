from __future__ import annotations

from typing import Any

import pytest

from tests.support.verdicts import FAIL, PASS, SKIP, WARN, found, said

CU126 = ["sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90", "compute_90"]
CU128 = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120"]


@pytest.mark.parametrize(
    ("flags", "spec", "expected"),
    [
        (CU126, {"gpu_archs": ["8.0", "9.0"], "ptx": ["9.0"]}, (PASS, None)),
        (["sm_80", "sm_90a"], {"gpu_archs": ["8.0", "9.0"], "ptx": []}, (PASS, None)),
        (CU128, {"gpu_archs": ["7.0"], "ptx": []}, (FAIL, "ARCH_MISSING")),
        ([], {"gpu_archs": ["8.0"], "ptx": []}, (FAIL, "ARCH_MISSING")),
        (CU128, {"gpu_archs": ["8.0"], "ptx": ["9.0"]}, (WARN, "PTX_MISSING")),
        ([], {"gpu_archs": None, "ptx": None}, (SKIP, "NOT_PROMISED")),
    ],
)
def test_archs(flags: list[str], spec: dict[str, Any], expected: tuple[str, str | None]) -> None:
    assert said("C03.archs", {"arch_list": flags, "cuda": "12.6"}, spec) == expected


DRIVER = {"minimum": "525.60.13", "native": "560.28.03"}


@pytest.mark.parametrize(
    ("driver", "cuda", "promised", "expected"),
    [
        ("560.28.03", "12.6", DRIVER, (PASS, None)),
        ("525.60.13", "12.6", DRIVER, (PASS, None)),
        ("525.60.11", "12.6", DRIVER, (FAIL, "DRIVER_TOO_OLD")),
        ("470.57.02", "12.1", None, (FAIL, "DRIVER_TOO_OLD")),
        ("450.80.02", "11.8", None, (PASS, None)),
        ("575.51.03", "13.0", None, (FAIL, "DRIVER_TOO_OLD")),
        ("580.95.05", "13.0", None, (PASS, None)),
        ("580.95.05", None, None, (SKIP, "NOT_PROMISED")),
        ("580.95.05", "10.2", None, (SKIP, "NOT_PROMISED")),
    ],
)
def test_driver(
    driver: str, cuda: str | None, promised: dict[str, str] | None, expected: tuple[str, str | None]
) -> None:
    observed = {"driver": driver, "cuda": cuda, "compat_loaded": False, "device_name": "NVIDIA A100"}
    assert said("C03.driver", observed, {"driver": promised}) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [("NVIDIA A100-SXM4-40GB", (PASS, None)), ("NVIDIA GeForce RTX 4090", (FAIL, "DRIVER_TOO_OLD"))],
)
def test_cuda_compat_stands_in_on_data_centre_cards_only(name: str, expected: tuple[str, str | None]) -> None:
    observed = {"driver": "470.57.02", "cuda": "12.1", "compat_loaded": True, "device_name": name}
    assert said("C03.driver", observed, {}) == expected


@pytest.mark.parametrize(
    ("driver", "mode"), [("530.30.02", "minor-compatible"), ("560.28.03", "native"), ("580.95.05", "native")]
)
def test_the_mode_of_the_driver_is_kept(driver: str, mode: str) -> None:
    observed = {"driver": driver, "cuda": "12.6", "compat_loaded": False}
    assert found("C03.driver", observed, {"driver": DRIVER}).derived == {"mode": mode}


@pytest.mark.parametrize(
    ("cc", "flags", "ceiling", "expected"),
    [
        ("8.0", CU126, "12.8", (PASS, None)),
        ("8.9", CU126, "12.8", (PASS, None)),
        ("12.0", CU126, "12.8", (WARN, "PTX_JIT")),
        ("12.0", CU126, None, (WARN, "PTX_JIT")),
        ("12.0", CU126, "12.4", (FAIL, "PTX_NEEDS_NEWER_DRIVER")),
        ("7.0", CU128, "12.8", (FAIL, "NO_KERNEL_IMAGE")),
        ("8.0", [], "12.8", (FAIL, "NO_KERNEL_IMAGE")),
    ],
)
def test_device(cc: str, flags: list[str], ceiling: str | None, expected: tuple[str, str | None]) -> None:
    observed = {"cc": cc, "name": "a card", "arch_list": flags, "cuda": "12.6", "driver_ceiling": ceiling}
    assert said("C03.device", observed, {}, subject="gpu:0") == expected


@pytest.mark.parametrize(
    ("index", "every", "expected"),
    [
        (0, ["6.1", "8.9"], (FAIL, "NO_KERNEL_IMAGE")),
        (1, ["8.9", "6.1"], (WARN, "NO_KERNEL_IMAGE")),
        (1, ["6.1", "6.1"], (FAIL, "NO_KERNEL_IMAGE")),
    ],
)
def test_an_old_card_beside_a_supported_one_fails_only_as_the_first(
    index: int, every: list[str], expected: tuple[str, str | None]
) -> None:
    """An RTX 4090 with an old display card failed the image, though torch works on it."""
    observed: dict[str, Any] = {"cc": "6.1", "name": "a card", "arch_list": CU128, "cuda": "12.8"}
    observed |= {"driver_ceiling": "12.8", "index": index, "all_cc": every}
    assert said("C03.device", observed, {}, subject=f"gpu:{index}") == expected


@pytest.mark.parametrize("driver", ["35.3.1", "36.4.0"])
def test_the_driver_of_a_jetson_is_numbered_apart(driver: str) -> None:
    observed = {"driver": driver, "cuda": "12.6", "compat_loaded": False}
    assert said("C03.driver", observed, {"driver": DRIVER}) == (SKIP, "JETSON_DRIVER")
