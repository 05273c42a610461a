"""Two processes that add up, run for real, and each way in which they may not."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from envkit.checks.model import Verdict
from tests.support.payloads import finding_of, observe, observer, said

torch: Any = pytest.importorskip("torch", reason="the payload's checks run with torch: pip install envkit[bench]")


def test_two_processes_add_up_and_share_gradients() -> None:
    items = observe("c20_collectives")
    assert said(items["C20.allreduce.gloo"]) == said(items["C20.ddp.gloo"]) == (Verdict.PASS, None)
    assert said(items["C20.bandwidth.nccl"]) == (Verdict.SKIP, "NO_GPU")


def site(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Have every Python that is started import ``text`` first."""
    (folder / "sitecustomize.py").write_text(text)
    known = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(known))


def test_an_all_reduce_that_loses_an_element_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site(
        tmp_path,
        monkeypatch,
        "import torch.distributed as group\n"
        "plain = group.all_reduce\n"
        "def lossy(tensor, *rest, **named):\n"
        "    plain(tensor, *rest, **named)\n"
        "    tensor[-1] -= 1\n"
        "group.all_reduce = lossy\n",
    )
    items = observe("c20_collectives")
    assert said(items["C20.allreduce.gloo"]) == (Verdict.FAIL, "COLLECTIVE_WRONG")
    assert finding_of(items["C20.allreduce.gloo"]).rule["gates"] is True


def test_ddp_that_shares_nothing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site(
        tmp_path,
        monkeypatch,
        "import torch\n"
        "class Alone(torch.nn.Module):\n"
        "    def __init__(self, module, device_ids=None):\n"
        "        super().__init__()\n"
        "        self.module = module\n"
        "    def forward(self, inputs):\n"
        "        return self.module(inputs)\n"
        "torch.nn.parallel.DistributedDataParallel = Alone\n",
    )
    assert said(observe("c20_collectives")["C20.ddp.gloo"]) == (Verdict.FAIL, "DDP_GRADIENT_WRONG")


def test_an_interface_that_does_not_exist_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nosuch0")
    items = observe("c20_collectives")
    assert said(items["C20.allreduce.gloo"]) == (Verdict.FAIL, "SOCKET_INTERFACE")


def test_a_group_that_never_meets_ends_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site(tmp_path, monkeypatch, "import sys, time\nif len(sys.argv) > 3 and sys.argv[3] == '1': time.sleep(60)\n")
    monkeypatch.setitem(observer("c20_collectives").LIMITS_S, "gloo", 5.0)
    items = observe("c20_collectives")
    assert said(items["C20.allreduce.gloo"]) == (Verdict.INCONCLUSIVE, "COLLECTIVE_TIME_LIMIT")
