"""`watch` changes no outcome: each training gives the same results, bit by bit, and the same exit code without it.

The GPU is the simulated one (tests/support/cuda_standin.py), whose events end a process that was forked and frees one,
as the real driver's do.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest

from envkit.watch.judge import Answer, judge
from envkit.watch.model import Record, read
from tests.support.standin import write_site

pytest.importorskip("torch")

# What every training begins with. `result` prints a hash of all weights, and all losses to the last bit.
START = """
import gc, hashlib, os, signal, subprocess, sys, threading, time
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(7)
torch.set_num_threads(1)
device = "cuda" if torch.version.cuda else "cpu"
losses = []

class Rows(Dataset):
    def __init__(self, where="cpu"):
        self.rows = torch.randn(96, 8).to(where)
    def __len__(self):
        return 96
    def __getitem__(self, index):
        return self.rows[index] + torch.rand(8), index % 2

model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 2)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

def step(x, y, forward=model):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(forward(x.to(device)), y.to(device))
    loss.backward()
    optimizer.step()
    losses.append(float(loss.detach()).hex())

def train(loader, forward=model):
    for x, y in loader:
        step(x, y, forward)

def result():
    digest = hashlib.sha256()
    for weight in model.state_dict().values():
        digest.update(weight.detach().cpu().contiguous().numpy().tobytes())
    print(digest.hexdigest(), *losses, flush=True)

def forked(work):
    pid = os.fork()
    if pid == 0:
        work()
        sys.exit(7)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""
WORKERS = "DataLoader(Rows(), batch_size=8, shuffle=True, num_workers=2, multiprocessing_context={!r})"


@dataclass(frozen=True)
class Outcome:
    """What a training leaves behind."""

    code: int
    out: str


@dataclass(frozen=True)
class Place:
    """A folder with a training and the start-up module of the simulated GPU."""

    folder: Path

    def run(self, code: str, *, cuda: bool = True, python: tuple[str, ...] = (sys.executable,)) -> Outcome:
        """Run a training with and without `watch`; return its outcome if it is the same."""
        command = self.command(code, python)
        without, beside = self.started(command, cuda=cuda), self.started(self.watch(command), cuda=cuda)
        assert beside.stdout == without.stdout, beside.stderr
        assert beside.returncode == shell(without.returncode), beside.stderr
        return Outcome(beside.returncode, beside.stdout)

    def command(self, code: str, python: tuple[str, ...] = (sys.executable,)) -> list[str]:
        """Write a training and return the command that runs it."""
        script = self.folder / "train.py"
        script.write_text(START + textwrap.dedent(code))
        return [*python, str(script)]

    def watch(self, command: list[str]) -> list[str]:
        """Return the command below `watch`."""
        return [sys.executable, "-m", "envkit", "watch", "-o", str(self.folder / "record.json"), "--", *command]

    def started(self, command: list[str], *, cuda: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command with the simulated GPU."""
        site = self.folder / "site"
        env = dict(os.environ) | ({"PYTHONPATH": str(site), "STANDIN_CUDA": "13.0"} if cuda else {})
        return subprocess.run(
            command, capture_output=True, text=True, check=False, env=env, timeout=300, cwd=self.folder
        )

    @property
    def record(self) -> Record:
        """The record of the run below `watch`."""
        return read(self.folder / "record.json")


def shell(code: int) -> int:
    """The exit code as shells report it."""
    return code if code >= 0 else 128 - code


@pytest.fixture
def place(tmp_path: Path) -> Place:
    (tmp_path / "site").mkdir()
    write_site(tmp_path / "site")
    return Place(tmp_path)


def test_loader_workers_that_are_forked_after_cuda_was_used_live(place: Place) -> None:
    """A worker that freed an event would end with SIGABRT, and the training with it."""
    code = f"train({WORKERS.format('fork')}); train({WORKERS.format('fork')}); result()"
    # Without `watch` there are no probes, and the file is not written.
    made = "hooks = sys.modules.get('envkit_watch_hooks'); hooks and open('made', 'w').write(str(hooks.device.made))"
    outcome = place.run(f"{code}\n{made}")
    assert outcome.code == 0
    assert int((place.folder / "made").read_text()) > 0  # events were in use


@pytest.mark.long
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_loader_workers_that_are_started_in_other_ways(place: Place, method: str) -> None:
    code = f"""
    if __name__ == "__main__":
        train({WORKERS.format(method)}); result()
    """
    assert place.run(code).code == 0


ENDS = {
    "exception": ("raise RuntimeError('it failed')", 1),
    "sys-exit": ("sys.exit(3)", 3),
    "os-exit": ("os._exit(9)", 9),
    "sigterm": ("os.kill(os.getpid(), signal.SIGTERM)", 143),
    "sigabrt": ("os.abort()", 134),
    "sigsegv": ("import ctypes; ctypes.string_at(0)", 139),
    "sigkill": ("os.kill(os.getpid(), signal.SIGKILL)", 137),
}


@pytest.mark.long
@pytest.mark.parametrize("end", ENDS)
def test_a_training_ends_as_it_does(place: Place, end: str) -> None:
    code, expected = ENDS[end]
    train = f"train(DataLoader(Rows(), batch_size=8)); result()\n{code}"
    assert place.run(train).code == expected


# Each prints the exit code of a forked child: 7 of `sys.exit`, which runs the interpreter's whole end, 0 without it.
CHILDREN = {
    "that collects garbage": ("forked(gc.collect)", 7),
    "that only ends": ("forked(lambda: None)", 7),
    "that ends at once": ("forked(lambda: os._exit(0))", 0),
    "of another thread": (
        ("thread = threading.Thread(target=forked, args=(lambda: (gc.collect(), os._exit(0)),))\n"
        "thread.start(); thread.join()"), 0,
    ),
    "beside a thread that steps": (
        ("ready, go = threading.Event(), threading.Event()\n"
        "hook = optimizer.register_step_pre_hook(lambda *_: (ready.set(), go.wait()) and None)\n"
        "thread = threading.Thread(target=optimizer.step); thread.start(); ready.wait(60)\n"
        "forked(gc.collect); go.set(); thread.join(); hook.remove()"), 7,
    ),
    "within a step": (
        ("hook = optimizer.register_step_pre_hook(lambda *_: forked(gc.collect))\n"
        "step(*next(iter(data))); hook.remove()"), 7,
    ),
    "that steps": ("forked(optimizer.step)", 7),
    "after an error": (
        ("def fails():\n    model.to(device); raise ValueError\n"
        "try: fails()\nexcept ValueError as error: error.itself = error\n"
        "forked(gc.collect)"), 7,
    ),
    "that clears its modules": ("forked(lambda: [sys.modules.pop(name) for name in list(sys.modules)])", 7),
    "of a child": ("forked(lambda: forked(gc.collect))", 7),
    "of a library in C": (
        ("import ctypes\npid = ctypes.CDLL(None).fork()\n"
        "if pid == 0:\n    gc.collect(); sys.exit(7)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)"), 7,
    ),
    "of a fork that is replaced": (
        "fork = os.fork; os.fork = lambda: fork(); forked(gc.collect); os.fork = fork", 7,
    ),
    "of multiprocessing": (
        ("import multiprocessing\nprocess = multiprocessing.get_context('fork').Process(target=gc.collect)\n"
        "process.start(); process.join(); print(process.exitcode, flush=True)"), 0,
    ),
    "without a collector": ("gc.disable(); forked(lambda: None)", 7),
}  # fmt: skip


@pytest.mark.long
def test_forked_children_end_as_they_do(place: Place) -> None:
    parts = [f"print({name!r}, end=' ', flush=True)\n{code}\ntrain(data)\n" for name, (code, _) in CHILDREN.items()]
    outcome = place.run("data = DataLoader(Rows(), batch_size=8)\ntrain(data)\n" + "".join(parts) + "result()\n")
    said = dict(line.rsplit(" ", 1) for line in outcome.out.splitlines() if line.startswith(tuple(CHILDREN)))
    assert {name: said.get(name) for name in CHILDREN} == {name: str(code) for name, (_, code) in CHILDREN.items()}
    assert outcome.code == 0


KINDS = {
    "compile": "train(DataLoader(Rows(), batch_size=8), torch.compile(model, backend='aot_eager')); result()",
    "amp": (
        "scaler = torch.amp.GradScaler('cpu')\n"
        "for x, y in DataLoader(Rows(), batch_size=8, num_workers=2):\n"
        "    optimizer.zero_grad()\n"
        "    with torch.autocast('cpu', dtype=torch.bfloat16):\n"
        "        loss = nn.functional.cross_entropy(model(x), y)\n"
        "    scaler.scale(loss).backward(); scaler.step(optimizer); scaler.update()\n"
        "    losses.append(float(loss.detach()).hex())\n"
        "result()"
    ),
    "persistent-workers": (
        "data = DataLoader(Rows(), batch_size=8, num_workers=2, persistent_workers=True)\n"
        "[train(data) for _ in range(3)]; result()"
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_other_kinds_of_training(place: Place, kind: str) -> None:
    assert place.run(KINDS[kind], cuda=False).code == 0


@pytest.mark.long
@pytest.mark.parametrize(("workers", "code"), [(0, 0), (2, 1)])
def test_a_data_set_with_tensors_of_the_device(place: Place, workers: int, code: int) -> None:
    """CUDA cannot be used in a forked worker, so this fails in the same way without `watch`."""
    training = f"train(DataLoader(Rows('cuda'), batch_size=8, num_workers={workers})); result()"
    assert place.run(training).code == code


@pytest.mark.long
def test_ranks_that_share_gradients(place: Place) -> None:
    code = """
    torch.distributed.init_process_group("gloo")
    shared = nn.parallel.DistributedDataParallel(model)
    train(DataLoader(Rows(), batch_size=8, num_workers=1), shared)
    if torch.distributed.get_rank() == 0:
        result()
    torch.distributed.destroy_process_group()
    """
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    assert place.run(code, cuda=False, python=torchrun).code == 0


ODD = {
    "excepthook": "sys.excepthook = lambda *_: print('own hook', flush=True)\n1 / 0",
    "event-replaced": (
        "class Event:\n    def __init__(self, *_, **__): raise TypeError('not a CUDA event')\n"
        "torch.cuda.Event = Event\ntrain(DataLoader(Rows(), batch_size=8, num_workers=2)); result()"
    ),
    "event-subclassed": (
        "class Own(torch.cuda.Event): pass\nown = Own(enable_timing=True); own.record()\n"
        "train(DataLoader(Rows(), batch_size=8)); print(own.query()); result()"
    ),
    "descriptors-closed": (
        "train(DataLoader(Rows(), batch_size=8)); os.closerange(3, 2000)\n"
        "mine = os.open('mine.txt', os.O_RDWR | os.O_CREAT | os.O_TRUNC)\n"
        "train(DataLoader(Rows(), batch_size=8)); print(os.fstat(mine).st_size); result()"
    ),
    "execv": "if 'again' not in sys.argv: os.execv(sys.executable, [sys.executable, __file__, 'again'])\nresult()",
    "posix-spawn": (
        "train(DataLoader(Rows(), batch_size=8))\n"
        "pid = os.posix_spawn('/bin/sh', ['sh', '-c', 'exit 4'], os.environ)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])); result()"
    ),
    "faulthandler-of-its-own": (
        "import faulthandler\nfile = open('own.txt', 'w+'); faulthandler.enable(file)\n"
        "train(DataLoader(Rows(), batch_size=8)); result(); os.abort()"
    ),
    "loader-with-attributes-that-raise": (
        "class Odd(DataLoader):\n"
        "    @property\n"
        "    def prefetch_factor(self): raise ValueError('none')\n"
        "    @prefetch_factor.setter\n"
        "    def prefetch_factor(self, value): pass\n"
        "train(Odd(Rows(), batch_size=8)); result()"
    ),
    "stderr-of-a-program": (
        "done = subprocess.run([sys.executable, '-c', 'pass'], stderr=subprocess.STDOUT, stdout=subprocess.PIPE)\n"
        "print(done)"
    ),
    "own-signal-handlers": (
        "signal.signal(signal.SIGABRT, lambda *_: sys.exit(5))\ntrain(DataLoader(Rows(), batch_size=8)); result()\n"
        "os.kill(os.getpid(), signal.SIGABRT); time.sleep(5)"
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("odd", ODD)
def test_a_training_that_does_odd_things(place: Place, odd: str) -> None:
    place.run(ODD[odd])


@pytest.mark.long
@pytest.mark.parametrize("switch", ["-I", "-E"])
def test_a_python_that_imports_no_start_up_module(place: Place, switch: str) -> None:
    place.run("result()", cuda=False, python=(sys.executable, switch))
    assert "python -S, -I and -E" in judge(place.record).headline


@pytest.mark.long
def test_an_import_hook_that_loads_torch_itself_is_named(place: Place) -> None:
    hook = """
    import sys
    from importlib.machinery import PathFinder
    class First:
        def find_spec(self, name, path=None, target=None):
            return PathFinder.find_spec(name, path, target) if name == "torch" else None
    sys.meta_path.insert(0, First())
    """
    (place.folder / "site" / "sitecustomize.py").write_text(textwrap.dedent(hook))
    place.run("train(DataLoader(Rows(), batch_size=8)); result()")
    assert [one.fact("unseen", "reason") for one in place.record.processes] == ["another import hook loaded torch"]


def test_a_worker_that_dies_is_not_a_training_that_was_not_seen(place: Place) -> None:
    code = """
    class Dies(Rows):
        def __getitem__(self, index):
            os.abort()
    train(DataLoader(Dies(), batch_size=8, num_workers=1))
    """
    done = place.started(place.watch(place.command(code)), cuda=False)
    judgment = judge(place.record)
    assert (done.returncode, judgment.answer) == (1, Answer.FAILED)
    evidence = "\n".join(judgment.findings[0].evidence)
    assert "or one that it forked: SIGABRT at train.py:" in evidence
    assert "RuntimeError at train.py:" in evidence
    assert "run it without the probes: " in done.stderr
