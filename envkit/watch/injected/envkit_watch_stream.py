"""The stream of events that one process writes: a ring of fixed-size records in a mapped file.

Records are in the file immediately, so nothing is lost if the process is killed. Each record has a number, which shows
a reader whether the record is complete, new or overwritten. Times are of CLOCK_MONOTONIC, which all processes of a
machine share.
"""

import errno
import fcntl
import itertools
import json
import mmap
import os
import resource
import struct
import time

# 32 bytes, without padding. A float32 amount has seven digits, which is enough for means of bytes and seconds.
RECORD = struct.Struct("<QddfHBB")  # number from 1, begin s, duration s, amount, which loader, kind, flags
NUMBER = struct.Struct("<Q")  # the first field
CAPACITY = 16384  # records; the reader reads twice a second
BYTES = RECORD.size * CAPACITY
LOADERS_MOST = 20  # loaders with a number; a training may make a new loader for every epoch
HIGH = 1024  # the usual limit of descriptors

# Kinds; the meaning of the amount is in parentheses.
NEXT = 1  # a batch was requested
ITER = 2  # an iterator over a loader was created
FETCH = 3  # a batch was made, in a worker or within NEXT (CPU seconds)
COPY = 4  # host to device, time on the host (bytes)
COPY_DEVICE = 5  # the same copy, time on the device (bytes)
BACKWARD = 6
STEP = 7  # an optimizer step
COLLECTIVE = 8  # time on the host (bytes)
COLLECTIVE_DEVICE = 9  # time on the device (bytes)
DDP = 10  # communication of one backward pass (seconds of it that did not overlap with computing)
COMPILE = 11  # torch.compile
ALLOCATOR = 12  # bytes reserved on the device, in place of the duration (number of retried allocations so far)
SYNC = 13  # the host waited for the device: item(), cpu()

# Flags.
EDGE, END = 1, 2  # of NEXT; EDGE: the first batch or the end of an epoch; END: the end
PINNED, NON_BLOCKING, SIDE = 1, 2, 4  # of COPY and COPY_DEVICE; SIDE: not on the default stream
WITHIN = 1  # of COMPILE: within a backward pass
AUTOCAST, DRAIN_KNOWN, DRAINED = 1, 2, 4  # of STEP; DRAINED: the device had finished all work before the step


def name(folder):
    """Return a name for files of this process. The time is in it because the kernel reuses process IDs."""
    return os.path.join(folder, "%d-%d" % (os.getpid(), time.monotonic_ns()))


def fill(descriptor):
    """Write a whole ring without records.

    Raises OSError if there is no room for it.
    """
    if os.write(descriptor, bytes(BYTES)) < BYTES:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def append(path, line):
    """Append a line to a file."""
    # Opened for each line: a training may close descriptors that it does not know, and its own files get their numbers.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        # A single write to a file that is open for appending: lines of several threads do not mix (write(2)).
        os.write(descriptor, line)
    finally:
        os.close(descriptor)


def crash_file(folder):
    """Return the descriptor of a new file for the traceback at a fatal signal.

    Its number is high, because a training that closes every descriptor gets the lowest numbers for its own files.
    """
    low = os.open(name(folder) + ".crash", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, max(3, min(limit if limit > 0 else HIGH, HIGH) - 16))
    finally:
        os.close(low)


class Stream:
    """The files of this process: NAME.ring with events, and NAME.facts with one JSON object per line."""

    def __init__(self, folder):
        self.name = name(folder)
        self.numbers = itertools.count(1)  # `next` on it is atomic, so threads need no lock
        # Close-on-exec, so that programs that the training starts do not keep the files open.
        descriptor = os.open(self.name + ".ring", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            # On a full disk this fails here. In a file without blocks, the first event would end the process by SIGBUS.
            fill(descriptor)
            self.memory = mmap.mmap(descriptor, BYTES)
        except OSError:
            os.unlink(self.name + ".ring")
            raise
        finally:
            os.close(descriptor)

    def event(self, kind, begin, seconds, amount=0.0, flags=0, *, which=0):
        """Write an event; `which` is the number of the loader, for NEXT and ITER."""
        number = next(self.numbers)
        offset = (number - 1) % CAPACITY * RECORD.size
        # Without its number while it is written, so that a reader never takes half of a record (`read` looks twice).
        NUMBER.pack_into(self.memory, offset, 0)
        RECORD.pack_into(self.memory, offset, 0, begin, seconds, amount, which, kind, flags)
        NUMBER.pack_into(self.memory, offset, number)

    def fact(self, **fields):
        """Write a fact about the process as one JSON object."""
        append(self.name + ".facts", json.dumps(fields).encode() + b"\n")


def read(first, second, number):
    """Return the complete records from ``number`` on, and how many were lost before them.

    A record is ``(kind, flags, begin, seconds, amount, which)``. ``first`` and ``second`` are copies of a ring, in the
    order in which they were made: the writer may write meanwhile, and takes a record's number away before it does.
    """
    records, lost = [], 0
    newest = RECORD.unpack_from(first, (number - 1) % CAPACITY * RECORD.size)[0]
    if newest > number:  # it was overwritten: continue with the oldest record in the ring
        begin = oldest(first)
        lost, number = max(0, begin - number), max(begin, number)
    while len(records) < CAPACITY:
        offset = (number - 1) % CAPACITY * RECORD.size
        complete, begin, seconds, amount, which, kind, flags = RECORD.unpack_from(first, offset)
        if complete != number or NUMBER.unpack_from(second, offset)[0] != number:
            break
        records.append((kind, flags, begin, seconds, amount, which))
        number += 1
    return records, lost


def oldest(memory):
    """Return the smallest number in a full ring; a record without one is being written."""
    return min(filter(None, (NUMBER.unpack_from(memory, offset)[0] for offset in range(0, BYTES, RECORD.size))))
