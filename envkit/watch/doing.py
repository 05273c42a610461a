"""What a training's main thread was doing at a moment, and where in the program: from its frames and system call."""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import StrEnum

from envkit.watch import proc
from envkit.watch.injected import envkit_watch_endings as endings
from envkit.watch.stacks import Frame, Layout, Look, Reader


class Doing(StrEnum):
    """What a thread does. Those of `WAITS` keep the model waiting."""

    TIMED = "timed"  # a call that the probes time: a batch, backward, the optimizer, a collective, a compilation
    COMPUTING = "computing"  # the model, or code of the program that is none of the others
    SLEEP = "sleep"
    LOGGING = "logging"
    CHECKPOINT = "checkpoint"
    EVALUATION = "evaluation"
    SUBPROCESS = "subprocess"
    NETWORK = "network"
    LOCK = "lock"
    FILE = "file"
    RANKS = "ranks"  # a collective that the probes do not time
    OTHER = "other"


WAITS = tuple(one for one in Doing if one not in (Doing.TIMED, Doing.COMPUTING))

# Of the frames between the newest one of the program and the thread's newest; the first kind that matches counts.
# `wandb` is asked before `requests`, with which it waits for the network.
_FILES: tuple[tuple[Doing, re.Pattern[str]], ...] = (
    (Doing.TIMED, re.compile(r"/torch/(optim/|_dynamo/(convert_frame|symbolic_convert|output_graph)\.py|utils/data/)")),
    (
        Doing.LOGGING,
        re.compile(
            r"/(logging|wandb|mlflow|tensorboard|tensorboardX|comet_ml|neptune|clearml|swanlab|aim|loguru)/"
            r"|/torch/utils/tensorboard/|/(lightning|pytorch_lightning)/.*logg"
        ),
    ),
    (Doing.CHECKPOINT, re.compile(r"/torch/serialization\.py|/safetensors/|/torch/distributed/checkpoint/")),
    (Doing.SUBPROCESS, re.compile(r"/subprocess\.py")),
    (
        Doing.NETWORK,
        re.compile(
            r"/(socket|ssl)\.py|/(http|urllib3?|requests|httpx|httpcore|aiohttp|botocore|boto3|s3fs|gcsfs|grpc|redis)/"
        ),
    ),
    (Doing.RANKS, re.compile(r"/torch/distributed/")),
    (Doing.COMPUTING, re.compile(r"/torch/|/torch_xla/|/torchvision/|/flash_attn/|/xformers/|/triton/|/deepspeed/")),
    (
        Doing.LOCK,
        re.compile(
            r"/(threading|queue)\.py|/multiprocessing/(synchronize|connection|pool|queues|managers)\.py"
            r"|/concurrent/futures/_base\.py|/filelock/"
        ),
    ),
)
# The first frames of a thread or process that Python starts: it is not in them that it waits.
_STARTERS = {"_bootstrap", "_bootstrap_inner", "run", "_worker", "_main", "spawn_main", "_launch"}
_STARTING = re.compile(r"/(threading|runpy)\.py|/multiprocessing/(process|spawn|forkserver|popen_\w+)\.py|/concurrent/")
# Code that torch generates: torch.fx and Inductor.
_GENERATED = re.compile(r"^<eval_with_key>|/torchinductor_")
_EVALUATION = re.compile(
    r"(^|_)(eval|evaluate|evaluation|validate|validation|val_epoch|val_step|test_epoch)(_|$)|_evaluation_loop"
)
_PACKAGE = re.compile(r"/(site|dist)-packages/")
_CALLS = {
    "sleep": Doing.SLEEP, "child": Doing.SUBPROCESS, "lock": Doing.LOCK, "network": Doing.NETWORK,
    "poll": Doing.NETWORK, "file": Doing.FILE,
}  # fmt: skip
_BUSY = 0.5  # CPUs that other threads of the process keep busy while this one waits, from which on it waits for them


def doing(look: Look, *, busy: float) -> tuple[Doing, str]:
    """Return what a thread does, and the newest place in the program itself, "" if that is not known.

    `busy`: how many CPUs the process kept busy since the look before.
    """
    at = next((at for at, frame in enumerate(look.frames) if _is_program(frame)), len(look.frames))
    inner = [frame for frame in look.frames[:at] if not (frame[2] in _STARTERS and _STARTING.search(frame[0]))]
    where = endings.place(look.frames[at]) if at < len(look.frames) else ""
    # Of a program that leaves its loop to a package, the line in the package says more.
    package = next((frame for frame in inner if _PACKAGE.search(frame[0]) and "/torch/" not in frame[0]), None)
    if package is not None and where:
        where = f"{where}, in {endings.place(package)}"
    if any(endings.is_own(frame) for frame in look.frames):
        return Doing.TIMED, where
    if any(_EVALUATION.search(frame[2]) for frame in look.frames):
        return Doing.EVALUATION, where
    for kind, files in _FILES:
        if kind is Doing.LOCK and look.is_running:
            continue
        if any(files.search(frame[0]) or (_GENERATED.search(frame[0]) and kind is Doing.COMPUTING) for frame in inner):
            return kind, where
    if look.is_running:
        return Doing.COMPUTING, where
    called = _CALLS.get(look.call or "", Doing.OTHER)
    # A thread that waits for the other threads of an operation, or for Python's lock, is not idle: they compute.
    if called in (Doing.LOCK, Doing.OTHER) and busy >= _BUSY:
        return Doing.COMPUTING, where
    return called, where


class Thread:
    """The thread of a process that trains, looked at again and again.

    Args:
        pid: the process, on this machine.
        layout: where its frames are.
        clock: a monotonic clock in seconds.
    """

    def __init__(self, pid: int, layout: Layout, clock: Callable[[], float]) -> None:
        self._pid, self._clock = pid, clock
        self._reader = Reader(pid, layout)
        self._at, self._used = clock(), proc.used(pid)

    def look(self) -> tuple[Doing, str, float] | None:
        """Return what it does, where, and the seconds since the last look; None if that could not be read."""
        look, used, now = self._reader.look(), proc.used(self._pid), self._clock()
        seconds, before = now - self._at, self._used
        self._at, self._used = now, used
        if look is None or used is None or before is None or seconds <= 0:
            return None
        if not look.frames:
            return None
        kind, where = doing(look, busy=(used.cpu_s - before.cpu_s) / seconds)
        return kind, where, seconds


def _is_program(frame: Frame) -> bool:
    """Whether a frame is of the program, not of Python, a package, the probes or generated code."""
    return not (endings.is_own(frame) or endings.is_library(frame) or _GENERATED.search(frame[0]))
