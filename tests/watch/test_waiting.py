"""Real trainings that wait for something else than data: it is named, with the line of the program that waits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from envkit.watch.judge import Judgment, judge
from envkit.watch.model import read
from envkit.watch.running import INJECTED
from envkit.watch.stacks import Layout, Reader
from envkit.watch.text import lines

pytest.importorskip("torch")

# Thirty-five steps of a small model, each followed by `after`, which tells in its last line what is waited for.
START = """
import os, socket, subprocess, sys, threading, time
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = DataLoader(TensorDataset(torch.randn(320, 8), torch.zeros(320, dtype=torch.long)), batch_size=8)

def train(after, model=model, shape=lambda x: x):
    for x, y in data:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(shape(x)), y[: len(shape(x))])
        loss.backward()
        optimizer.step()
        after()
"""


def watched(tmp_path: Path, code: str, *, exit_code: int = 0, launcher: tuple[str, ...] = ()) -> Judgment:
    """The judgment of a training; the end of its report."""
    script, out = tmp_path / "train.py", tmp_path / "record.json"
    script.write_text(START + textwrap.dedent(code))
    command = [sys.executable, "-m", "envkit", "watch", "-o", str(out), "--", sys.executable, *launcher, str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env=dict(os.environ))
    assert done.returncode == exit_code, done.stderr
    return judge(read(out))


def line_of(tmp_path: Path, mark: str = "# HERE") -> int:
    text = (tmp_path / "train.py").read_text().splitlines()
    return next(at for at, line in enumerate(text, 1) if line.endswith(mark))


WAITS = {
    "sleep": ("def after():\n    time.sleep(0.2)  # HERE", "sleeping"),
    "subprocess": ("def after():\n    subprocess.run(['sleep', '0.2'])  # HERE", "waiting for another program"),
    "checkpoint": (
        (
            "pad = torch.zeros(30_000_000)\n"
            "def after():\n"
            "    torch.save({'model': model.state_dict(), 'pad': pad}, 'last.pt')  # HERE"
        ), "writing a checkpoint",
    ),
    "network": (
        (
            "left, right = socket.socketpair()\n"
            "def answer():\n"
            "    while right.recv(1):\n        time.sleep(0.2); right.send(b'a')\n"
            "threading.Thread(target=answer, daemon=True).start()\n"
            "def after():\n    left.send(b'a')\n    left.recv(1)  # HERE"
        ), "waiting for the network",
    ),
    "lock": (
        (
            "def after():\n"
            "    ready = threading.Event()\n"
            "    threading.Timer(0.2, ready.set).start()\n"
            "    ready.wait()  # HERE"
        ), "waiting for another thread or a lock",
    ),
    "evaluation": (
        (
            "held = torch.randn(300, 2000), torch.randn(2000, 2000)\n"
            "def evaluate():\n"
            "    end = time.time() + 0.2\n"
            "    while time.time() < end: (held[0] @ held[1]).sum()  # HERE\n"
            "after = evaluate"
        ), "evaluating",
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    "kind", ["sleep", *(pytest.param(kind, marks=pytest.mark.long) for kind in WAITS if kind != "sleep")]
)
def test_a_training_whose_thread_does_something_else_waits_for_it_at_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.chdir(tmp_path)
    code, text = WAITS[kind]
    found = watched(tmp_path, f"{code}\ntrain(after)")
    assert [one.kind for one in found.findings if one.kind not in ("cpu-starved", "memory-bound")] == ["waiting"]
    place = found.measures.waiting.places[0]
    assert place.where.startswith(f"train.py:{line_of(tmp_path)} in ")
    assert f"{text} at {place.where}" in found.findings[0].headline
    promised = {one.id: one.gain for finding in found.findings for one in finding.advice}
    assert "amp" not in promised
    assert promised[f"wait_{kind}"] is not None


@pytest.mark.long
def test_a_forward_pass_that_takes_time_is_computing(tmp_path: Path) -> None:
    code = """
    model = torch.nn.Sequential(*(torch.nn.Linear(1500, 1500) for _ in range(6)), torch.nn.Linear(1500, 2))
    def shape(x):
        return torch.ones(64, 1500)
    for x in range(40):
        model(shape(x)).sum().backward()
        optimizer.step()
        time.sleep(0.001)
    """
    found = watched(tmp_path, code)
    assert found.measures.waiting.share < 0.1
    assert [one.kind for one in found.findings if one.kind != "cpu-starved"][:1] in (["compute-bound"], [])


@pytest.mark.long
def test_a_training_that_compiles_in_each_step_is_compiling(tmp_path: Path) -> None:
    code = """
    import torch._dynamo
    torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = 1000
    deep = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(20)), torch.nn.Linear(8, 2))
    compiled, count = torch.compile(deep, dynamic=False, backend="aot_eager"), 0
    def shape(x):
        return x.repeat(2 + count, 1)
    for x, y in data:
        optimizer.zero_grad(); compiled(shape(x)).sum().backward(); optimizer.step(); count += 1
    """
    found = watched(tmp_path, code)
    assert next(one.kind for one in found.findings if one.kind not in ("cpu-starved", "pinned")) == "compiling"
    assert found.measures.compiling.times >= 35


@pytest.mark.long
def test_a_rank_that_waits_for_ever_for_another_is_told_with_its_name(tmp_path: Path) -> None:
    """Uneven batches: one rank leaves its loop, and the other waits in backward until gloo's limit ends the job."""
    code = """
    import datetime
    torch.distributed.init_process_group("gloo", timeout=datetime.timedelta(seconds=12))
    rank = torch.distributed.get_rank()
    shared = torch.nn.parallel.DistributedDataParallel(model)
    for step in range(60 if rank == 0 else 40):
        optimizer.zero_grad(); shared(torch.randn(8, 8)).sum().backward(); optimizer.step(); time.sleep(0.05)
    time.sleep(25)
    """
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    found = watched(tmp_path, code, exit_code=1, launcher=launcher)
    assert found.findings[0].kind == "rank-bound"
    assert "rank 0 waited " in found.headline
    assert found.headline.endswith(" s for rank 1 after its last step")
    assert found.findings[0].evidence[1].startswith("rank 1: 40 steps, then it was sleeping at train.py:")


@pytest.mark.long
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs to be pinned to one of them")
def test_a_training_that_a_package_pinned_to_one_cpu_is_told_so(tmp_path: Path) -> None:
    code = """
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    class Slow(torch.utils.data.Dataset):
        def __len__(self):
            return 600
        def __getitem__(self, index):
            end = time.thread_time() + 0.01
            while time.thread_time() < end: pass
            return torch.randn(8), 0
    data = DataLoader(Slow(), batch_size=8, num_workers=2)
    train(lambda: None)
    """
    found = watched(tmp_path, code)
    assert found.findings[0].kind == "pinned"
    assert found.headline == f"pinned to too few CPUs: the training may use 1 of {len(os.sched_getaffinity(0))} CPUs"
    assert "\n".join(lines(read(tmp_path / "record.json"), found, width=100)).count("pin it to its own CPUs") == 0


@pytest.mark.long
def test_the_threads_of_a_workers_libraries_count_as_its_time(tmp_path: Path) -> None:
    code = """
    class Threads(torch.utils.data.Dataset):
        def __len__(self):
            return 400
        def __getitem__(self, index):
            def work():
                end = time.thread_time() + 0.005
                while time.thread_time() < end: pass
            both = [threading.Thread(target=work) for _ in range(2)]
            [one.start() for one in both]; [one.join() for one in both]
            return torch.randn(8), 0
    data = DataLoader(Threads(), batch_size=8, num_workers=1)
    train(lambda: None)
    """
    found = watched(tmp_path, code)
    assert found.measures.loading.make_cpu_s is not None
    assert found.measures.loading.make_cpu_s >= 8 * 2 * 0.005


PYTHONS = {
    tuple(map(int, path.parent.parent.name.split(".")[:2])): path
    for path in Path("~/.pyenv/versions").expanduser().glob("3.*/bin/python3")
}


@pytest.mark.long
@pytest.mark.parametrize("version", [*sorted(version for version in PYTHONS if version >= (3, 7)), None], ids=str)
def test_the_frames_of_every_python_here_are_found(tmp_path: Path, version: tuple[int, int] | None) -> None:
    """Without torch: the search for the frames alone, and a look at a process that sleeps in a known line."""
    python = Path(sys.executable) if version is None else PYTHONS[version]
    script = tmp_path / "train.py"
    script.write_text(
        "import ctypes, json, os, sys, time\n"
        f"sys.path.insert(0, {str(INJECTED)!r}); import envkit_watch_stack as stack\n"
        "def note():\n    return stack.layout(ctypes, os.getpid())\n"
        "def nested():\n    return [note() for _ in range(1)][0]\n"
        "print(json.dumps(nested()), flush=True)\n"
        "def step(seconds):\n    print('here', flush=True)\n    time.sleep(seconds)\n"
        "step(60)\n"
    )
    with subprocess.Popen([str(python), str(script)], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            layout = Layout.of(json.loads(process.stdout.readline()))
            assert layout is not None
            assert process.stdout.readline() == "here\n"
            reader = Reader(process.pid, layout)
            looks = iter(reader.look, None)
            look = next(look for look in looks if look.call == "sleep" and look.frames)
        finally:
            process.kill()
    assert look.frames == ((str(script), 10, "step"), (str(script), 11, "<module>"))
