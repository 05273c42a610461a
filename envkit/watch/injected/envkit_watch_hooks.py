"""The base of the probes: this process's recorder, device timing and loader numbers, and the import hook."""

import collections
import os
import sys
import time

import envkit_watch_stream as stream

clock = time.monotonic
NEVER = float("-inf")
PENDING_MOST = 64  # limit of event pairs whose times are not read yet
ALLOCATOR_EVERY_S = 1.0  # torch collects its statistics for each call, which takes time
LOADERS_MOST = 20  # a training may make a new loader for every epoch


class Recorder:
    """The writer of this process's stream. It opens with the first event; a forked child opens its own."""

    def __init__(self, folder):
        self.folder = folder
        self.stream = None
        self.dead = False
        self.known = set()
        self.loader = 0  # the number of the loader whose workers are being started

    def forget(self):
        """Start without a stream: this is a forked child, and the open stream is its parent's."""
        self.stream = None
        self.known = set()
        device.forget()

    def event(self, *fields, which=0):
        """Write an event. Without a stream, nothing is recorded and the training goes on."""
        if self.stream is None and not self.open():
            return
        self.stream.event(*fields, which=which)

    def fact(self, what, **fields):
        """Write a fact; only the first one of each kind."""
        if what in self.known or (self.stream is None and not self.open()):
            return
        self.known.add(what)
        try:
            self.stream.fact(fact=what, **fields)
        except (OSError, TypeError, ValueError):
            self.dead = True

    def open(self):
        """Open the stream and return whether that succeeded."""
        if self.dead:
            return False
        try:
            self.stream = stream.Stream(self.folder)
        except OSError:
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


class Device:
    """Times on the GPU from pairs of events, which are read after they are done, so that nothing waits for them."""

    def __init__(self):
        self.cuda = None
        self.forget()

    def forget(self):
        """Start without events: a forked child cannot use its parent's."""
        self.pending = collections.deque()
        self.allocator_at = NEVER

    def begin(self):
        """Return an event recorded now on the device, None if nothing can be timed."""
        cuda = self.cuda
        # Before CUDA is initialized, an event would create its context, earlier than the training does.
        if cuda is None or len(self.pending) >= PENDING_MOST or not cuda.is_initialized():
            return None
        if cuda.is_current_stream_capturing():  # timing events must not be recorded in a CUDA graph
            return None
        event = cuda.Event(enable_timing=True)
        event.record()
        return event

    def is_aside(self):
        """Whether the current stream is not the default one."""
        cuda = self.cuda
        return cuda is not None and cuda.is_initialized() and cuda.current_stream() != cuda.default_stream()

    def end(self, first, kind, at, amount, flags):
        """Record the end event for `first`; `collect` writes the event once both are done."""
        if first is None or self.cuda.is_current_stream_capturing():
            return
        last = self.cuda.Event(enable_timing=True)
        last.record()
        self.pending.append((first, last, kind, at, amount, flags))

    def collect(self):
        """Write the events that the device has finished."""
        # Only the oldest pair is asked: a stream finishes its events in their order, and `query` does not wait.
        while self.pending and self.pending[0][1].query():
            first, last, kind, at, amount, flags = self.pending.popleft()
            try:
                seconds = first.elapsed_time(last) / 1e3
            except RuntimeError:  # the two events are of different devices
                continue
            recorder.event(kind, at, seconds, amount, flags)

    def allocator(self, now):
        """Write the state of the caching allocator, at most once a second."""
        if self.cuda is None or now - self.allocator_at < ALLOCATOR_EVERY_S or not self.cuda.is_initialized():
            return
        self.allocator_at = now
        stats = self.cuda.memory_stats()
        reserved = float(stats.get("reserved_bytes.all.current", 0))
        recorder.event(stream.ALLOCATOR, now, reserved, float(stats.get("num_alloc_retries", 0)))


class Loaders:
    """Numbers of loaders, from 1. A new loader with the same data set and settings gets the same number."""

    def __init__(self):
        self.known = {}

    def number(self, loader):
        """Return the number of a loader, and write its settings if it is new; 0 beyond LOADERS_MOST."""
        facts = self.facts(loader)
        key = (id(loader.dataset), *map(str, facts.values()))
        if key not in self.known and len(self.known) < LOADERS_MOST:
            self.known[key] = len(self.known) + 1
            recorder.fact("loader.%d" % self.known[key], **facts)
        return self.known.get(key, 0)

    @staticmethod
    def facts(loader):
        """Return the settings of a loader."""
        names = ("num_workers", "pin_memory", "persistent_workers", "prefetch_factor", "batch_size")
        settings = {name: getattr(loader, name, None) for name in names}
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
                recorder.fact("probe-failed", module=spec.name, error=repr(error)[:200])

        if load is not None:
            try:
                spec.loader.exec_module = loaded
            except AttributeError:  # a loader without __dict__, whose methods cannot be replaced
                return


device = Device()
recorder = Recorder("")
