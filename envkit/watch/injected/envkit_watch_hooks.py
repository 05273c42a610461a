"""The base of the probes: this process's recorder, device timing and loader numbers, and the import hook."""

import collections
import os
import sys
import time

import envkit_watch_stream as stream

clock = time.monotonic
NEVER = float("-inf")
PENDING_MOST = 64  # limit of event pairs whose times are not read yet
EVENTS_MOST = 4 * PENDING_MOST  # limit of events: the pairs, and one of each thread that steps an optimizer
ALLOCATOR_EVERY_S = 1.0  # torch collects its statistics for each call, which takes time


def keeper(ctypes):
    """Return a function that gives an object a reference that nobody drops, None if this Python has none.

    A list would be emptied at the end of the interpreter, which is where a forked process frees what it inherited.
    """
    try:
        keep = ctypes.pythonapi["Py_IncRef"]  # an own function object: its types are not shared with the training
        keep.argtypes, keep.restype = (ctypes.py_object,), None
    except Exception:  # a Python without ctypes or without CPython's functions
        return None
    return keep


class Recorder:
    """The writer of this process's stream. It opens with the first event; a forked child opens its own.

    No method raises: a training must go on if it cannot be recorded.
    """

    def __init__(self, folder):
        self.folder = folder
        self.stream = None
        self.pid = os.getpid()
        self.inherited = []  # streams of the processes that this one was forked from; freeing one closes a descriptor
        self.dead = False
        self.known = set()
        self.loader = 0  # the number of the loader whose workers are being started

    def forget(self):
        """Start without a stream: this is a forked child, and the open stream is its parent's."""
        if self.stream is not None:
            self.inherited.append(self.stream)
        self.pid, self.stream, self.known = os.getpid(), None, set()

    def event(self, *fields, which=0):
        """Write an event. Without a stream, nothing is recorded and the training goes on."""
        # Checked here too: a fork by a library in C, or by an os.fork that the training replaced, calls no handler.
        if self.pid != os.getpid():
            self.forget()
        if self.stream is None and not self.open():
            return
        try:
            self.stream.event(*fields, which=which)
        except Exception:
            self.dead, self.stream = True, None

    def fact(self, what, **fields):
        """Write a fact; only the first one of each kind."""
        if self.pid != os.getpid():
            self.forget()
        if what in self.known or (self.stream is None and not self.open()):
            return
        self.known.add(what)
        try:
            self.stream.fact(fact=what, **fields)
        except Exception:
            return

    def crash_file(self):
        """Return the descriptor of a new file for the traceback at a fatal signal.

        Raises OSError if the folder is gone.
        """
        return stream.crash_file(self.folder)

    def open(self):
        """Open the stream and return whether that succeeded."""
        if self.dead:
            return False
        try:
            self.stream = stream.Stream(self.folder)
            if device.keep is not None:
                device.keep(self.stream)
        except Exception:
            self.dead = True
            return False
        ranks = {name: os.environ.get(name) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE")}
        threads = os.environ.get("OMP_NUM_THREADS")
        ids = {"pid": os.getpid(), "ppid": os.getppid(), "loader": self.loader}
        self.fact("process", program=program(), omp_num_threads=threads, **ids, **ranks)
        return True


def program():
    """Return the script or module that this process runs, without arguments, which may contain secrets."""
    # sys.orig_argv is new in Python 3.10; before, only the interpreter is known this early.
    words = list(getattr(sys, "orig_argv", None) or [sys.executable])
    for at, word in enumerate(words[1:], 1):
        if word == "-c":
            return "python -c"
        if word == "-m":
            return "".join(words[at + 1 : at + 2])[:80]
        if not word.startswith("-"):
            return os.path.basename(word)[:80]
    return os.path.basename(words[0])


class Mark:
    """A CUDA event and the device that it belongs to."""

    __slots__ = ("event", "index")

    def __init__(self, event, index):
        self.event = event
        self.index = index


class Device:
    """Times on the GPU from pairs of events, which are read after they are done, so that nothing waits for them.

    Events are made once, used again, and never freed: the destructor of an event calls CUDA, and in a process that was
    forked that ends the process. So nothing in a forked process can free one: not a handler, a thread's state that
    Python clears, the garbage collector or the end of the interpreter. A process that inherited events times nothing
    on the GPU. A method that fails turns the timing off, and the training goes on.
    """

    def __init__(self):
        self.cuda = None
        self.make = None
        self.keep = None
        self.off = False
        self.probed = False  # torch was imported through our finder
        self.pid = os.getpid()
        self.made = 0
        self.free = {}
        self.pending = collections.deque()
        self.allocator_at = NEVER

    def use(self, cuda, ctypes):
        """Time work on this device, which is `torch.cuda`, from now on."""
        self.keep, self.probed = keeper(ctypes), True
        if cuda is None:
            return
        if self.keep is None:
            recorder.fact("probe-failed", module="torch.cuda", error="this Python cannot keep events (no ctypes)")
            return
        # A training may replace torch.cuda.Event later.
        self.cuda, self.make = cuda, cuda.Event

    def is_ready(self):
        """Whether work of this process on the device can be timed now."""
        cuda = self.cuda
        if cuda is None or self.off:
            return False
        if self.pid != os.getpid():
            if self.made:  # inherited, and CUDA cannot be used here
                self.off = True
                return False
            self.pid = os.getpid()
        # Before CUDA is initialized, an event would create its context, earlier than the training does. While a CUDA
        # graph is captured, timing events must not be recorded, and a query would end the capture.
        return cuda.is_initialized() and not cuda.is_current_stream_capturing()

    def failed(self, error):
        """Turn the timing off after an error. It may be of earlier work; then the training's next call gets it, too."""
        self.off = True
        recorder.fact("probe-failed", module="torch.cuda", error=type(error).__name__)

    def mark(self):
        """Return an event recorded now on the device, None if nothing can be timed."""
        try:
            if not self.is_ready():
                return None
            mark = self.take(self.cuda.current_device())
            if mark is not None:
                mark.event.record()
        except Exception as error:
            self.failed(error)
            return None
        return mark

    def take(self, index):
        """Return a mark that is not in use, None if there are too many already."""
        try:
            return self.free.setdefault(index, []).pop()
        except IndexError:
            if self.made >= EVENTS_MOST:
                return None
        mark = Mark(self.make(enable_timing=True), index)
        self.keep(mark.event)
        self.made += 1
        return mark

    def give(self, *marks):
        """Take back marks, which are then used again."""
        for mark in marks:
            if mark is not None:
                self.free.setdefault(mark.index, []).append(mark)

    def is_done(self, mark):
        """Return whether the device has reached a mark; None without one, or if that cannot be asked now."""
        try:
            return mark.event.query() if mark is not None and self.is_ready() else None
        except Exception as error:
            self.failed(error)
            return None

    def begin(self):
        """Return a mark for the begin of something, None if it cannot be timed."""
        return self.mark() if len(self.pending) < PENDING_MOST else None

    def is_aside(self):
        """Whether the current stream is not the default one."""
        try:
            return self.is_ready() and self.cuda.current_stream() != self.cuda.default_stream()
        except Exception as error:
            self.failed(error)
            return False

    def end(self, first, kind, at, amount, flags):
        """Mark the end for `first`; `collect` writes the event once both are done."""
        if first is None:
            return
        last = self.mark()
        if last is None:
            self.give(first)
        else:
            self.pending.append((first, last, kind, at, amount, flags))

    def collect(self):
        """Write the events that the device has finished."""
        # Only the oldest pair is asked: a stream finishes its events in their order, and `query` does not wait.
        while self.pending and self.is_done(self.pending[0][1]):
            first, last, kind, at, amount, flags = self.pending.popleft()
            try:
                seconds = first.event.elapsed_time(last.event) / 1e3
            except Exception:  # the two events are of different devices
                seconds = None
            self.give(first, last)
            if seconds is not None:
                recorder.event(kind, at, seconds, amount, flags)

    def allocator(self, now):
        """Write the state of the caching allocator, at most once a second."""
        if now - self.allocator_at < ALLOCATOR_EVERY_S:
            return
        try:
            if not self.is_ready():
                return
            self.allocator_at = now
            stats = self.cuda.memory_stats()
            reserved = float(stats.get("reserved_bytes.all.current", 0))
            recorder.event(stream.ALLOCATOR, now, reserved, float(stats.get("num_alloc_retries", 0)))
        except Exception as error:
            self.failed(error)


class Loaders:
    """Numbers of loaders, from 1. A new loader with the same data set and settings gets the same number."""

    def __init__(self):
        self.known = {}

    def number(self, loader):
        """Return the number of a loader, and write its settings if it is new; 0 beyond `stream.LOADERS_MOST`."""
        try:
            return self.known_number(loader)
        except Exception:  # a loader of another class, with attributes that raise
            return 0

    def known_number(self, loader):
        """Return the number of a loader.

        Raises what a loader's own attributes raise.
        """
        facts = self.facts(loader)
        key = (id(loader.dataset), *map(str, facts.values()))
        if key not in self.known and len(self.known) < stream.LOADERS_MOST:
            self.known[key] = len(self.known) + 1
            recorder.fact("loader.%d" % self.known[key], **facts)
        return self.known.get(key, 0)

    @staticmethod
    def facts(loader):
        """Return the settings of a loader."""
        names = ("num_workers", "pin_memory", "persistent_workers", "prefetch_factor", "batch_size")
        values = {name: getattr(loader, name, None) for name in names}
        settings = {name: value if isinstance(value, int) else None for name, value in values.items()}
        context = getattr(loader, "multiprocessing_context", None)
        settings["start_method"] = context.get_start_method() if context is not None else None
        settings["dataset"] = type(loader.dataset).__name__
        return settings


class Finder:
    """A finder that runs a probe on some modules after their import; all other modules are left to other finders."""

    def __init__(self, probes):
        self.probes = probes

    def find_spec(self, name, path=None, target=None):
        """Find a module with the other finders, and make its probe run after it is loaded."""
        if name not in self.probes:
            return None
        # Removed first: another finder may search for the name through sys.meta_path, and so through this one.
        probe = self.probes.pop(name)
        for finder in sys.meta_path:
            spec = None if finder is self or not hasattr(finder, "find_spec") else finder.find_spec(name, path, target)
            if spec is not None:
                self.attach(spec, probe)
                return spec
        return None

    @staticmethod
    def attach(spec, probe):
        """Make the loader call `probe` with the loaded module."""
        load = getattr(spec.loader, "exec_module", None)

        def loaded(module):
            load(module)
            try:
                probe(module)
            # A failing probe must not fail the import of torch.
            except Exception as error:
                recorder.fact("probe-failed", module=spec.name, error=type(error).__name__)

        if load is not None:
            try:
                spec.loader.exec_module = loaded
            except AttributeError:  # a loader without __dict__, whose methods cannot be replaced
                return


device = Device()
recorder = Recorder("")
