"""The meaning of the payload's exit code, as text and verdict. After a crash it is all that is known."""

from __future__ import annotations

import signal

from envkit.checks.model import Verdict
from envkit.ground.errors import VerificationError
from envkit.verify.exitcode import Reason, Trouble

_SIGNALLED = 128  # shells report a signal as this plus its number
# Exit codes with one usual cause: those of the payload, of shells and engines that did not start it, and of signals.
_KNOWN: dict[int, tuple[str, str, str | None]] = {
    2: ("PAYLOAD_USAGE", "the payload refused its arguments or its spec", None),
    3: ("PYTHON_ABORTED", "the process ended itself with code 3", None),
    # 125 to 127 as `docker run` documents them: the engine failed, the command cannot run, it does not exist.
    125: ("NOT_STARTED", "the engine could not start the payload", "see the engine's log"),
    126: (
        "PYTHON_NOT_EXECUTABLE",
        "Python in the image cannot be executed: wrong platform or no permission",
        None,
    ),
    127: (
        "PYTHON_MISSING",
        "the image has no Python at the path in the plan",
        "build it again, or verify with its own plan",
    ),
    128 + signal.SIGABRT: ("ABORTED", "the process aborted (SIGABRT): a C++ library called abort()", None),
    # The kernel sends SIGBUS for a write to a mapped page of a tmpfs that is full.
    128 + signal.SIGBUS: (
        "SHM_TOO_SMALL",
        "the process received SIGBUS: most often /dev/shm (shared memory) is too small",
        "raise smoke.shm_mb in the definition, and run the image with --shm-size of that size or --ipc=host",
    ),
    128 + signal.SIGILL: ("ILLEGAL_INSTRUCTION", "the process used an instruction that this CPU lacks (SIGILL)", None),
    128 + signal.SIGKILL: (
        "KILLED",
        "the process was killed (SIGKILL): by a memory limit, or from outside",
        "raise the memory limit",
    ),
    128 + signal.SIGSEGV: (
        "CRASHED",
        "the process crashed (SIGSEGV): libraries in the image are incompatible with each other or with this CPU",
        "see the end of stderr in the record for the last check that started",
    ),
    128 + signal.SIGTERM: ("TERMINATED", "the process was terminated from outside (SIGTERM)", None),
}


def trouble_of(exit_code: int, *, oom_killed: bool, last_line: str) -> Trouble | None:
    """Return the trouble that a payload's exit code means, None for 0. `last_line` is the last line of its stderr."""
    # The exit code alone is 137 for every SIGKILL, and a killed child process need not change the code of its parent.
    if oom_killed:
        return _trouble("OUT_OF_MEMORY", "the payload exceeded the container's memory limit and was killed", _MEMORY)
    if exit_code == 0:
        return None
    after = f"; last output: {last_line}" if last_line else ""
    if exit_code in _KNOWN:
        code, message, advice = _KNOWN[exit_code]
        return _trouble(code, f"{message} (exit code {exit_code}){after}", advice)
    if exit_code > _SIGNALLED:
        number = exit_code - _SIGNALLED
        # Most real-time signals have no name in `signal.Signals`.
        name = signal.Signals(number).name if number in signal.valid_signals() and number < signal.SIGRTMIN else number
        return _trouble("CRASHED", f"the process was ended by signal {name} (exit code {exit_code}){after}", None)
    return _trouble("PAYLOAD_EXIT", f"the payload ended with exit code {exit_code}{after}", None)


def _trouble(code: str, message: str, advice: str | None) -> Trouble:
    reason = Reason(code=code, message=message, advice=advice)
    return Trouble(verdict=Verdict.FAIL, exit_code=VerificationError.exit_code, reason=reason)


_MEMORY = "give the container more memory, or a smaller smoke.batch_mb in the definition"
