"""The watched process: a program or a function of envkit, with the streams and signals of this process."""

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
    """A child process, with the names of `subprocess.Popen`."""

    @property
    def pid(self) -> int:
        """Its process id."""

    @property
    def returncode(self) -> int | None:
        """Its exit code, the negative number of the signal that ended it, or None while it runs."""

    def poll(self) -> int | None:
        """Update and return `returncode`."""

    def send_signal(self, sig: int) -> None:
        """Send a signal to the process if it is running."""


class Forked:
    """A function in its own process; its return value is the exit code.

    Args:
        work: the function; it may replace the process with another program.
        stdout: a file descriptor for its output, None for that of this process.
        mask: the signals to block in the process.
    """

    def __init__(self, work: Callable[[], int], stdout: int | None, mask: Mask) -> None:
        self.returncode: int | None = None
        self._errors, errors = os.pipe()  # close-on-exec: a program that replaces the process does not keep it open
        # Otherwise both processes would print what is still in the buffers.
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            _work(work, errors, stdout, mask)
        os.close(errors)

    def poll(self) -> int | None:
        """Update and return `returncode`."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def send_signal(self, sig: int) -> None:
        """Send a signal to the process if it is running."""
        if self.poll() is None:
            os.kill(self.pid, sig)

    def close(self) -> None:
        """Raise the error of envkit that ended the function, if any.

        Raises:
            EnvkitError: the function raised it.
        """
        with os.fdopen(self._errors, "rb") as file:
            raw = file.read(_PIECE)
        if raw:
            tree = json.loads(raw)
            error = EnvkitError(tree["message"], hint=tree["hint"], details=tuple(tree["details"]))
            error.exit_code = tree["exit_code"]
            raise error


def _packed(error: EnvkitError) -> bytes:
    """Return an error as JSON that fits into a pipe: the parent reads it only after this process has ended."""
    tree = {"message": error.message, "hint": error.hint, "details": error.details, "exit_code": error.exit_code}
    packed = json.dumps(tree).encode()
    if len(packed) <= _PIECE:
        return packed
    # JSON has up to 12 bytes for a character.
    return json.dumps(tree | {"message": error.message[: _PIECE // 16], "hint": None, "details": ()}).encode()


def _work(work: Callable[[], int], errors: int, stdout: int | None, mask: Mask) -> None:
    """Run the function and end the process, without the parent's exit handlers."""
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        # A program inherits the mask: if SIGTERM stayed blocked, it could only be killed.
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if stdout is not None:
            os.dup2(stdout, 1)
        code = work()
    except Ending as error:
        code = error.exit_code
        if isinstance(error, EnvkitError):
            os.write(errors, _packed(error))
    except BaseException:  # noqa: BLE001 - a bug in envkit; printed here, because the parent's handler does not run
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        # sys.exit() would also run the parent's cleanup, such as the removal of its temporary folders.
        os._exit(code)


def start(
    command: Sequence[str], environment: Mapping[str, str], stdout: int | None, mask: Mask
) -> subprocess.Popen[bytes]:
    """Start a program.

    Raises:
        UsageError: the program does not exist or cannot be run.
    """
    try:
        return subprocess.Popen(  # noqa: S603 - the user's own command
            list(command),
            env=dict(environment),
            stdout=stdout,
            # preexec_fn is only safe without other threads, and none is running yet.
            preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, mask),  # noqa: PLW1509
        )
    except FileNotFoundError as error:
        raise UsageError(f"{command[0]}: no such program", hint=f"command -v {command[0]}") from error
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UsageError(f"{command[0]} cannot be run: {reason}", hint=f"ls -l {command[0]}") from error


def wait(child: Child, seconds: float) -> bool:
    """Wait until the child ends, at most `seconds`, and pass on signals to it; return True if it is still running.

    Signals of the terminal are not passed on: the child already received them.
    """
    end = time.monotonic() + seconds
    while child.poll() is None:
        left = end - time.monotonic()
        if left <= 0:
            return True
        # SIGCHLD ends the wait as soon as the child ends, so a short command is not delayed.
        received = signal.sigtimedwait((*_PASSED, signal.SIGCHLD), left)
        if received is not None and received.si_signo != signal.SIGCHLD and received.si_code != _SI_KERNEL:
            # The child may end between the signal's arrival and its forwarding.
            with contextlib.suppress(ProcessLookupError):
                child.send_signal(received.si_signo)
    return False


def drain() -> None:
    """Take the signals that came while the child ran. They were for it, and it has ended."""
    while signal.sigtimedwait(_PASSED, 0) is not None:
        pass


@contextlib.contextmanager
def blocked() -> Iterator[Mask]:
    """Block signals inside the block, so that `wait` receives them with their sender; yields the previous mask.

    The block is for the time in which the child runs: without a child to receive them, signals have to end the command.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (*_PASSED, signal.SIGCHLD))
    handler = signal.signal(signal.SIGCHLD, lambda *_: None)  # an ignored signal would not reach sigtimedwait
    try:
        yield before
    finally:
        signal.signal(signal.SIGCHLD, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
