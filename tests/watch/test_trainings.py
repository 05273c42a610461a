"""Real trainings on a CPU torch below `watch`: what is slow in one known way is named, whatever happens to it.

What the advice brings, and what `watch` costs, is measured by `python -m benchmarks.watch`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from benchmarks.watch import SLOW, named, own_kinds, promise
from envkit.watch.judge import Answer, judge
from envkit.watch.model import Record, read

pytest.importorskip("torch")
pytestmark = pytest.mark.long

SECONDS = 6.0


@pytest.mark.parametrize("name", [name for name in SLOW if name != "oversubscribed"])
def test_a_slow_training_is_named_and_its_advice_given(name: str) -> None:
    judgment = named(name, SECONDS)
    assert SLOW[name].kind in own_kinds(judgment)
    assert promise(name, judgment) is not None


def watched(tmp_path: Path, code: str, *, exit_code: int = 0) -> Record:
    """The record of a training in a file of its own."""
    script, out = tmp_path / "train.py", tmp_path / "record.json"
    script.write_text(textwrap.dedent(code))
    command = [sys.executable, "-m", "envkit", "watch", "-o", str(out), "--", sys.executable, str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == exit_code, done.stderr
    return read(out)


START = """
    import os, signal, sys, time
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    model = torch.nn.Linear(8, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    data = TensorDataset(torch.randn(320, 8), torch.zeros(320, dtype=torch.long))

    def step(inputs, labels):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
"""


@pytest.mark.parametrize(
    ("end", "code"),
    [("os.kill(os.getpid(), signal.SIGKILL)", 137), ("raise RuntimeError('it crashed')", 1), ("os._exit(9)", 9)],
)
def test_of_a_training_that_ends_badly_the_record_is_there_up_to_its_end(tmp_path: Path, end: str, code: int) -> None:
    training = f"""{START}
    for batch in DataLoader(data, batch_size=8):
        step(*batch)
    {end}
    """
    (rank,) = watched(tmp_path, training, exit_code=code).ranks
    assert rank.steps == 40 - 5
    assert rank.total("next").count >= 35


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_are_recorded_however_they_are_started(tmp_path: Path, method: str) -> None:
    training = f"""{START}
    if __name__ == "__main__":
        for batch in DataLoader(data, batch_size=8, num_workers=2, multiprocessing_context={method!r}):
            step(*batch)
    """
    record = watched(tmp_path, training)
    (rank,) = record.ranks
    makers = [one for one in record.processes if one.total("fetch").count]
    assert sum(one.total("fetch").count for one in makers) == 40
    assert (len(makers), rank.fact("loader", "start_method")) == (2, method)
    assert all(one.pid != rank.pid for one in makers)


def test_ranks_of_torchrun_have_a_stream_each(tmp_path: Path) -> None:
    script, out = tmp_path / "train.py", tmp_path / "record.json"
    code = f"""{START}
    torch.distributed.init_process_group("gloo")
    for inputs, labels in DataLoader(data, batch_size=8):
        step(inputs, labels)
        torch.distributed.all_reduce(model.weight.data)
    torch.distributed.destroy_process_group()
    """
    script.write_text(textwrap.dedent(code))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    command = [sys.executable, "-m", "envkit", "watch", "-o", str(out), "--", *torchrun]
    subprocess.run(command, capture_output=True, check=True, timeout=300, env=dict(os.environ))
    ranks = read(out).ranks
    assert [(one.rank, one.world_size, one.steps) for one in ranks] == [(0, 2, 35), (1, 2, 35)]
    assert all(one.total("collective").count >= 34 for one in ranks)
    assert all(one.total("collective").amount > 0 for one in ranks)


def test_a_compiled_training_has_the_same_graphs_and_is_recorded(tmp_path: Path) -> None:
    training = f"""{START}
    compiled = torch.compile(model, backend="eager", fullgraph=True)

    @torch.compile(backend="eager", fullgraph=True)
    def moved(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return torch.empty_like(x).copy_(model(x.to(torch.float64).to(torch.float32)).sum()).cpu()

    moved(torch.randn(4, 8))
    for inputs, labels in DataLoader(data, batch_size=8):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(compiled(inputs), labels).backward()
        optimizer.step()
    """
    (rank,) = watched(tmp_path, training).ranks
    assert rank.steps == 35
    assert rank.fact("compile", "used") is True


def test_autocast_and_waits_for_the_device_are_seen(tmp_path: Path) -> None:
    training = f"""{START}
    for inputs, labels in DataLoader(data, batch_size=8):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            step(inputs, labels)
    """
    (rank,) = watched(tmp_path, training).ranks
    assert rank.total("step.autocast").count == 35
    assert rank.total("sync").count == 0  # a CPU is not waited for


def test_a_training_of_a_moment_is_too_short_to_say(tmp_path: Path) -> None:
    record = watched(tmp_path, f"{START}\n    for batch in DataLoader(data, batch_size=32):\n        step(*batch)\n")
    assert judge(record).answer is Answer.TOO_SHORT
