"""A stand-in for NVIDIA's management library: its calls return values and fill in the structures they are given."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

_module: Any = import_module("envkit.smoke.nvml")

NOT_SUPPORTED, NO_PERMISSION, TOO_SMALL, IS_LOST, NO_RESULT = 3, 4, 7, 15, 6
UUID = "GPU-00000000-0000-0000-0000-000000000001"


@dataclass(frozen=True)
class Code:
    """The result of a call that returns an error code, but fills in `values` anyway."""

    code: int
    values: Sequence[Any] = ()


class Driver:
    """A library with one GPU. `answers` has the values that each call fills in; other calls do not exist.

    A list has the values of successive calls, and its last value is repeated. A tuple has one value for each pointer of
    a call, a mapping has a structure's fields, and text goes into a buffer. `processes` lists the processes on the GPU
    as (pid, bytes).
    """

    def __init__(self, **answers: Any) -> None:
        self.asked: list[str] = []
        self.processes: list[tuple[int, int]] | None = answers.pop("processes", None)
        self.answers: dict[str, Any] = {
            "nvmlDeviceGetCount_v2": (1,),
            "nvmlDeviceGetHandleByIndex_v2": (1,),
            "nvmlDeviceGetUUID": UUID,
            **answers,
        }

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name == "nvmlDeviceGetComputeRunningProcesses_v3" and self.processes is not None:
            return self._running
        if name not in self.answers:
            raise AttributeError(name)
        return lambda *arguments: self._answer(name, arguments)

    def _answer(self, name: str, arguments: Sequence[Any]) -> int:
        self.asked.append(name)
        if name == "nvmlDeviceGetHandleByIndex_v2" and arguments[0].value >= self.answers["nvmlDeviceGetCount_v2"][0]:
            return NO_RESULT
        value = self.answers[name]
        if isinstance(value, list):
            value = value.pop(0) if len(value) > 1 else value[0]
        code = 0
        if isinstance(value, Code):
            code, value = value.code, value.values
        if isinstance(value, str):
            next(item for item in arguments if isinstance(item, ctypes.Array)).value = value.encode()
            return code
        pointers = [item._obj for item in arguments if hasattr(item, "_obj")]
        for target, number in zip(pointers, value, strict=False):
            if isinstance(number, Mapping):
                for field, entry in number.items():
                    setattr(target, field, entry)
            else:
                target.value = number
        return code

    def _running(self, _handle: Any, size: Any, rows: Any) -> int:
        self.asked.append("nvmlDeviceGetComputeRunningProcesses_v3")
        assert self.processes is not None
        size._obj.value = len(self.processes)
        if rows is None:
            return TOO_SMALL if self.processes else 0
        for row, (pid, used) in zip(rows, self.processes, strict=False):
            row.pid, row.used = pid, used
        return 0


def session(**answers: Any) -> Any:
    """Return the payload's NVML session with such a driver."""
    return _module.Nvml(Driver(**answers))
