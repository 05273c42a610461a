"""Run the checks in a child process and always deliver the document, even if the child hangs, crashes or is killed.

The child is forked before torch is imported. If a call into the driver never returns while it holds the interpreter's
lock, it blocks every thread of its process, so only another process can watch it. The child sends each observation
immediately, as one JSON object per line, and before each step the time limit until its next message.
"""

import contextlib
import ctypes
import datetime as dt
import json
import os
import select
import signal
import sys
import time

from . import SCHEMA, SUITE_VERSION, hostfacts, observation, pressure

# Extra seconds on top of the child's own limit: the child interrupts itself first, which loses less.
GRACE_S = 5.0
# Seconds for the child to exit after its last message, and after SIGKILL. One that hangs in the driver does not exit:
# it is left behind.
EXIT_S = 10.0
KILL_S = 2.0
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
SIGNALLED = 128  # exit codes of signals are this plus the signal's number, as in shells


class Run:
    """The document of a run, built from the child's messages."""

    def __init__(self, ctx, tier, checks):
        self.checks = {check.id: check for check in checks}
        self.nonce = str(ctx.spec.get("nonce", ""))
        self.seed = ctx.seed
        self.tier = tier
        self.observations = []
        self.order = []
        self.environment = {"host": {}, "gpu": [], "sw": {}, "flags": {}}
        self.trace = None
        # The child's current step: {"check" or "doing", "limit_s", "gpu"}, None after its last message.
        self.doing = {"doing": "start", "limit_s": 30.0, "gpu": False}
        self._started = dt.datetime.now(dt.timezone.utc).isoformat()
        self._begin = time.monotonic()

    def take(self, message):
        """Add one message of the child."""
        kind, value = message
        if kind == "doing":
            self.doing = value
            if "check" in value:
                self.order.append(value["check"])
        elif kind == "observation":
            self.observations.append(value)
        elif kind == "env":
            self.environment = value
        elif kind == "trace":
            self.trace = value
        elif kind == "end":
            self.doing = None

    def stopped(self, code, what, noise=None):
        """Add the observations for a child that stopped early; ``code`` and ``what`` are the reason.

        ``noise`` says whether the machine was busy, if the child was stopped at a time limit.
        """
        doing = self.doing
        where = doing.get("check") or doing["doing"]
        if "check" in doing:
            subject = "gpu:0" if doing["gpu"] else "host"
            self.observations.append(observation.failed(doing["check"], subject, code, f"{where} {what}", noise=noise))
        else:
            self.environment = dict(self.environment, errors={"payload": f"{where} {what}"})
        left = [name for name in self.checks if name not in self.order]
        self.observations.extend(
            observation.failed(name, "host", "SUITE_STOPPED", f"{where} {what}; the suite stopped there", noise=noise)
            for name in left
        )

    def document(self):
        """Return the document with the observations so far."""
        return {
            "schema": SCHEMA,
            "nonce": self.nonce,
            "suite_version": SUITE_VERSION,
            "started": self._started,
            "duration_s": round(time.monotonic() - self._begin, 3),
            "tier": self.tier,
            "seed": self.seed,
            "env": self.environment,
            "checks": self.observations,
            "order": self.order,
            **({} if self.trace is None else {"trace": self.trace}),
        }


def supervise(run, work, emit, close=()):
    """Run ``work(send)`` in a child, pass the document to ``emit``, and return the exit code of this process.

    In the child this raises SystemExit, so that its interpreter exits as usual. ``close``: descriptors that the child
    must not have. The exit code is that of the child, 128 + number for a signal as in shells, and 0 if it was ended at
    a time limit.
    """
    # Otherwise both this process and the child would write what is still in the buffers.
    sys.stdout.flush()
    sys.stderr.flush()
    reader, writer = os.pipe()
    # Workers and ranks whose parent died become children of this process, which ends them, instead of process 1.
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    child = os.fork()
    if child == 0:
        os.close(reader)
        sys.exit(_be_child(work, writer, close))
    os.close(writer)
    inbox = Inbox(run, reader)
    # After the fork, so that the child does not inherit handlers that write into this process's pipe.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, inbox.interrupt)
    in_time = inbox.listen()
    code = _end(child, at_once=not in_time)
    # The messages that a child wrote before it crashed are still in the pipe.
    inbox.drain()
    if run.doing is not None:
        if inbox.signal is not None:
            code = SIGNALLED + inbox.signal
            run.stopped("TIME_LIMIT", "was running when the payload was told to end", inbox.readings())
        elif not in_time:
            code = 0
            noise = inbox.readings()
            limit = f"did not end within {noise['window_s']:.0f} s and could not be interrupted"
            run.stopped("GPU_HANGS" if run.doing["gpu"] else "TIME_LIMIT", limit, noise)
        else:
            code = code or 1
            run.stopped("CRASHED", f"was running when its process ended ({_named(code)})")
    emit(run.document())
    return code


def _be_child(work, writer, close):
    """Run ``work`` in a session of its own, send its messages, and return the exit code."""
    # Ctrl-C reaches every process of the terminal's foreground group. Only the parent handles it and ends the child.
    os.setsid()
    # An engine may kill the parent with SIGKILL; a child that hangs would then stay and occupy the GPU.
    die_with_parent()
    for descriptor in close:
        os.close(descriptor)

    def send(kind, value=None):
        data = json.dumps([kind, value], allow_nan=False, separators=(",", ":")).encode("ascii") + b"\n"
        while data:
            # A write that a signal interrupts may be partial (pipe(7)); the rest of the line has to follow.
            data = data[os.write(writer, data) :]

    work(send)
    send("end")
    return 0


class Inbox:
    """The reading end of the child's pipe."""

    def __init__(self, run, reader):
        self._run, self._reader, self._buffer = run, reader, b""
        self._limit = None  # until the child's next message
        # The signal that ends this process. Its handler wakes poll through a pipe instead of raising, because an
        # exception could come after a message was read and before it was added.
        self.signal = None
        self._woken, self._wake = os.pipe()
        # select cannot handle descriptors above 1023; poll can.
        self._poll = select.poll()
        self._poll.register(reader, select.POLLIN)
        self._poll.register(self._woken, select.POLLIN)

    def interrupt(self, number, _frame):
        """Handle a signal: end ``listen``."""
        if self.signal is None:
            self.signal = number
            os.write(self._wake, b".")

    def listen(self):
        """Add messages until the child is done or gone; return False if it exceeded its limit, or after a signal."""
        while self._run.doing is not None:
            if self._limit is None:
                self._limit = pressure.Limit(self._run.doing["limit_s"] + GRACE_S)
            if self._limit.left() <= 0:
                return False
            ready = {descriptor for descriptor, _ in self._poll.poll(self._limit.pause() * 1e3)}
            if self._woken in ready:
                return False
            if ready:
                taken = self._take()
                if taken is None:
                    return True
                self._limit = None if taken else self._limit
        return True

    def readings(self):
        """Return whether the machine was busy since the child's last message, as ``pressure.Limit.readings`` does."""
        return (self._limit or pressure.Limit(0.0)).readings()

    def drain(self):
        """Add the remaining messages of a child that is gone. Its own children may still have the pipe open."""
        self._poll.unregister(self._woken)
        while self._run.doing is not None and self._poll.poll(0) and self._take() is not None:
            pass

    def _take(self):
        """Read once and add complete messages; return their number, None at the end of the pipe."""
        piece = os.read(self._reader, 1 << 20)
        if not piece:
            return None
        lines = (self._buffer + piece).split(b"\n")
        self._buffer = lines.pop()
        for line in lines:
            self._run.take(json.loads(line.decode("ascii")))
        return len(lines)


def _end(child, at_once):
    """End the child and its descendants; return its exit code as in shells, 0 if it does not exit."""
    deadline = time.monotonic() + (0.0 if at_once else EXIT_S)
    status = _waited(child, deadline)
    for pid in [*descendants(child), child]:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    if status is None:
        status = _waited(child, time.monotonic() + KILL_S)
    if status is None:
        return 0
    return SIGNALLED + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def _waited(child, deadline):
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return status
        if time.monotonic() >= deadline:
            return None
        time.sleep(0.01)


def descendants(child):
    """Return the IDs of all processes below this one but ``child``: its descendants, orphans among them."""
    parents = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - names are all that is needed
        if name.isdigit():
            with contextlib.suppress(ValueError, IndexError):
                stat = hostfacts.read_text(f"/proc/{name}/stat")
                parents[int(name)] = int(stat.rpartition(")")[2].split()[1])
    below, new = [], {os.getpid()}
    while new:
        new = {pid for pid, parent in parents.items() if parent in new}
        below.extend(new)
    return [pid for pid in below if pid != child]


def die_with_parent():
    """Have the kernel kill this process when its parent ends."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _prctl(option, value):
    """Call prctl(2); without the option, or without prctl, nothing happens."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(option, ctypes.c_ulong(value), 0, 0, 0)


def _named(code):
    if code > SIGNALLED:
        with contextlib.suppress(ValueError):
            return f"signal {signal.Signals(code - SIGNALLED).name}"
    return f"exit code {code}"
