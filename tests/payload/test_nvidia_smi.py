"""nvidia-smi is asked only where NVML does not load, and never again once it failed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.payloads import module

noise: Any = module("noise")


@pytest.fixture
def smi(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A nvidia-smi that notes each call and fails where the file `broken` lies beside it."""
    program, log = tmp_path / "nvidia-smi", tmp_path / "calls"
    program.write_text(
        f'#!/bin/sh\necho "$@" >> {log}\n[ -e {tmp_path}/broken ] && exit 9\necho "P0, 0x0000000000000040"\n'
    )
    program.chmod(0o755)
    log.touch()
    monkeypatch.setattr(noise, "_nvidia_smi", {"usable": True})
    monkeypatch.setattr(noise.nvml, "open_session", lambda: None)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return log


def test_without_nvml_nvidia_smi_is_asked_once_for_each_snapshot(smi: Path) -> None:
    states = [noise.gpu_state(None) for _ in range(3)]
    assert [state["clock_events"] for state in states] == [["hw_thermal_slowdown"]] * 3
    assert len(smi.read_text().splitlines()) == 3


def test_one_failure_of_nvidia_smi_is_the_last_call(smi: Path) -> None:
    (smi.parent / "broken").touch()
    assert [noise.gpu_state(None) for _ in range(3)] == [None] * 3
    assert len(smi.read_text().splitlines()) == 1
