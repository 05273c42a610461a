"""C04: an assertion on the device ends every client of the multi-process service, so that control is left out there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.payloads import module, observer, ruled
from tests.support.standin import StandIn

check = observer("c04_kernel")
gpus = module("gpus")


@pytest.fixture
def asserted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The programs that were started as the control."""
    started: list[str] = []

    def probe(code: str, _arguments: Any, _limit: float) -> dict[str, Any]:
        if "_assert_async" not in code:
            n = check.ELEMENTS
            answer = {"total": n**2, "last": [2 * n - 5, 2 * n - 3, 2 * n - 1], "planted": n**2 + 1, "init_s": 1.0}
            return {"outcome": "answered", "text": "", "wall_s": 1.0, **answer}
        started.append(code)
        return {"outcome": "answered", "text": "raised CUDA error: device-side assert triggered"}

    monkeypatch.setattr(check, "probe", probe)
    monkeypatch.setattr(check.hostfacts, "device_nodes", lambda _names: ["nvidia0"])
    return started


class Ctx:
    """The context of a run whose torch cannot see the GPU by itself."""

    class torch:  # noqa: N801 - as the attribute is called
        class version:  # noqa: N801
            cuda = "12.6"

    has_cuda = False
    cuda_usable = True

    def __init__(self) -> None:
        self.notes: dict[str, Any] = {}


def controls() -> dict[str, bool]:
    (item,) = check.run(Ctx())
    return {control["name"]: control["held"] for control in item["controls"]}


def test_under_mps_no_assertion_is_raised_and_a_planted_total_is_the_control(
    monkeypatch: pytest.MonkeyPatch, asserted: list[str]
) -> None:
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    assert controls() == {"changed_element_is_noticed": True, "errors_surface": True}
    assert len(asserted) == 1
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/run/mps")
    assert controls() == {"changed_element_is_noticed": True}
    assert len(asserted) == 1


def test_a_sum_that_does_not_follow_its_elements_fails_the_control(
    monkeypatch: pytest.MonkeyPatch, asserted: list[str]
) -> None:
    plain = check.probe

    def same(code: str, arguments: Any, limit: float) -> dict[str, Any]:
        found: dict[str, Any] = plain(code, arguments, limit)
        return {**found, "planted": found.get("total")}

    monkeypatch.setattr(check, "probe", same)
    assert controls()["changed_element_is_noticed"] is False
    del asserted


@pytest.mark.parametrize(
    ("program", "answers", "expected"),
    [
        ("", True, ("INCONCLUSIVE", "GPU_SLOW_TO_START")),
        ("print('ready', flush=True)", True, ("FAIL", "GPU_HANGS")),
        ("", False, ("FAIL", "GPU_HANGS")),
    ],
)
def test_a_slow_start_is_told_from_a_gpu_that_hangs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, program: str, expected: tuple[str, str], *, answers: bool
) -> None:
    if answers:
        standin = StandIn.prepare(tmp_path)
        if not standin.has_driver:
            pytest.skip("needs gcc")
        monkeypatch.setenv("LD_LIBRARY_PATH", str(standin.folder))
    monkeypatch.setattr(check.hostfacts, "device_nodes", lambda _names: ["nvidia0"])
    monkeypatch.setattr(check, "PROBE", f"import time\n{program}\ntime.sleep(3600)\n")
    monkeypatch.setattr(check, "PROBE_LIMIT_S", 2.0)
    (item,) = check.run(Ctx())
    finding = ruled(item)
    assert (finding.verdict, finding.reason_code) == expected


def test_a_control_may_take_as_long_as_the_start_before_it(
    monkeypatch: pytest.MonkeyPatch, asserted: list[str]
) -> None:
    plain, limits = check.probe, []

    def slow(code: str, arguments: Any, limit: float) -> dict[str, Any]:
        limits.append(limit)
        return {**plain(code, arguments, limit), "wall_s": 30.0}

    monkeypatch.setattr(check, "probe", slow)
    ctx = Ctx()
    check.run(ctx)
    assert limits == [check.PROBE_LIMIT_S, 90.0]
    assert ctx.notes == {"cuda_start_s": 1.0}
    del asserted
