"""The stream of events that one process writes: a ring of fixed records in a mapped file.

What is written is in the file at once, so nothing is lost when the process is killed. A record carries its number, so
that a reader knows what is complete, what is new and what was overwritten. Times are those of CLOCK_MONOTONIC, which
all processes of a machine share.
"""

import itertools
import json
import mmap
import os
import struct
import time

RECORD = struct.Struct("<QddfHBB")  # number from 1, begin s, duration s, amount, which loader, kind, flags
CAPACITY = 16384  # records; a reader looks twice a second
BYTES = RECORD.size * CAPACITY

# Kinds; the amount is in parentheses.
NEXT = 1  # a batch was asked for
ITER = 2  # an iterator over a loader was made
FETCH = 3  # a batch was made, in a worker or in NEXT (CPU seconds of the thread)
COPY = 4  # host to device, time on the host (bytes)
COPY_DEVICE = 5  # the same copy, time on the device (bytes)
BACKWARD = 6
STEP = 7  # an optimizer step
COLLECTIVE = 8  # time on the host (bytes)
COLLECTIVE_DEVICE = 9  # time on the device (bytes)
DDP = 10  # communication of one backward pass (seconds of it that nothing else covered)
COMPILE = 11  # torch.compile
ALLOCATOR = 12  # bytes reserved on the device (number of allocations that had to be repeated so far)
SYNC = 13  # the host waited for the device: item(), cpu()

# Flags.
EDGE, END = 1, 2  # of NEXT: the first batch of an epoch or the end of one; the end
PINNED, NON_BLOCKING, SIDE = 1, 2, 4  # of COPY and COPY_DEVICE; SIDE: on another stream than the default one
AUTOCAST, DRAIN_KNOWN, DRAINED = 1, 2, 4  # of STEP: the device had finished everything when the step was queued


class Stream:
    """What this process writes: NAME.ring with events and NAME.facts with one JSON object per line."""

    def __init__(self, folder):
        self.folder = folder
        # By time as well: the kernel gives the number of a process that ended to another one.
        self.name = os.path.join(folder, "%d-%d" % (os.getpid(), time.monotonic_ns()))
        self.numbers = itertools.count(1)  # `next` on it is atomic, so threads need no lock
        descriptor = os.open(self.name + ".ring", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(descriptor, BYTES)
            self.memory = mmap.mmap(descriptor, BYTES)
        finally:
            os.close(descriptor)
        self.facts = os.open(self.name + ".facts", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def event(self, kind, begin, seconds, amount=0.0, flags=0, *, which=0):
        """Write an event; `which` numbers loaders, for NEXT and ITER."""
        number = next(self.numbers)
        place = (number - 1) % CAPACITY * RECORD.size
        RECORD.pack_into(self.memory, place, number, begin, seconds, amount, which, kind, flags)

    def fact(self, **fields):
        """Write what is known of the process: one JSON object."""
        # One call on a file that is opened to append: lines of several threads do not mix (write(2)).
        os.write(self.facts, json.dumps(fields).encode() + b"\n")


def read(memory, number):
    """Return the records from ``number`` on that are complete, and the number of those lost before them.

    Each is ``(kind, flags, begin, seconds, amount, which)``; the writer may go on meanwhile.
    """
    found, lost = [], 0
    newest = RECORD.unpack_from(memory, (number - 1) % CAPACITY * RECORD.size)[0]
    if newest > number:  # overwritten: go on with the oldest that is still there
        first = oldest(memory)
        lost, number = first - number, first
    while True:
        complete, begin, seconds, amount, which, kind, flags = RECORD.unpack_from(
            memory, (number - 1) % CAPACITY * RECORD.size
        )
        if complete != number:
            return found, lost
        found.append((kind, flags, begin, seconds, amount, which))
        number += 1


def oldest(memory):
    """Return the smallest number in a full ring."""
    return min(RECORD.unpack_from(memory, place)[0] for place in range(0, BYTES, RECORD.size))
