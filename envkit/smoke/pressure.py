"""How long work waited for a CPU, and time limits that stretch while it does.

A limit is made for a machine that has its CPUs free. On a busy one the same work takes several times as long, so a
second in which something waited for a CPU counts only in part. A limit stretches to at most STRETCH times its length: a
check that hangs has to end on a busy machine, too.

The reading is the best that this machine has: pressure stall information (PSI), else how long the threads of this run
waited in the scheduler's queues, else the load average. Containers often hide the first one, never the second.
"""

import contextlib
import math
import os
import time

from . import hostfacts

PSI_CPU = "/proc/pressure/cpu"
PSI_LIMIT = 0.10  # share of the time in which something waited for a CPU; above it the machine is busy
STRETCH = 4.0
# A run that has this share of all CPU time it may use is not hindered by others: it waits for itself.
OWN_SHARE = 0.9
# Seconds between two readings. The queues of threads that ended in between are lost.
READ_S = 1.0
LEAST_S = 0.05  # of a pause before the limit is looked at again
# With two runnable tasks per CPU, each of them waits half of the time.
LOAD_FULL = 2.0
_NS = 1e9

_waits = {}


def psi_total_us(text):
    """Return the total stall time in microseconds of the ``some`` line in a PSI file's text, or None."""
    for line in (text or "").splitlines():
        if line.startswith("some"):
            for field in line.split()[1:]:
                key, _, value = field.partition("=")
                if key == "total" and value.isdigit():
                    return int(value)
    return None


def queued_ns(schedstat):
    """Return the nanoseconds that a thread waited in its CPU's queue, from the text of its ``schedstat``, or None."""
    words = (schedstat or "").split()
    return int(words[1]) if len(words) == 3 and words[1].isdigit() and words != ["0", "0", "0"] else None


def load_share(loadavg, cpus):
    """Return the share of the time in which something waits for a CPU, estimated from /proc/loadavg; 0 if unknown."""
    word = (loadavg or "").split(" ")[0]
    try:
        load = float(word)
    except ValueError:
        return 0.0
    return min(1.0, max(0.0, (load / cpus - 1.0) / (LOAD_FULL - 1.0))) if math.isfinite(load) and cpus else 0.0


def cpus():
    """Return how many CPUs this run may use."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1.0, min(allowed, hostfacts.read_cgroup()["quota_cpus"] or allowed))


def family(root, proc="/proc"):
    """Return the IDs of a process and of all processes below it."""
    parents = {}
    for name in _names(proc):
        if name.isdigit():
            with contextlib.suppress(ValueError, IndexError):
                parents[int(name)] = int(_stat(proc, name)[1])
    below, new = [], {root}
    while new:
        below.extend(new)
        new = {pid for pid, parent in parents.items() if parent in new} - set(below)
    return below


def used_s(pids, proc="/proc"):
    """Return the CPU seconds of processes and of those that they have waited for."""
    ticks = 0
    for pid in pids:
        with contextlib.suppress(ValueError, IndexError):
            ticks += sum(int(word) for word in _stat(proc, pid)[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def _stat(proc, pid):
    """Return the fields of a process's ``stat`` after its name, which may contain blanks."""
    return hostfacts.read_text(f"{proc}/{pid}/stat").rpartition(")")[2].split()


def _names(folder):
    try:
        return os.listdir(folder)  # noqa: PTH208 - names are all that is needed
    except OSError:
        return []


class Waits:
    """The seconds in which work waited for a CPU, counted from the first reading on.

    ``root`` is the first process of the run. ``clock`` and ``proc`` are for tests.
    """

    def __init__(self, root=None, clock=time.monotonic, proc="/proc"):
        self.clock, self.cpus = clock, cpus()
        self._root, self._proc = root or os.getpid(), proc
        self._at, self._waited = clock(), 0.0
        self._psi = psi_total_us(self._text("pressure/cpu"))
        self._queues = {} if self._psi is not None else self._queued()
        self.source = "PSI" if self._psi is not None else "schedstat" if self._queues else "loadavg"

    def read(self):
        """Return the seconds so far. No reading adds more than the time that passed."""
        now = self.clock()
        passed, self._at = now - self._at, now
        self._waited += min(passed, max(0.0, self._more(passed)))
        return self._waited

    def measured(self):
        """Return the seconds so far; None if this machine only has a load average, which is that of a minute."""
        return None if self.source == "loadavg" else self.read()

    def own_s(self):
        """Return the CPU seconds that the processes of the run have used."""
        return used_s(family(self._root, self._proc), self._proc)

    def _more(self, passed):
        if self.source == "PSI":
            before, total = self._psi, psi_total_us(self._text("pressure/cpu"))
            self._psi = before if total is None else total
            return (self._psi - before) / 1e6
        if self.source == "schedstat":
            before, self._queues = self._queues, self._queued()
            return sum(max(0, ns - before.get(thread, 0)) for thread, ns in self._queues.items()) / _NS
        return passed * load_share(self._text("loadavg"), os.cpu_count())

    def _queued(self):
        queues = {}
        for pid in family(self._root, self._proc):
            for thread in _names(f"{self._proc}/{pid}/task"):
                waited = queued_ns(self._text(f"{pid}/task/{thread}/schedstat"))
                if waited is not None:
                    queues[pid, thread] = waited
        return queues

    def _text(self, name):
        return hostfacts.read_text(f"{self._proc}/{name}")


def of_this_process():
    """Return the waits of the run below this process, which all its limits share; a forked process has its own."""
    pid = os.getpid()
    if pid not in _waits:
        _waits[pid] = Waits()
    return _waits[pid]


class Limit:
    """A time limit of ``seconds`` that stretches while work waits for a CPU."""

    def __init__(self, seconds, waits=None):
        self.seconds, self._waits = seconds, waits or of_this_process()
        self._begin, self._before, self._own_s = self._waits.clock(), self._waits.read(), self._waits.own_s()

    def left(self):
        """Return the seconds until the limit if nothing waits from now on; 0 or less if it is reached."""
        passed = self.passed()
        hindered = min(passed, self._waits.read() - self._before)
        return self.seconds - passed + hindered * (1.0 - 1.0 / STRETCH)

    def pause(self):
        """Return for how many seconds to wait before ``left`` is asked again."""
        pause = max(LEAST_S, self.left())
        return min(pause, READ_S) if self._waits.source == "schedstat" else pause

    def passed(self):
        """Return the seconds since the limit began."""
        return self._waits.clock() - self._begin

    def readings(self):
        """Return ``{psi_cpu_some, own_cpu, window_s, source, gate}`` of the time since the limit began.

        ``psi_cpu_some`` is the share of it in which work waited, ``own_cpu`` the run's share of the CPU time that it
        may use. ``gate`` is "clean", or says that other work kept the CPUs busy.
        """
        window = max(1e-6, self.passed())
        share = min(1.0, (self._waits.read() - self._before) / window)
        own = (self._waits.own_s() - self._own_s) / (window * self._waits.cpus)
        busy = share > PSI_LIMIT and own < OWN_SHARE
        gate = "CPU pressure {:.2f} above {:.2f}".format(share, PSI_LIMIT) if busy else "clean"
        return {"psi_cpu_some": share, "own_cpu": own, "window_s": window, "source": self._waits.source, "gate": gate}
