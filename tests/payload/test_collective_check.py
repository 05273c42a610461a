"""Two processes that add up, run for real, and each way in which they may not."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from envkit.checks.model import Verdict
from tests.support.payloads import finding_of, observe, observer, said

torch: Any = pytest.importorskip("torch", reason="the payload's checks run with torch: pip install '.[bench]'")


def test_two_processes_add_up_and_share_gradients() -> None:
    items = observe("c20_collectives")
    assert said(items["C20.allreduce.gloo"]) == said(items["C20.ddp.gloo"]) == (Verdict.PASS, None)
    assert said(items["C20.bandwidth.nccl"]) == (Verdict.SKIP, "NO_GPU")


def site(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Have every Python that is started import ``text`` first."""
    (folder / "sitecustomize.py").write_text(text)
    known = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(known))


@pytest.mark.long
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


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups have as many seconds as torch takes to be imported here, and some."""
    begin = time.monotonic()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    monkeypatch.setattr(observer("c20_collectives"), "LIMIT_S", 5 + 3 * (time.monotonic() - begin))
    monkeypatch.setattr(observer("c20_collectives"), "LIMIT_OF_A_RANK_S", 0.0)


RANK = "import sys, time\nrank = sys.argv[3] if len(sys.argv) > 3 else None\n"


@pytest.mark.long
@pytest.mark.usefixtures("short")
def test_a_group_that_never_meets_ends_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site(tmp_path, monkeypatch, RANK + "if rank == '1': time.sleep(600)\n")
    item = observe("c20_collectives")["C20.allreduce.gloo"]
    assert said(item) == (Verdict.INCONCLUSIVE, "COLLECTIVE_TIME_LIMIT")
    assert item["observed"]["begun"] == 1
    # With NCCL the same is a hang, because one of the two had begun.
    item["observed"]["backend"] = "nccl"
    assert said(item) == (Verdict.FAIL, "COLLECTIVE_HANGS")


@pytest.mark.long
@pytest.mark.usefixtures("short")
def test_the_rank_that_failed_is_quoted_and_not_the_one_that_waited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site(tmp_path, monkeypatch, RANK + "if rank == '1': sys.exit('CUDA out of memory. Tried to allocate 2 GiB')\n")
    item = observe("c20_collectives")["C20.allreduce.gloo"]
    assert (item["observed"]["outcome"], item["observed"]["rank"]) == ("failed", 1)
    assert said(item) == (Verdict.FAIL, "GPU_OUT_OF_MEMORY")
    assert "failed in rank 1: SystemExit: CUDA out of memory" in finding_of(item).message


def test_processes_that_do_not_get_past_their_imports_are_no_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site(tmp_path, monkeypatch, RANK + "if rank is not None: time.sleep(600)\n")
    monkeypatch.setattr(observer("c20_collectives"), "LIMIT_S", 2.0)
    monkeypatch.setattr(observer("c20_collectives"), "LIMIT_OF_A_RANK_S", 0.0)
    item = observe("c20_collectives")["C20.allreduce.gloo"]
    item["observed"]["backend"] = "nccl"
    assert item["observed"]["begun"] == 0
    assert said(item) == (Verdict.INCONCLUSIVE, "COLLECTIVE_TIME_LIMIT")
