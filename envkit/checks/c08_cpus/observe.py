"""C08: the CPUs that this container may really use, and the threads that torch starts."""

import hashlib
import resource
import threading
import time

from envkit.smoke import hostfacts, libraries, noise, observation

SPIN_S = 0.5  # five periods of a quota
MAX_SPIN_THREADS = 16  # enough to exceed a quota, without stopping a large machine
BLOCK = bytes(1 << 20)


def run(ctx):
    """Return effective CPUs, torch's threads, OpenMP runtimes, and how often the quota throttled torch's threads."""
    torch = ctx.torch
    cpus = hostfacts.cpus()
    threads = torch.get_num_threads()
    quota = observation.control(
        "planted_quota_is_seen",
        hostfacts.effective_cpus(8, hostfacts.quota_v2("150000 100000"), None) == 1.5,
        "8 CPUs by affinity under a quota of 1.5",
    )
    counted = dict(cpus, torch_threads=threads, whole=hostfacts.whole_cpus(cpus["effective"]))
    planted = libraries.openmp_runtimes({"libgomp.so.1": [], "libiomp5.so": []})
    second = observation.control("planted_second_runtime_is_seen", planted == ["libgomp", "libiomp5"], str(planted))
    openmp = {"runtimes": libraries.openmp_runtimes(libraries.in_this_process())}
    spun, loaded = _spin(min(threads, MAX_SPIN_THREADS))
    return [
        observation.ran("C08.threads", "host", counted, controls=[quota]),
        observation.ran("C08.openmp", "image", openmp, controls=[second]),
        observation.ran("C08.throttling", "host", dict(spun, effective=cpus["effective"]), controls=[loaded]),
    ]


def _spin(threads):
    """Keep as many threads busy as torch starts; return the quota's counters over that second, and the control."""
    before, begin, cpu = noise.throttling(), time.monotonic(), _cpu_seconds()
    stop = begin + SPIN_S
    workers = [threading.Thread(target=_hash_until, args=(stop,), daemon=True) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    wall, used, after = time.monotonic() - begin, _cpu_seconds() - cpu, noise.throttling()
    observed = {"threads": threads, "wall_s": wall, "cpu_s": used, "periods": None, "throttled": None}
    if before is not None and after is not None:
        observed["periods"] = after["nr_periods"] - before["nr_periods"]
        observed["throttled"] = after["nr_throttled"] - before["nr_throttled"]
    # Far below what an idle machine reaches: it only has to show that there was a load, also on the busiest machine.
    detail = f"{used:.2f} CPU seconds in {wall:.2f} s on {threads} threads"
    return observed, observation.control("load_was_real", used > 0.1 * SPIN_S, detail)


def _hash_until(stop):
    # Hashing releases the GIL, so the threads run in parallel.
    while time.monotonic() < stop:
        hashlib.sha256(BLOCK).digest()


def _cpu_seconds():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
