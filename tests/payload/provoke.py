"""Makes torch fail in known ways and prints what it says, each failure after a line `### name`."""

from __future__ import annotations

import io
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from datetime import timedelta
from importlib import import_module
from typing import Any

# Any release of torch will do, and a checker need not have it.
torch: Any = import_module("torch")
dist: Any = import_module("torch.distributed")
data: Any = import_module("torch.utils.data")


class Even:
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        return torch.zeros(3)


class Odd(Even):
    def __getitem__(self, index: int) -> Any:
        return torch.zeros(3 + index % 2)


class Slow(Even):
    def __getitem__(self, index: int) -> Any:
        time.sleep(20)


class Dies(Even):
    def __init__(self, number: int) -> None:
        self.number = number

    def __getitem__(self, index: int) -> Any:
        os.kill(os.getpid(), self.number)
        time.sleep(5)


class Local(Even):
    def __init__(self) -> None:
        self.function = lambda: None


class Thing:
    """A class that no checkpoint may hold."""


def first(dataset: Even, **options: Any) -> None:
    next(iter(data.DataLoader(dataset, **options)))


def saved(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def not_a_number() -> None:
    with torch.autograd.set_detect_anomaly(True):
        value = torch.tensor(0.0, requires_grad=True)
        (torch.sqrt(value) * 0).backward()


def scheduler() -> None:
    optimizer = torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), 0.1)
    torch.optim.lr_scheduler.StepLR(optimizer, 1).step()


def port() -> None:
    held = dist.TCPStore("127.0.0.1", 0, 1, True, wait_for_workers=False)
    dist.TCPStore("127.0.0.1", held.port, 1, True, wait_for_workers=False)


def nobody_listens() -> None:
    dist.TCPStore("127.0.0.1", 9, 2, False, timeout=timedelta(seconds=2))


def autocast() -> None:
    with torch.autocast("cuda"):
        pass


# By the row of the knowledge base that has to recognize them. A torch with CUDA or NCCL would do some of these.
FAILURES: dict[str, Callable[[], Any]] = {
    "collate-sizes": lambda: first(Odd(), batch_size=4),
    "loader-timeout": lambda: first(Slow(), num_workers=1, timeout=1),
    "not-picklable": lambda: first(Local(), num_workers=1, multiprocessing_context="spawn"),
    "worker-killed": lambda: first(Dies(9), num_workers=1),
    "worker-bus-error": lambda: first(Dies(7), num_workers=1),
    "worker-segfault": lambda: first(Dies(11), num_workers=1),
    "too-many-workers": lambda: data.DataLoader(Even(), num_workers=4096),
    "weights-only": lambda: torch.load(io.BytesIO(saved(Thing()))),
    "damaged-checkpoint": lambda: torch.load(io.BytesIO(saved(torch.zeros(1000))[:100])),
    "scheduler-order": scheduler,
    "nan-loss": not_a_number,
    "dtype-mismatch": lambda: torch.zeros(2, 2).half() @ torch.zeros(2, 2),
    "host-memory": lambda: torch.empty(10**15),
    "port-in-use": port,
    "rendezvous": nobody_listens,
}
WITHOUT_CUDA: dict[str, Callable[[], Any]] = {
    "cpu-build": lambda: torch.zeros(1).cuda(),
    "no-nccl": lambda: dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1),
    "pin-memory-inert": lambda: first(Even(), pin_memory=True),
    "autocast-inert": autocast,
    "amp-deprecated": torch.cuda.amp.GradScaler,
}


def main() -> None:
    """Provoke every failure that this torch can have."""
    warnings.simplefilter("always")
    cases = FAILURES if torch.version.cuda else {**FAILURES, **WITHOUT_CUDA}
    for name, fail in cases.items():
        print(f"### {name}", file=sys.stderr, flush=True)
        try:
            fail()
        except Exception:  # noqa: BLE001 - whatever it is, its text is what is wanted
            traceback.print_exc()
        sys.stderr.flush()


if __name__ == "__main__":
    main()
