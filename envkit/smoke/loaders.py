"""Data sets and loaders of the DataLoader check, at module level so that workers of any start method can import them.

The data sets have the two methods that a loader calls and no base class, so this module imports without torch.
"""

import contextlib
import functools
import gc
import random
import time
import warnings
import zlib

from . import compat

WIDTH = 256  # values of a sample


class Numbered:
    """Sample i is (i, WIDTH int32 values that depend on i, their checksum)."""

    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        import torch

        values = (torch.arange(WIDTH, dtype=torch.int32) * 31 + index * 7919) % 65521
        return index, values, checksum(values)


class Faulty(Numbered):
    """Numbered, with an exception at one index (None: nowhere)."""

    def __init__(self, length, fault_at):
        super().__init__(length)
        self.fault_at = fault_at

    def __getitem__(self, index):
        if index == self.fault_at:
            raise ValueError(fault_text(index))
        return super().__getitem__(index)


class Slow(Numbered):
    """Numbered, with a sleep of ``seconds`` before each sample: a loader that waits for storage."""

    def __init__(self, length, seconds):
        super().__init__(length)
        self.seconds = seconds

    def __getitem__(self, index):
        time.sleep(self.seconds)
        return super().__getitem__(index)


class Decoding:
    """Samples that decompress blocks as large as an image on one core: a loader that waits for the CPU."""

    SIDE = 112

    def __init__(self, length, blocks=2):
        self.length = length
        self.packed = _packed_picture()
        self.blocks = blocks

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        import torch

        total = 0
        for _ in range(self.blocks):
            total = zlib.crc32(zlib.decompress(self.packed), total)
        return index, torch.full((3, self.SIDE, self.SIDE), float(total % 251)), index


class Pictures:
    """Labeled images to train on: (number, uint8 image, label), decompressed as in ``Decoding``."""

    SIDE = 112
    BYTES = 3 * SIDE * SIDE
    CLASSES = 10

    def __init__(self, length, blocks=2):
        self.length = length
        self.packed = _packed_picture()
        self.blocks = blocks

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        import torch

        for _ in range(self.blocks):
            raw = zlib.decompress(self.packed)
        shift = index % 997
        picture = compat.byte_tensor(torch, raw[shift : shift + self.BYTES])
        label = index % self.CLASSES
        # The label is the brightness, so that a network can learn it.
        return index, picture.reshape(3, self.SIDE, self.SIDE) + 20 * label, label


@functools.lru_cache(maxsize=1)
def _packed_picture():
    return zlib.compress(bytes(random.Random(0).choices(range(48), k=150000)), 1)


def fault_text(index):
    """Return the text of the planted exception."""
    return "planted fault at sample {}".format(index)


def checksum(values):
    """Return the checksum of one sample, weighted by position so that swapped values change it."""
    import torch

    weights = torch.arange(1, values.numel() + 1, dtype=torch.int64)
    return int((values.to(torch.int64) * weights).sum())


def faults(batches, length):
    """Count the errors in batches of Numbered that should hold 0..length-1 in order.

    Returns ``{"received", "missing", "out_of_place", "damaged"}``.
    """
    numbers, damaged = [], 0
    for indices, images, sums in batches:
        numbers.extend(int(index) for index in indices)
        pairs = zip(images, sums)  # noqa: B905 - strict= came after Python 3.8
        damaged += sum(checksum(image) != int(expected) for image, expected in pairs)
    misplaced = sum(got != wanted for wanted, got in enumerate(numbers))
    missing = len(set(range(length)) - set(numbers))
    return {"received": len(numbers), "missing": missing, "out_of_place": misplaced, "damaged": damaged}


def loader(torch_module, data, num_workers, **options):
    """Return a DataLoader with forked workers, which need no importable main module."""
    if num_workers:
        options["multiprocessing_context"] = "fork"
    with quiet():
        return torch_module.utils.data.DataLoader(data, num_workers=num_workers, **options)


def batches(torch_module, data, **options):
    """Return an iterator over a new loader, as ``iterate`` does."""
    return iterate(loader(torch_module, data, **options))


def iterate(source):
    """Return an iterator over a loader. Its workers start without warnings, and collect no garbage of this process.

    Garbage that is freed in a forked worker can end it: the destructor of a CUDA event calls CUDA, which a forked
    process cannot use. A measurement that raised leaves its events in a cycle with the frames of its error.
    """
    gc.freeze()
    try:
        with quiet():
            return iter(source)
    finally:
        gc.unfreeze()


def stop(iterator):
    """Stop the workers of an iterator that raised.

    The exception's frames keep the iterator alive in a reference cycle. If the garbage collector frees its queues
    first, joining each worker times out; a process that is forked before that inherits the iterator and prints errors
    when it exits.
    """
    shut_down = getattr(iterator, "_shutdown_workers", None)
    if shut_down is not None:
        # torch's SIGCHLD handler raises once for every worker that died, wherever the main thread is. If that is just
        # after it acquired a queue's lock, the lock is never released.
        for queue in getattr(iterator, "_index_queues", ()):
            lock = getattr(queue, "_notempty", None)
            if lock is not None:
                lock.acquire(timeout=1)
                lock.release()
        # The error that ended the iteration is already known, and torch stops the other workers in a `finally`.
        with contextlib.suppress(RuntimeError):
            shut_down()


def stop_all():
    """Stop the workers of all iterators. Only the error's frames refer to one that raised while it was created."""
    for item in gc.get_objects():
        if type(item).__name__ == "_MultiProcessingDataLoaderIter":
            stop(item)


@contextlib.contextmanager
def quiet():
    """Suppress two warnings about what is intended here: more workers than CPUs, and fork with torch's threads."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        warnings.filterwarnings("ignore", message=".*multi-threaded, use of fork")
        yield
