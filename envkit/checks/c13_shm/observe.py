"""C13: run the declared loader with the real /dev/shm."""

import os
import pathlib
import signal
import time
import traceback

from envkit.smoke import hostfacts, loaders, observation

MOUNT = "/dev/shm"
SAMPLES_PER_BATCH = 4  # few, because only the bytes of a batch matter
LOADER_TIMEOUT_S = 20  # a worker without room may wait forever
FILL_LIMIT_S = 8.0  # for all workers to start and fill their queues
SIGNATURES = (
    ("no_space", ("No space left on device", "unable to allocate shared memory", "unable to write to file")),
    ("bus_error", ("Bus error", "bus error", "SIGBUS", "insufficient shared memory")),
    ("timeout", ("timed out",)),
)


def in_flight(loader):
    """Return the most bytes a loader keeps in shared memory: each worker holds prefetch_factor batches and one more."""
    workers = int(loader["num_workers"])
    prefetch = int(loader.get("prefetch_factor") or 2)
    return workers * (prefetch + 1) * int(loader["batch_bytes"])


def signature(message):
    """Return the known cause of an error: ``no_space``, ``bus_error``, ``timeout`` or ``other``."""
    for name, texts in SIGNATURES:
        if any(text in message for text in texts):
            return name
    return "other"


def run(ctx):
    """Run the loader declared in the spec until its queues are full, and return C13.shm."""
    loader = ctx.spec.get("loader")
    if not loader or loader.get("batch_bytes") is None:
        raise observation.Skip("NOT_PROMISED", "the plan declares no loader")
    if not loader.get("num_workers"):
        raise observation.Skip("NO_WORKERS", "the declared loader has no workers, so it uses no shared memory")
    before = hostfacts.shared_memory(MOUNT)
    observed = {
        "need_bytes": in_flight(loader),
        "shm_bytes": before["bytes"],
        "free_bytes": before["free_bytes"],
        "loader": {key: loader.get(key) for key in ("num_workers", "prefetch_factor", "batch_bytes")},
    }
    controls = [_too_large_is_refused(before["bytes"])]
    observed.update(_drive(ctx.torch, loader, before["free_bytes"]))
    if observed["outcome"] == "ok" and before["free_bytes"] is not None:
        # Without this the check would also pass if the batches never used the mount.
        used = observed["used_bytes"] >= int(loader["batch_bytes"])
        controls.append(observation.control("batches_lie_in_shm", used, f"{observed['used_bytes']} bytes in use"))
    return [observation.ran("C13.shm", "host", observed, controls=controls)]


class Batches:
    """A map-style dataset of byte tensors whose content is their index, ``SAMPLES_PER_BATCH`` to a batch."""

    def __init__(self, torch, count, sample_bytes):
        self.torch = torch
        self.count = count
        self.sample_bytes = sample_bytes

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return self.torch.full((self.sample_bytes,), index % PATTERN, dtype=self.torch.uint8)


PATTERN = 251  # a prime, so that samples at the same position in different batches differ


def _drive(torch, loader, free_bytes):
    workers, prefetch = int(loader["num_workers"]), int(loader.get("prefetch_factor") or 2)
    sample_bytes = max(1, int(loader["batch_bytes"]) // SAMPLES_PER_BATCH)
    batches = workers * (prefetch + 2)
    dataset = Batches(torch, batches * SAMPLES_PER_BATCH, sample_bytes)
    options = {"batch_size": SAMPLES_PER_BATCH, "prefetch_factor": prefetch, "timeout": LOADER_TIMEOUT_S}
    begin, wrong, seen, least, iterator = time.monotonic(), 0, 0, free_bytes, None
    try:
        iterator = loaders.batches(torch, dataset, num_workers=workers, **options)
        batch = next(iterator)
        least = _wait_until_full(free_bytes, workers * prefetch * int(loader["batch_bytes"]))
        while batch is not None:
            first = seen * SAMPLES_PER_BATCH
            want = [(first + offset) % PATTERN for offset in range(SAMPLES_PER_BATCH)]
            wrong += [int(value) for value in batch[:, -1]] != want
            seen += 1
            batch = next(iterator, None)
    except (RuntimeError, OSError) as error:
        # torch raises "exited unexpectedly" from the error that names the signal.
        chain = [item for item in (error, error.__cause__) if item is not None]
        message = "\n".join(str(item) for item in chain)
        loaders.stop_all()
        # The frames are in a cycle with the error and keep batches alive, which would fill the mount for later checks.
        for item in chain:
            traceback.clear_frames(item.__traceback__)
        outcome = "bus_error" if _died_of(iterator, signal.SIGBUS) else signature(message)
        return {"outcome": outcome, "message": message[:1000], "wall_s": time.monotonic() - begin}
    finally:
        loaders.stop(iterator)
        iterator = batch = None
    used = 0 if least is None else free_bytes - least
    wall = time.monotonic() - begin
    whole = seen == batches and not wrong
    return {
        "outcome": "ok" if whole else "wrong_data",
        "used_bytes": used,
        "batches": seen,
        "wrong": wrong,
        "wall_s": wall,
    }


def _died_of(iterator, number):
    """Whether a signal killed a worker. torch raises that in its SIGCHLD handler, where other code may catch it."""
    return any(worker.exitcode == -number for worker in getattr(iterator, "_workers", ()))


def _wait_until_full(free_bytes, expected):
    """Wait until the queues are full, and return the least free space seen."""
    if free_bytes is None:
        return None
    least, stop, still = free_bytes, time.monotonic() + FILL_LIMIT_S, 0
    while time.monotonic() < stop and still < 10 and free_bytes - least < expected:
        time.sleep(0.02)
        free = hostfacts.shared_memory(MOUNT)["free_bytes"]
        still = 0 if free < least else still + 1
        least = min(least, free)
    return least


def _too_large_is_refused(total):
    """Control: the mount must refuse more than its size. The kernel compares sizes first, so no page is allocated."""
    name = "oversize_is_refused"
    if not total:
        return observation.control(name, True, "the mount has no size limit, so there is none to test")
    path = pathlib.Path(MOUNT) / f"envkit-{os.getpid()}"
    fd = None
    try:
        fd = os.open(str(path), os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        path.unlink()
        os.posix_fallocate(fd, 0, total + 4096)
    except OSError as error:
        return observation.control(name, True, f"{type(error).__name__}: {error.strerror}")
    finally:
        if fd is not None:
            os.close(fd)
    return observation.control(name, False, f"{total + 4096} bytes fit a mount of {total}")
