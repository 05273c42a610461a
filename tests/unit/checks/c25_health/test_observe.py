from __future__ import annotations

from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.nvml import IS_LOST, NO_PERMISSION, NOT_SUPPORTED, TOO_SMALL, Code, session
from tests.support.verdicts import FAIL, PASS, SKIP, WARN, found

c25_health: Any = import_module("envkit.checks.c25_health.observe")
nvml: Any = import_module("envkit.smoke.nvml")

CTX = SimpleNamespace(tried_torch=False, has_cuda=False)
# What an H100 answers that never had a fault: it remaps rows, and knows no retired pages.
HEALTHY: dict[str, Any] = {
    "nvmlDeviceGetRemappedRows": (0, 0, 0, 0),
    "nvmlDeviceGetRowRemapperHistogram": ({"max": 640, "none": 0},),
    "nvmlDeviceGetRetiredPages": Code(NOT_SUPPORTED),
    "nvmlDeviceGetTotalEccErrors": (0,),
    "nvmlDeviceGetSramEccErrorStatus": ({"exceeded": 0},),
    "nvmlDeviceGetEnforcedPowerLimit": (700_000,),
    "nvmlDeviceGetPowerManagementDefaultLimit": (700_000,),
    "nvmlDeviceGetPcieReplayCounter": (0,),
}


def read(monkeypatch: pytest.MonkeyPatch, **answers: Any) -> dict[str, dict[str, Any]]:
    monkeypatch.setattr(nvml, "open_session", lambda: session(**answers))
    return {item["id"].partition(".")[2]: item for item in c25_health.run(CTX)}


def verdicts(items: dict[str, dict[str, Any]]) -> dict[str, tuple[Any, Any]]:
    findings = {
        part: found(
            item["id"], item["observed"], subject="gpu:0", **{k: item[k] for k in ("status", "reason", "controls")}
        )
        for part, item in items.items()
    }
    return {part: (finding.verdict, finding.reason_code) for part, finding in findings.items()}


def test_a_healthy_gpu_passes_every_row_that_it_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    assert verdicts(read(monkeypatch, **HEALTHY)) == {
        "device": (PASS, None),
        "remaps": (PASS, None),
        "pages": (SKIP, "NOT_TOLD"),
        "ecc": (PASS, None),
        "power": (PASS, None),
        "replays": (PASS, None),
    }


@pytest.mark.parametrize(
    ("answers", "part", "expected"),
    [
        ({"nvmlDeviceGetRemappedRows": (0, 1, 1, 0)}, "remaps", (FAIL, "ROW_REMAP_PENDING")),
        ({"nvmlDeviceGetRemappedRows": (0, 1, 0, 1)}, "remaps", (FAIL, "ROW_REMAP_FAILED")),
        ({"nvmlDeviceGetRemappedRows": (3, 1, 0, 0)}, "remaps", (PASS, None)),
        ({"nvmlDeviceGetRowRemapperHistogram": ({"none": 1},)}, "remaps", (WARN, "ROW_REMAP_EXHAUSTED")),
        ({"nvmlDeviceGetRetiredPages": Code(TOO_SMALL, (60,))}, "pages", (FAIL, "PAGES_RETIRED")),
        ({"nvmlDeviceGetRetiredPages": Code(TOO_SMALL, (3,))}, "pages", (PASS, None)),
        (
            {"nvmlDeviceGetRetiredPages": (0,), "nvmlDeviceGetRetiredPagesPendingStatus": (1,)},
            "pages",
            (FAIL, "PAGE_RETIREMENT_PENDING"),
        ),
        # Corrected and uncorrected since the driver was loaded, then both of them ever.
        ({"nvmlDeviceGetTotalEccErrors": [(9,), (2,), (9,), (2,)]}, "ecc", (FAIL, "ECC_UNCORRECTED")),
        ({"nvmlDeviceGetTotalEccErrors": [(9,), (0,), (9,), (2,)]}, "ecc", (WARN, "ECC_UNCORRECTED_BEFORE")),
        ({"nvmlDeviceGetTotalEccErrors": [(9,), (0,), (9,), (0,)]}, "ecc", (PASS, None)),
        ({"nvmlDeviceGetSramEccErrorStatus": ({"exceeded": 1, "ever_parity": 8},)}, "ecc", (FAIL, "SRAM_ERRORS")),
        ({"nvmlDeviceGetEnforcedPowerLimit": (200_000,)}, "power", (WARN, "POWER_LIMIT_LOWERED")),
        ({"nvmlDeviceGetEnforcedPowerLimit": (640_000,)}, "power", (PASS, None)),
        ({"nvmlDeviceGetPcieReplayCounter": (2**31,)}, "replays", (WARN, "PCIE_REPLAYS_BEFORE")),
    ],
)
def test_every_fault_of_the_past_is_named(
    monkeypatch: pytest.MonkeyPatch, answers: dict[str, Any], part: str, expected: tuple[Any, Any]
) -> None:
    before = verdicts(read(monkeypatch, **HEALTHY))
    after = verdicts(read(monkeypatch, **{**HEALTHY, **answers}))
    assert after[part] == expected
    assert {name: after[name] for name in after if name != part} == {
        name: before[name] for name in before if name != part
    }


def test_what_a_gpu_does_not_tell_is_no_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    items = read(
        monkeypatch, nvmlDeviceGetRemappedRows=Code(NOT_SUPPORTED), nvmlDeviceGetTotalEccErrors=Code(NO_PERMISSION)
    )
    assert set(verdicts(items).values()) == {(PASS, None), (SKIP, "NOT_TOLD")}
    assert items["remaps"]["reason"]["message"] == "nvmlDeviceGetRemappedRows: NVML error 3"
    assert items["ecc"]["reason"]["message"] == "nvmlDeviceGetTotalEccErrors: NVML error 4"
    assert items["replays"]["reason"]["message"] == "nvmlDeviceGetPcieReplayCounter: this driver lacks the call"
    assert items["device"]["observed"]["not_told"]["nvmlDeviceGetTotalEccErrors"] == "NVML error 4"


@pytest.mark.parametrize("name", ["nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetRemappedRows"])
def test_a_gpu_that_fell_off_the_bus_is_lost_whichever_call_says_so(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    items = read(monkeypatch, **{**HEALTHY, name: Code(IS_LOST)})
    assert verdicts(items)["device"] == (FAIL, "GPU_LOST")


def test_the_control_notices_a_reader_that_reads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert c25_health.planted_is_read()
    monkeypatch.setattr(c25_health.Health, "power", lambda _self: {"limit_w": 0.0, "default_w": 0.0})
    assert not c25_health.planted_is_read()


def test_without_nvml_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "open_session", lambda: None)
    with pytest.raises(c25_health.Skip) as raised:
        c25_health.run(CTX)
    assert raised.value.code == "NO_NVML"


def test_a_gpu_is_told_by_torchs_number_and_others_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    told = session(nvmlDeviceGetCount_v2=(4,))
    monkeypatch.setattr(c25_health.gpus, "nvml_index", lambda _torch, _session, number: (3, 1, 1)[number])
    cuda = SimpleNamespace(device_count=lambda: 3)
    ctx = SimpleNamespace(tried_torch=True, has_cuda=True, torch=SimpleNamespace(cuda=cuda))
    assert c25_health.devices(ctx, told) == [(0, 3), (1, 1)]
    assert c25_health.devices(CTX, told) == [(0, 0), (1, 1), (2, 2), (3, 3)]
