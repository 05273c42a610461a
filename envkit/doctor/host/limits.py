"""Limits that affect training: shared memory, locked memory, files, CPUs and memory of the control group."""

from __future__ import annotations

import math
import os
import resource
from collections.abc import Iterator

from envkit.doctor.host.view import View
from envkit.doctor.model import Evidence, Finding, Section, Severity
from envkit.ground.host import control_groups, memory_limit, memory_total
from envkit.ground.sizes import shown_pair, shown_size

MIB = 1 << 20
SMALL_SHM = 64 * MIB
_FEW_FILES = 1024  # the usual soft limit
_LITTLE_MEMORY = 4 << 30  # bytes; a conda solve of a torch environment needs most of it
_MOUNT = "/dev/shm"  # noqa: S108 - the mount itself is the subject


def section(view: View) -> Section:
    """Describe the limits of this process; containers of an engine's daemon may have others."""
    shm = _size(view, _MOUNT)
    memlock, files = _limit(resource.RLIMIT_MEMLOCK), _limit(resource.RLIMIT_NOFILE)
    affinity = len(os.sched_getaffinity(0))
    quota, memory = cpu_quota(view), memory_limit(view.root)
    pressure = cpu_pressure(view.text("/proc/pressure/cpu"))
    total = memory_total(view.root)
    facts = (
        ("shared memory", "none" if shm is None else f"{shown_size(shm[0], 'MiB')}, {shown_size(shm[1], 'MiB')} free"),
        ("locked memory", "unlimited" if memlock is None else shown_size(memlock, "MiB" if memlock >= MIB else "KiB")),
        ("open files", "unlimited" if files is None else str(files)),
        ("CPUs", f"{affinity}" + (f", quota {quota:g}" if quota is not None else ", no quota")),
        ("memory", _gb(total) + (f", limit {_gb(memory)}" if memory is not None else ", no limit")),
        ("CPU pressure", "unknown" if pressure is None else f"{pressure:g} % of the last minute"),
    )
    findings = (
        *_of_shm(shm),
        *_of_memlock(memlock),
        *_of_files(files),
        *_of_cpus(quota, affinity),
        *_of_memory(memory if memory is not None else total),
        *_of_pressure(pressure),
    )
    return Section(id="limits", title="Limits", facts=facts, findings=findings)


def cpu_quota(view: View) -> float | None:
    """Return the lowest CPU quota of this process's control group and its parents, in CPUs; None without a quota."""
    quotas = []
    for folder in control_groups(view.root, "cpu"):
        # cpu.max is the file of cgroup v2, cpu.cfs_* those of v1.
        quota, _, period = view.text(f"{folder}/cpu.max").strip().partition(" ")
        quota = quota or view.text(f"{folder}/cpu.cfs_quota_us").strip()
        period = period or view.text(f"{folder}/cpu.cfs_period_us").strip()
        # Without a quota, version 2 has `max` and version 1 has -1.
        if quota.isdigit() and period.isdigit() and int(period):
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def cpu_pressure(text: str) -> float | None:
    """Return the percentage of the last minute in which a task waited for a CPU, from /proc/pressure/cpu."""
    for line in text.splitlines():
        # some avg10=1.53 avg60=0.87 avg300=0.20 total=12345
        if line.startswith("some "):
            values = dict(part.partition("=")[::2] for part in line.split()[1:])
            try:
                return float(values.get("avg60", ""))
            except ValueError:
                return None
    return None


def _size(view: View, name: str) -> tuple[int, int] | None:
    try:
        volume = os.statvfs(view.path(name))
    except OSError:
        return None
    return volume.f_blocks * volume.f_frsize, volume.f_bavail * volume.f_frsize


def _limit(kind: int) -> int | None:
    soft, _ = resource.getrlimit(kind)
    return None if soft == resource.RLIM_INFINITY else soft


def _gb(value: int | None) -> str:
    return "unknown" if value is None else shown_size(value, "GB", 1)


def _of_shm(shm: tuple[int, int] | None) -> Iterator[Finding]:
    if shm is None or shm[0] > SMALL_SHM:
        if shm is not None and shm[1] < shm[0] / 10:
            yield Finding(
                id="shm-full", severity=Severity.WARN, title="shared memory (/dev/shm) is nearly full",
                evidence=(Evidence(text=f"{shown_pair(shm[1], shm[0], 'MiB')} free"),),
                check=("ls -la /dev/shm",), fix=("Remove torch_* and nccl-* files of ended jobs.",),
                sources=("pytorch/pytorch#1355",),
            )  # fmt: skip
        return
    yield Finding(
        id="shm-small", severity=Severity.WARN, title="shared memory (/dev/shm) has Docker's default size or less",
        evidence=(Evidence(text=shown_size(shm[0], "MiB")),),
        cause="DataLoader workers and NCCL transfer data through it; they fail with a bus error when it is full.",
        fix=("Start this container with --shm-size=8g or --ipc=host.",),
        distinguish="Containers that envkit starts get the size that their plan sets.",
        sources=("pytorch/pytorch#5040", "pytorch/pytorch#1355"),
    )  # fmt: skip


def _of_memlock(memlock: int | None) -> Iterator[Finding]:
    if memlock is not None and memlock < MIB:
        yield Finding(
            id="memlock-small", severity=Severity.INFO, title="the limit on locked memory is small",
            evidence=(Evidence(text=f"ulimit -l: {shown_size(memlock, 'KiB')}"),),
            cause="RDMA (InfiniBand) must lock its buffers. CUDA's pinned memory does not count towards this limit.",
            fix=("Only for RDMA: memlock unlimited in /etc/security/limits.conf, --ulimit memlock=-1 for containers.",),
            sources=("NVIDIA/nccl-tests#206",),
        )  # fmt: skip


def _of_files(files: int | None) -> Iterator[Finding]:
    if files is not None and files <= _FEW_FILES:
        yield Finding(
            id="few-files", severity=Severity.INFO, title=f"a process may open only {files} files",
            cause="Each tensor that a DataLoader worker shares uses a descriptor.",
            fix=("ulimit -n 65536, or --ulimit nofile=65536:65536 for containers",),
            sources=("pytorch/pytorch#973",),
        )  # fmt: skip


def _of_cpus(quota: float | None, affinity: int) -> Iterator[Finding]:
    if quota is not None and quota < affinity:
        threads = max(1, math.floor(quota))
        yield Finding(
            id="cpu-quota", severity=Severity.WARN, title=f"programs see {affinity} CPUs but may use only {quota:g}",
            cause="torch and the DataLoader ignore the quota and start more threads than can run.",
            check=("grep throttled /sys/fs/cgroup/cpu.stat",),
            fix=(f"set OMP_NUM_THREADS={threads}, and use no more workers than that",),
            sources=("ollama/ollama#17916", "onyx-dot-app/onyx#12351"),
        )  # fmt: skip


def _of_memory(memory: int | None) -> Iterator[Finding]:
    if memory is not None and memory < _LITTLE_MEMORY:
        yield Finding(
            id="little-memory", severity=Severity.WARN, title=f"{_gb(memory)} of memory is not much for torch",
            cause="Solving conda environments and unpacking wheels can need up to 4 GB.",
            fix=("Solve elsewhere and build from the lock: envkit lock, envkit build",),
            sources=("openforcefield/openff-toolkit#2189",),
        )  # fmt: skip


def _of_pressure(pressure: float | None) -> Iterator[Finding]:
    if pressure is not None and pressure > 10:  # noqa: PLR2004 - percent; above it timings are not trusted
        yield Finding(
            id="busy-machine", severity=Severity.INFO, title="this machine is busy",
            evidence=(Evidence(text=f"tasks waited for a CPU during {pressure:g} % of the last minute"),),
            cause="Timings taken now would be inconclusive.", fix=("Measure speed when nothing else runs.",),
            sources=("https://docs.kernel.org/accounting/psi.html",),
        )  # fmt: skip
