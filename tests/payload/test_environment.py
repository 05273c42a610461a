"""The environment in the record: one part that cannot be read leaves the others, whatever sets precision."""

from __future__ import annotations

import json
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from envkit.verify.record import fingerprint
from tests.support.nvml import session
from tests.support.payloads import module

torch: Any = pytest.importorskip("torch", reason="the payload's checks run with torch: pip install '.[bench]'")

env: Any = module("env")
# torch keeps for good which of its two interfaces was used, so this runs in a process of its own.
NEW_INTERFACE = """
import json, torch
torch.backends.cuda.matmul.fp32_precision = "tf32"
from envkit.smoke import context, env
print(json.dumps(env.collect(context.Ctx({}))))
"""


@pytest.mark.skipif(not hasattr(torch.backends.cuda.matmul, "fp32_precision"), reason="begins with torch 2.9")
def test_tf32_set_by_the_new_interface_leaves_the_environment_whole() -> None:
    done = subprocess.run([sys.executable, "-c", NEW_INTERFACE], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert set(found) == {"host", "gpu", "sw", "flags"}
    assert (found["flags"]["matmul_precision"], found["flags"]["fp32"]["matmul"]) == (None, "tf32")


@pytest.mark.skipif(not hasattr(torch.backends.cuda.matmul, "allow_fp16_accumulation"), reason="begins with torch 2.7")
def test_accumulation_in_float16_is_another_policy() -> None:
    matmul, prints = torch.backends.cuda.matmul, []
    before = matmul.allow_fp16_accumulation
    try:
        for value in (False, True):
            matmul.allow_fp16_accumulation = value
            found = env.collect(module("context").Ctx({}))
            assert found["flags"]["fp32"]["allow_fp16_accumulation"] is value
            prints.append(fingerprint(found, tier="quick", suite_sha256="x")["policy"])
    finally:
        matmul.allow_fp16_accumulation = before
    assert prints[0] != prints[1]


@pytest.mark.parametrize("part", ["host", "cards", "software", "flags"])
def test_a_part_that_raises_leaves_the_others(monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("the driver is gone")

    monkeypatch.setattr(env, part, broken)
    found = env.collect(module("context").Ctx({}))
    name = {"cards": "gpu", "software": "sw"}.get(part, part)
    assert found["errors"] == {name: "RuntimeError: the driver is gone"}
    assert not found[name]
    assert all(found[other] for other in ("host", "sw", "flags") if other != name)


def test_a_slice_is_told_from_its_whole_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = session(
        nvmlDeviceGetName="NVIDIA A100-SXM4-40GB",
        nvmlDeviceGetMemoryInfo=({"total": 40 << 30},),
        nvmlDeviceGetHandleByPciBusId_v2=(1,),
        nvmlDeviceGetIndex=(0,),
    )
    monkeypatch.setattr(env.nvml, "open_session", lambda: driver)
    shared = {"uuid": "aaaa", "pci_bus_id": 59, "pci_device_id": 0}
    properties = SimpleNamespace(multi_processor_count=14, total_memory=5 << 30, **shared)
    cuda = SimpleNamespace(device_count=lambda: 1, get_device_properties=lambda _index: properties)
    (card,) = env.cards(SimpleNamespace(has_cuda=True, torch=SimpleNamespace(cuda=cuda)))
    assert (card["name"], card["mem_mib"]) == ("NVIDIA A100-SXM4-40GB", 40960)
    assert (card["sms"], card["torch_mem_mib"]) == (14, 5120)
