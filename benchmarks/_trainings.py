"""Small trainings, each slow in one known way, and the same ones with one setting changed.

    python benchmarks/_trainings.py NAME SETTING SECONDS

Each trains for SECONDS, at least 40 steps, and prints one line of JSON: the mean time of a step (for `ranks`, of a
backward pass) after the first few, the CPU time of a step, and that of the whole process. `healthy` is not slow.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

WARM_UP, LEAST = 6, 40  # steps
SAMPLE_S = 0.01  # wait for one sample, as for a disk or a network
BATCH = 8
RANKS = 2
DEVICE_S = 0.02
COPY_RATE = 200e6  # bytes per second
COPY_BYTES = 8 << 20
PAUSE_S = 0.05
SAVED = 4_000_000  # numbers of a checkpoint

Times = tuple[float, float]  # of a step: the mean, and the CPU time, which other programs hardly change


class Samples:
    """A dataset whose samples take time, but no CPU time."""

    def __init__(self, length: int, seconds: float, width: int) -> None:
        self.length, self.seconds, self.width = length, seconds, width

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Any, int]:
        time.sleep(self.seconds)
        return import_module("torch").full((self.width,), index / self.length), index % 10


def network(width: int, depth: int) -> Any:
    """Return a sequence of linear layers."""
    torch: Any = import_module("torch")

    layers: list[Any] = []
    for _ in range(depth):
        layers += [torch.nn.Linear(width, width), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(width, 10))


class Loop:
    """A training that ends after a time, and times the steps after the warm-up."""

    def __init__(self, model: Any, seconds: float, device_s: float = 0.0) -> None:
        torch: Any = import_module("torch")
        self.device_s = device_s  # time of a device's work, without CPU time
        self.torch, self.model, self.seconds = torch, model, seconds
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        self.start = time.monotonic()
        self.count, self.begin, self.begin_cpu = 0, 0.0, 0.0

    def going(self) -> bool:
        """Whether there is time left, or there were too few steps."""
        return time.monotonic() - self.start < self.seconds or self.count < WARM_UP + LEAST

    def step(self, inputs: Any, labels: Any) -> None:
        """Train on one batch."""
        self.optimizer.zero_grad()
        time.sleep(self.device_s)
        self.torch.nn.functional.cross_entropy(self.model(inputs), labels).backward()
        self.optimizer.step()
        self.counted()

    def counted(self) -> None:
        """Count a step."""
        self.count += 1
        if self.count == WARM_UP:
            self.begin, self.begin_cpu = time.monotonic(), time.process_time()

    def step_s(self) -> Times:
        """Return the wall seconds of a step after the warm-up, and the CPU seconds of this process."""
        count = self.count - WARM_UP
        return (time.monotonic() - self.begin) / count, (time.process_time() - self.begin_cpu) / count


def loaded(
    seconds: float, model: Any, *, length: int, workers: int, persistent: bool, sample_s: float, device_s: float = 0.0
) -> Times:
    """Train on batches of a DataLoader."""
    import_module("torch").set_num_threads(1)  # small steps, for which more threads are slower
    loop = Loop(model, seconds, device_s)
    loader: Any = import_module("torch.utils.data").DataLoader(
        Samples(length, sample_s, model[0].in_features),
        batch_size=BATCH,
        num_workers=workers,
        persistent_workers=persistent and workers > 0,
    )
    while loop.going():
        for inputs, labels in loader:
            loop.step(inputs, labels)
            if not loop.going():
                break
    return loop.step_s()


def computed(seconds: float, width: int, depth: int, batch: int) -> Times:
    """Train on one batch in memory."""
    torch: Any = import_module("torch")

    loop = Loop(network(width, depth), seconds)
    inputs, labels = torch.randn(batch, width), torch.randint(0, 10, (batch,))
    while loop.going():
        loop.step(inputs, labels)
    return loop.step_s()


def rank(number: int, seconds: float, times: int, folder: str) -> None:
    """Run one rank of `ranks`; the first one writes its result to a file."""
    torch: Any = import_module("torch")
    parallel: Any = import_module("torch.nn.parallel")

    torch.set_num_threads(1)
    store = torch.distributed.FileStore(f"{folder}/store", RANKS)
    torch.distributed.init_process_group("gloo", store=store, rank=number, world_size=RANKS)
    model = parallel.DistributedDataParallel(network(1536, 4))
    loop = Loop(model, seconds)
    inputs, labels = torch.randn(4, 1536), torch.randint(0, 10, (4,))
    while agreed(torch, loop.going()):
        loop.optimizer.zero_grad()
        for turn in range(times):
            last = turn == times - 1
            model.require_backward_grad_sync = last
            torch.nn.functional.cross_entropy(model(inputs), labels).backward()
        loop.optimizer.step()
        loop.counted()
    if number == 0:
        Path(folder, "result").write_text(json.dumps([step_s / times for step_s in loop.step_s()]))
    torch.distributed.destroy_process_group()


def copied(seconds: float, smaller: int) -> Times:
    """Train with copies to a stand-in for a GPU: a device in Python that only makes copies take time."""
    torch: Any = import_module("torch")
    backend: Any = import_module("torch.utils.backend_registration")
    backend._setup_privateuseone_for_python_backend("standin")

    class Far(torch.Tensor):  # type: ignore[misc]
        """A tensor on the device."""

        @classmethod
        def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            raise NotImplementedError(str(func))

    def copy(source: Any, **_: Any) -> Any:
        time.sleep(source.numel() * source.element_size() / COPY_RATE)
        return torch.Tensor._make_wrapper_subclass(
            Far, source.shape, dtype=source.dtype, device=torch.device("standin:0")
        )

    library = torch.library.Library("aten", "IMPL")
    library.impl("_to_copy", copy, "PrivateUse1")
    loop = Loop(network(256, 2), seconds, DEVICE_S)
    inputs, labels = torch.randn(64, 256), torch.randint(0, 10, (64,))
    batch = torch.zeros(COPY_BYTES // 4 // smaller)
    while loop.going():
        batch.to("standin")
        loop.step(inputs, labels)
    return loop.step_s()


def agreed(torch: Any, going: bool) -> bool:
    """Return the first rank's decision to go on, so that all ranks end at the same step."""
    flag = torch.tensor([float(going)])
    torch.distributed.broadcast(flag, 0)
    return bool(flag.item())


def ranks(seconds: float, times: int) -> Times:
    """Train on two processes, with `times` backward passes for each exchange of gradients."""
    with tempfile.TemporaryDirectory() as folder:
        import_module("torch.multiprocessing").spawn(rank, args=(seconds, times, folder), nprocs=RANKS)
        mean, cpu = json.loads(Path(folder, "result").read_text())
        return mean, cpu


def oversubscribed(seconds: float, threads: int) -> Times:
    """Train with a number of threads."""
    torch: Any = import_module("torch")

    torch.set_num_threads(threads)
    return computed(seconds, 256, 6, 64)


def data(seconds: float, workers: int) -> Times:
    """Train on samples that must be waited for."""
    return loaded(seconds, network(512, 2), length=1 << 14, workers=workers, persistent=True, sample_s=SAMPLE_S)


def epochs(seconds: float, persistent: int) -> Times:
    """Train in epochs of six batches."""
    model = network(512, 1)
    return loaded(seconds, model, length=6 * BATCH, workers=2, persistent=bool(persistent), sample_s=0.0)


def healthy(seconds: float, workers: int) -> Times:
    """Train without a bottleneck, in small steps, so that overhead per step shows."""
    return loaded(seconds, network(512, 2), length=1 << 14, workers=workers, persistent=True, sample_s=0.0)


def followed(seconds: float, after: Callable[[], object]) -> Times:
    """Train on one batch in memory, and do something after each step."""
    torch: Any = import_module("torch")

    torch.set_num_threads(1)
    loop = Loop(network(512, 6), seconds)
    inputs, labels = torch.randn(64, 512), torch.randint(0, 10, (64,))
    while loop.going():
        loop.step(inputs, labels)
        after()
    return loop.step_s()


def paused(seconds: float, on: int) -> Times:
    """Train with a pause after each step, as of a logger that waits for an answer."""
    return followed(seconds, lambda: time.sleep(PAUSE_S) if on else None)


def programs(seconds: float, on: int) -> Times:
    """Train with a program that is started after each step."""
    return followed(seconds, lambda: subprocess.run(["sleep", str(PAUSE_S)], check=True) if on else None)


def saved(seconds: float, on: int) -> Times:
    """Train with a checkpoint after each step."""
    torch: Any = import_module("torch")

    with tempfile.TemporaryDirectory() as folder:
        state = {"numbers": torch.zeros(SAVED)}
        return followed(seconds, lambda: torch.save(state, f"{folder}/last.pt") if on else None)


def recompiled(seconds: float, dynamic: int) -> Times:
    """Train with a new shape in each step, and a compiler that takes each as a constant unless it is told otherwise."""
    torch: Any = import_module("torch")
    dynamo: Any = import_module("torch._dynamo")

    torch.set_num_threads(1)
    dynamo.config.recompile_limit = dynamo.config.accumulated_recompile_limit = 1 << 20
    model = network(128, 4)
    loop = Loop(torch.compile(model, dynamic=bool(dynamic), backend="aot_eager"), seconds)
    while loop.going():
        batch = 2 + loop.count
        loop.step(torch.randn(batch, 128), torch.randint(0, 10, (batch,)))
    return loop.step_s()


def pinned(seconds: float, cpus: int) -> Times:
    """Train with a loader that computes, on one CPU or on several."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cpus])
    torch: Any = import_module("torch")

    torch.set_num_threads(1)
    loop = Loop(network(512, 1), seconds)
    loader: Any = import_module("torch.utils.data").DataLoader(Busy(), batch_size=BATCH, num_workers=2)
    while loop.going():
        for inputs, labels in loader:
            loop.step(inputs, labels)
            if not loop.going():
                break
    return loop.step_s()


class Busy(Samples):
    """A dataset whose samples take CPU time."""

    def __init__(self) -> None:
        super().__init__(1 << 14, SAMPLE_S, 512)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        end = time.thread_time() + self.seconds
        while time.thread_time() < end:
            pass
        return import_module("torch").full((self.width,), index / self.length), index % 10


TRAININGS: dict[str, Callable[[float, int], Times]] = {
    "data": data,
    "epochs": epochs,
    "threads": lambda seconds, _: computed(seconds, 1024, 4, 256),  # OMP_NUM_THREADS, set below
    "oversubscribed": oversubscribed,
    "ranks": ranks,
    "copies": copied,
    "healthy": healthy,
    "paused": paused,
    "programs": programs,
    "saved": saved,
    "recompiled": recompiled,
    "pinned": pinned,
}


if __name__ == "__main__":
    if sys.argv[1] == "threads":
        os.environ["OMP_NUM_THREADS"] = sys.argv[2]
    mean_s, cpu_s = TRAININGS[sys.argv[1]](float(sys.argv[3]), int(sys.argv[2]))
    print(json.dumps({"step_s": mean_s, "cpu_s": cpu_s, "process_s": time.process_time()}))
