"""The process that is watched: a program, or a function of envkit, with this process's streams and signals."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

from envkit.ground.errors import Ending, EnvkitError, UsageError

_PASSED = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
_SI_KERNEL = 0x80  # the terminal sent the signal, to the training as well
_PIECE = 1 << 16  # as much as a pipe holds
Mask = set[int | signal.Signals]


class Child(Protocol):
    """A process that was started here; the names are those of `subprocess.Popen`."""

    @property
    def pid(self) -> int:
        """Its process id."""

    @property
    def returncode(self) -> int | None:
        """Its exit code, the negative number of the signal that ended it, or None while it runs."""

    def poll(self) -> int | None:
        """Look whether it ended, and return `returncode`."""

    def send_signal(self, sig: int) -> None:
        """Send it a signal, if it runs."""


class Forked:
    """A function in a process of its own; what it returns is the exit code.

    Args:
        work: the function; it may replace the process by another program.
        stdout: another file descriptor for its output, or None.
        mask: of signals.
    """

    def __init__(self, work: Callable[[], int], stdout: int | None, mask: Mask) -> None:
        self.returncode: int | None = None
        self._said, said = os.pipe()  # closed by a program that replaces the process
        # What is still in the buffers would be printed by both processes.
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            _work(work, said, stdout, mask)
        os.close(said)

    def poll(self) -> int | None:
        """Look whether it ended, and return `returncode`."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def send_signal(self, sig: int) -> None:
        """Send it a signal, if it runs."""
        if self.poll() is None:
            os.kill(self.pid, sig)

    def close(self) -> None:
        """Raise the error of envkit, if one ended it.

        Raises:
            EnvkitError: what the function raised.
        """
        with os.fdopen(self._said, "rb") as file:
            raw = file.read(_PIECE)
        if raw:
            tree = json.loads(raw)
            error = EnvkitError(tree["message"], hint=tree["hint"], details=tuple(tree["details"]))
            error.exit_code = tree["exit_code"]
            raise error


def _work(work: Callable[[], int], said: int, stdout: int | None, mask: Mask) -> None:
    """Run the function and end the process, without what this process would do at its own end."""
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        # A program inherits the mask: with SIGTERM blocked, nobody could end it in order.
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if stdout is not None:
            os.dup2(stdout, 1)
        code = work()
    except Ending as error:
        code = error.exit_code
        if isinstance(error, EnvkitError):
            tree = {"message": error.message, "hint": error.hint, "details": error.details, "exit_code": code}
            os.write(said, json.dumps(tree).encode())
    except BaseException:  # noqa: BLE001 - a bug of envkit: shown here, as the process ends without its parent's code
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def start(
    command: Sequence[str], environment: Mapping[str, str], stdout: int | None, mask: Mask
) -> subprocess.Popen[bytes]:
    """Start a program.

    Raises:
        UsageError: the program does not exist, or cannot be run.
    """
    try:
        return subprocess.Popen(  # noqa: S603 - the user's own command
            list(command),
            env=dict(environment),
            stdout=stdout,
            # No thread runs yet, so this is safe between fork and exec.
            preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, mask),  # noqa: PLW1509
        )
    except FileNotFoundError as error:
        raise UsageError(f"{command[0]}: no such program", hint=f"command -v {command[0]}") from error
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UsageError(f"{command[0]} cannot be run: {reason}", hint=f"ls -l {command[0]}") from error


def wait(child: Child, seconds: float) -> bool:
    """Wait until the child ended or the time is over, and pass on the signals that come; True while it runs.

    A signal of the terminal reached the child already.
    """
    end = time.monotonic() + seconds
    while child.poll() is None:
        left = end - time.monotonic()
        if left <= 0:
            return True
        came = signal.sigtimedwait((*_PASSED, signal.SIGCHLD), left)
        if came is not None and came.si_signo != signal.SIGCHLD and came.si_code != _SI_KERNEL:
            with contextlib.suppress(ProcessLookupError):
                child.send_signal(came.si_signo)
    return False


@contextlib.contextmanager
def blocked() -> Iterator[Mask]:
    """Keep signals for `wait`, which also learns who sent them; yields which were blocked before."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (*_PASSED, signal.SIGCHLD))
    handler = signal.signal(signal.SIGCHLD, lambda *_: None)  # one that is ignored would not be waited for
    try:
        yield before
    finally:
        signal.signal(signal.SIGCHLD, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
