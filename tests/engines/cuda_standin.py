"""A CUDA device that is the CPU, for an image whose torch has none. Code that torch runs at its end.

What is asked of the device is done at once and in turn. The first MiB of page-locked memory is locked for real, with
mlock(2): the usual limit of a container allows that, and one of nothing does not. STANDIN_FAULT names what goes wrong:
`kernel` (a wrong result) or `copy` (a changed byte).
"""

import contextlib
import ctypes
import os
import time
from importlib import import_module
from types import SimpleNamespace
from typing import Any

torch: Any = import_module("torch")
FAULT = os.environ.get("STANDIN_FAULT")
libc = ctypes.CDLL(None, use_errno=True)
locked: set[int] = set()


def place(value: Any) -> Any:
    """The CPU where a CUDA device is named."""
    kind = value.type if isinstance(value, torch.device) else value
    return "cpu" if isinstance(kind, str) and kind.partition(":")[0] == "cuda" else value


def lock(tensor: Any) -> None:
    """Lock the beginning of the tensor's memory."""
    begin, size = tensor.data_ptr(), min(1 << 20, tensor.numel() * tensor.element_size())
    if libc.mlock(ctypes.c_void_p(begin), ctypes.c_size_t(size)):
        raise RuntimeError(f"mlock of {size} bytes: {os.strerror(ctypes.get_errno())}")
    locked.add(begin)


class OnCpu(torch.overrides.TorchFunctionMode):  # type: ignore[misc]  # torch is looked up when this runs
    """Everything that names a CUDA device happens on the CPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = {name: place(value) for name, value in (kwargs or {}).items()}
        pinned = options.pop("pin_memory", False)
        name = getattr(func, "__name__", "")
        if name == "is_pinned":
            return args[0].data_ptr() in locked
        found = func(*[place(value) for value in args], **options)
        if pinned:
            lock(found)
        if FAULT == "kernel" and name == "arange" and (kwargs or {}).get("device"):
            found[7] += 1
        if FAULT == "copy" and name == "copy_":
            args[0].view(-1)[time.perf_counter_ns() % args[0].numel()] += 1
        return found


class Event:
    """A point in time. The first one to ask finds the device busy still."""

    def __init__(self, *, enable_timing: bool = False) -> None:
        self.timing, self.at, self.asked = enable_timing, 0.0, False

    def record(self, _stream: Any = None) -> None:
        """Note the time."""
        self.at = time.perf_counter()

    def elapsed_time(self, later: "Event") -> float:
        """Milliseconds between two."""
        return (later.at - self.at) * 1e3

    def query(self) -> bool:
        """Whether what was queued before is done."""
        asked, self.asked = self.asked, True
        return asked


PROPERTIES = SimpleNamespace(
    name="Stand-in", major=9, minor=0, total_memory=1 << 34, uuid="00000000-0000-0000-0000-000000000001"
)
for name, value in {
    "is_available": lambda: True,
    "device_count": lambda: 1,
    "init": lambda: None,
    "synchronize": lambda *_: None,
    "get_device_properties": lambda *_: PROPERTIES,
    "get_device_capability": lambda *_: (9, 0),
    "get_device_name": lambda *_: PROPERTIES.name,
    "current_stream": lambda *_: SimpleNamespace(wait_stream=lambda _: None),
    "stream": lambda _: contextlib.nullcontext(),
    "Event": Event,
    "_sleep": lambda _: None,
}.items():
    setattr(torch.cuda, name, value)
OnCpu().__enter__()
