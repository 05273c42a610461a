"""Samples of a running training: its processes, the machine and the GPUs since the previous sample."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from envkit.watch import proc
from envkit.watch.family import Family
from envkit.watch.model import Card, Machine, Sample, gpu_id

# The payload's readers of NVML, limits and counters, which have no type hints.
_nvml: Any = import_module("envkit.smoke.nvml")
_telemetry: Any = import_module("envkit.smoke.telemetry")
_hostfacts: Any = import_module("envkit.smoke.hostfacts")

_TO_GPU = 1  # NVML_PCIE_UTIL_RX_BYTES: the bytes that the GPU receives
_MOST_SAMPLES = 1200  # with more, pairs of samples are merged
# Names in /proc/cpuinfo: the first two on x86-64, `bf16` on Arm.
_BF16 = {"avx512_bf16", "amx_bf16", "bf16"}


def machine(session: Any) -> Machine:
    """Return the machine of the training; `session` is NVML's, None without a driver."""
    cpus = _hostfacts.cpus()
    flags = _hostfacts.read_text("/proc/cpuinfo")
    nodes = _hostfacts.read_text("/sys/devices/system/node/online")
    cards = [session.describe(index) for index in range(session.count())] if session is not None else []
    return Machine(
        cpus=float(cpus["effective"]),
        logical_cpus=int(cpus["logical"] or 1),
        memory_bytes=_hostfacts.read_cgroup()["memory_bytes"]
        or _hostfacts.memory_total(_hostfacts.read_text("/proc/meminfo")),
        shm_bytes=_hostfacts.shared_memory()["bytes"],
        numa_nodes=_hostfacts.count_list(nodes) or 1,
        bf16_cpu=any(word in _BF16 for word in flags.split()),
        gpus=tuple(_described(card, session, index) for index, card in enumerate(cards) if card is not None),
    )


def open_nvml() -> Any:
    """Return a session of NVML, None without a driver."""
    return _nvml.open_session()


class Sampler:
    """Takes samples of a training's processes.

    Args:
        family: the processes.
        start: when the training began, on the clock.
        session: NVML's session, or None.
        clock: a monotonic clock in seconds.
    """

    def __init__(self, family: Family, start: float, session: Any, clock: Callable[[], float]) -> None:
        self._family, self._start, self._session, self._clock = family, start, session, clock
        self._at = clock()
        self._used: dict[int, proc.Used] = {}
        self._host = proc.host(self._family.peer)
        self.taken: list[Sample] = []

    def since(self) -> float:
        """Return the seconds since the last sample."""
        return max(1e-9, self._clock() - self._at)  # above 0, because rates are divided by it

    def take(self, mains: Sequence[int], more: Iterable[int], waiting: float | None, steps: float | None) -> None:
        """Take a sample.

        Args:
            mains: the processes that train; if empty, the training's first process.
            more: processes of the training that may have left its tree.
            waiting: share of the time in which the processes that train waited for batches.
            steps: steps of one of these processes.
        """
        now = self._clock()
        seconds = now - self._at
        if seconds <= 0:
            return
        every = {pid: used for pid in self._family.every(more) if (used := proc.used(pid)) is not None}
        machine_now = proc.host(self._family.peer)
        # A process that is new since the last sample has no earlier counters to subtract.
        chief = [pid for pid in (mains or self._family.chief) if pid in every and pid in self._used]
        sample = Sample(
            at_s=now - self._start,
            seconds=seconds,
            processes=len(every),
            cpus=sum(_since(self._used.get(pid), process) for pid, process in every.items()) / seconds,
            main_cpus=_mean([every[pid].main_cpu_s - self._used[pid].main_cpu_s for pid in chief]) / seconds,
            allowed=_allowed(every),
            queued=_all_queued([(self._used[pid], used) for pid, used in every.items() if pid in self._used], seconds),
            main_queued=_queued([(self._used[pid], every[pid]) for pid in chief], seconds),
            throttled=_share(self._host.throttled_s, machine_now.throttled_s, seconds),
            pressure_cpu=_share(self._host.pressure["cpu"], machine_now.pressure["cpu"], seconds),
            pressure_io=_share(self._host.pressure["io"], machine_now.pressure["io"], seconds),
            pressure_memory=_share(self._host.pressure["memory"], machine_now.pressure["memory"], seconds),
            read_mb_per_s=_read(self._used, every, seconds),
            major_faults_per_s=sum(
                max(0, process.faults - self._used[pid].faults) for pid, process in every.items() if pid in self._used
            )
            / seconds,
            resident_bytes=sum(process.resident for process in every.values()),
            cached_bytes=machine_now.cached,
            available_bytes=machine_now.available,
            shm_used_bytes=machine_now.shm_used,
            gpus=tuple(cards(self._session)),
            waiting=waiting,
            steps=steps,
        )
        self._at, self._used, self._host = now, every, machine_now
        self.taken.append(sample)
        if len(self.taken) > _MOST_SAMPLES:
            self.taken = merged(self.taken)


def cards(session: Any) -> Iterable[Card]:
    """Yield the current state of every GPU."""
    for index in range(session.count() if session is not None else 0):
        handle = session.handle(index)
        if handle is None:
            continue
        reading, memory = _telemetry.reading(session, handle), session.memory(handle)
        link = session.link_now(index)
        received = session.number("nvmlDeviceGetPcieThroughput", handle, ctypes.c_uint(_TO_GPU))  # KB/s
        yield Card(
            index=index,
            util=session.utilization(handle),
            memory_util=session.memory_utilization(handle),
            memory_used=None if memory is None else memory["used"],
            sm_mhz=reading["sm_mhz"],
            watts=reading["watts"],
            celsius=reading["celsius"],
            events=tuple(reading["events"] or ()),
            rx_mb_per_s=None if received is None else received / 1e3,
            gen=link["gen"],
            width=link["width"],
        )


def merged(samples: Sequence[Sample]) -> list[Sample]:
    """Return half as many samples, each the mean of two weighted by time, so that a long training stays small."""
    pairs = [samples[index : index + 2] for index in range(0, len(samples), 2)]
    return [pair[0] if len(pair) == 1 else _both(*pair) for pair in pairs]


_MEANS = ("cpus", "main_cpus", "queued", "main_queued", "throttled", "pressure_cpu", "pressure_io", "pressure_memory",
          "read_mb_per_s", "major_faults_per_s", "waiting")  # fmt: skip


def _both(first: Sample, second: Sample) -> Sample:
    seconds = first.seconds + second.seconds
    means: dict[str, Any] = {}
    for name in _MEANS:
        left, right = getattr(first, name), getattr(second, name)
        known = left is not None and right is not None
        means[name] = (left * first.seconds + right * second.seconds) / seconds if known else right
    steps = second.steps if first.steps is None else first.steps + (second.steps or 0)
    before = {card.index: card for card in first.gpus}
    gpus = tuple(_card(before.get(card.index), card) for card in second.gpus)
    return replace(second, seconds=seconds, steps=steps, gpus=gpus, **means)


def _card(first: Card | None, second: Card) -> Card:
    if first is None:
        return second
    events = tuple(dict.fromkeys((*first.events, *second.events)))
    util = second.util if first.util is None or second.util is None else (first.util + second.util) / 2
    return replace(second, util=util, events=events)


def _described(card: dict[str, Any], session: Any, index: int) -> dict[str, Any]:
    handle = session.handle(index)
    kept = {name: card[name] for name in ("name", "cc", "mem_mib", "mig", "power_limit_w", "link", "driver")}
    highest = session.number("nvmlDeviceGetMaxClockInfo", handle, ctypes.c_uint(_telemetry.SM_CLOCK))
    node = _hostfacts.read_text(f"/sys/bus/pci/devices/{_address(card['pci_bus'])}/numa_node").strip()
    return {
        **kept,
        "id": gpu_id(card["uuid"]),
        "max_sm_mhz": highest,
        "numa_node": int(node) if node.isdigit() else None,
    }


def _address(bus: str | None) -> Path:
    """Return a PCI address as in sysfs, where the domain has four digits; NVML's has eight."""
    return Path((bus or "none")[-12:])


def _since(before: proc.Used | None, now: proc.Used) -> float:
    return max(0.0, now.cpu_s - (before.cpu_s if before is not None else 0.0))


def _queued(pairs: Sequence[tuple[proc.Used, proc.Used]], seconds: float) -> float | None:
    waits = _waits(pairs)
    return min(1.0, max(0.0, _mean(waits) / seconds)) if waits else None


def _all_queued(pairs: Sequence[tuple[proc.Used, proc.Used]], seconds: float) -> float | None:
    waits = _waits(pairs)
    return max(0.0, sum(waits) / seconds) if waits else None


def _waits(pairs: Sequence[tuple[proc.Used, proc.Used]]) -> list[float]:
    """Return the seconds in which the main thread of each process waited for a CPU, as far as the kernel says it."""
    return [
        now.main_queued_s - before.main_queued_s
        for before, now in pairs
        if now.main_queued_s is not None and before.main_queued_s is not None
    ]


def _allowed(pids: Iterable[int]) -> int | None:
    """Return the number of CPUs on which at least one of the processes may run."""
    cpus: set[int] = set()
    for pid in pids:
        with contextlib.suppress(OSError):  # it is gone
            cpus |= os.sched_getaffinity(pid)
    return len(cpus) or None


def _read(before: dict[int, proc.Used], now: dict[int, proc.Used], seconds: float) -> float | None:
    """Return the MB per second read from disks; of processes that are new, everything counts."""
    new = [(pid, process.read_bytes) for pid, process in now.items() if process.read_bytes is not None]
    old = {pid: process.read_bytes or 0 for pid, process in before.items()}
    return sum(max(0, read - old.get(pid, 0)) for pid, read in new) / 1e6 / seconds if new else None


def _share(before: float | None, now: float | None, seconds: float) -> float | None:
    return None if before is None or now is None else min(1.0, max(0.0, (now - before) / seconds))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
