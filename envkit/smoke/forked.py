"""Functions in a forked process that can be killed: as isolated as a new interpreter, but torch is imported already.

A new interpreter has to import torch, which takes 3 to 5 s. A fork is as good where only the driver's state has to be
separate: a context that hangs, or that an assertion destroys. It has to be made before this process starts CUDA,
because CUDA does not work in a fork of a process that has used it. What needs another environment or other libraries,
or starts after that, still gets an interpreter of its own (``probe``).
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
import traceback

from . import probe, supervisor

STEP_S = 0.01  # between two looks at the process


class Forked:
    """A forked process with its output, like a ``subprocess.Popen`` as far as ``probe.finish`` uses one."""

    def __init__(self, work):
        self.stdout, self.stderr = (os.fdopen(os.memfd_create(name), "rb") for name in ("stdout", "stderr"))
        self.returncode = None
        # Otherwise both processes would write what is still in the buffers.
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            os._exit(self._be_child(work))

    def communicate(self, timeout):
        """Wait for the process; return its output, or raise subprocess.TimeoutExpired, which has the output so far."""
        deadline = time.monotonic() + timeout
        while self.wait(0.0) is None:
            if time.monotonic() >= deadline:
                raise subprocess.TimeoutExpired("a forked process", timeout, output=_text(self.stdout))
            time.sleep(STEP_S)
        with self.stdout, self.stderr:
            return _text(self.stdout), _text(self.stderr)

    def wait(self, timeout):
        """Return the exit code, or a negative signal number; None if the process has not ended after ``timeout``."""
        deadline = time.monotonic() + timeout
        while self.returncode is None:
            with contextlib.suppress(ChildProcessError):
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    self.returncode = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
            if time.monotonic() >= deadline:
                break
            time.sleep(STEP_S)
        return self.returncode

    def _be_child(self, work):
        """Run ``work`` and return the exit code. Nothing of the parent's may run or be freed here."""
        try:
            os.setsid()
            supervisor.die_with_parent()
            # The parent's handler would raise the time limit of its check here.
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            os.dup2(self.stdout.fileno(), 1)
            os.dup2(self.stderr.fileno(), 2)
            # This process may have replaced its own: then they lead elsewhere.
            sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))
            work()
        except BaseException:
            traceback.print_exc()
            return 1
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
        return 0


def run(work, limit_s):
    """Run ``work()`` in a forked process and return the result of ``probe.finish``; None if none can be made here."""
    try:
        process = Forked(work)
    except (OSError, AttributeError):  # memfd_create is forbidden, or this Python does not have it
        return None
    return probe.finish(process, limit_s)


def _text(stream):
    """Return what a file in memory has; the position is shared with the process that writes it."""
    size = os.fstat(stream.fileno()).st_size
    return os.pread(stream.fileno(), size, 0)
