"""Started as a program of its own: gives up privileges, becomes proot, and ends every process of the run.

Without a PID namespace the kernel does not end what a run leaves behind. So this process adopts the run's orphans (it
is their subreaper) and kills what is left when the command has ended, or when envkit itself is gone.
Only the standard library is imported, because this runs without site packages.

Argument: one JSON object
    argv      what to become, a full path first
    env       its environment
    uid, gid  the machine's user that the run gets; null: the one who starts this
    rules     a descriptor with the system call filter; null: none
    writable, readable    files and folders that the run may use, and no others; both null: no limit
    control   a descriptor: START starts the run; STOP, or its end, ends all of it
    status    a descriptor that is told the process ID of the run's first process, as JSON
    report    the number under which the run finds a descriptor for its exit code
Source: prctl(2), seccomp(2), landlock(7), capabilities(7); Linux include/uapi/linux/landlock.h.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import stat
import struct
import sys
import time
from pathlib import Path
from typing import Any

FAILED = 125
"""The exit code where the run was not started; stderr then begins with `SAYS`."""
SAYS = b"supervise: "
START, STOP = b"1", b"0"
_SET_SUBREAPER, _DROP_BOUND, _NO_NEW_PRIVILEGES, _SET_SECCOMP, _FILTER = 36, 24, 38, 22, 2
_LAST_CAPABILITY = 63  # the kernel has room for 64, and refuses those it does not know
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # one number on every architecture
_BELOW_PATH = 1  # LANDLOCK_RULE_PATH_BENEATH
# Version 1 forbids every rename between folders, version 3 knows truncation, 6 signals and abstract sockets.
_LEAST, _TRUNCATES, _SCOPES = 2, 3, 6
_EXECUTE, _WRITE, _READ, _LIST, _TRUNCATE = 1, 2, 4, 8, 1 << 14
_EVERYTHING = (1 << 14) - 1  # of version 2
_DEVICE_NODES = (1 << 6) | (1 << 11)
_OF_FILES = _EXECUTE | _WRITE | _READ | _TRUNCATE
_SIGNALS_AND_SOCKETS = 3  # LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET and LANDLOCK_SCOPE_SIGNAL
_KILLED = 137  # 128 + SIGKILL
_IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # the end comes through `control` alone
_TICK_MS, _TICK_S = 100, 0.01
_LIBC = ctypes.CDLL(None, use_errno=True)


def landlock_version() -> int:
    """Return the version of Landlock that this process may use, 0 where it has none that will do."""
    version = int(_LIBC.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint(1)))
    return version if version >= _LEAST else 0


def main(text: str) -> int:
    """Do what the argument says and return the run's exit code."""
    asked = json.loads(text)
    for descriptor in (asked["control"], asked["status"], asked["rules"]):
        if descriptor is not None:
            os.set_inheritable(descriptor, False)
    _call("prctl", _SET_SUBREAPER, ctypes.c_ulong(1))
    gate, report = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(gate[1])
            _become(asked, gate[0], report[1])
        except OSError as failure:
            os.write(2, SAYS + f"{failure.strerror}\n".encode())
        os._exit(FAILED)
    os.close(gate[0])
    os.close(report[1])
    try:
        os.write(asked["status"], json.dumps({"child-pid": child}).encode() + b"\n")  # as bubblewrap tells it
        os.close(asked["status"])
        return _watch(child, asked["control"], gate[1], report[0])
    finally:
        _end_all()


def _watch(child: int, control: int, gate: int, report: int) -> int:
    """Wait for the run's own word, for the end of proot, or for the end of envkit; return the exit code.

    Proot's exit code is that of whichever process ended last, and proot lives as long as any of them.
    """
    poll = select.poll()
    poll.register(control, select.POLLIN)
    poll.register(report, select.POLLIN)
    while True:
        for descriptor, _ in poll.poll(_TICK_MS):
            said = os.read(descriptor, 64).strip()
            if descriptor == report and said.isdigit():
                return int(said)
            if descriptor == report:
                poll.unregister(report)
            elif said == START:
                os.write(gate, START)
            else:
                return _KILLED
        while True:
            ended, status = os.waitpid(-1, os.WNOHANG)
            if ended == child:
                code = os.waitstatus_to_exitcode(status)
                return code if code >= 0 else 128 - code
            if ended == 0:
                break


def _become(asked: dict[str, Any], gate: int, report: int) -> None:
    """Wait for the start, then become what was asked for."""
    os.setsid()
    for signum in (*_IGNORED, signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores the last two
        signal.signal(signum, signal.SIG_DFL)
    if not os.read(gate, 1):
        return
    # Read now: the number of this descriptor may be the one that the report gets.
    rules = None if asked["rules"] is None else os.read(asked["rules"], 1 << 16)
    if asked["uid"] is not None:
        _be_user(asked["uid"], asked["gid"])
    _call("prctl", _NO_NEW_PRIVILEGES, *(ctypes.c_ulong(argument) for argument in (1, 0, 0, 0)))
    if asked["readable"] is not None:
        _limit_files(asked["writable"], asked["readable"])
    os.dup2(report, asked["report"], inheritable=True)
    os.chdir("/")
    if rules is not None:
        _filter_calls(rules)
    os.execve(asked["argv"][0], asked["argv"], asked["env"])  # noqa: S606 - a full path, no shell


def _be_user(uid: int, gid: int) -> None:
    """Be that user, member of no other group, and unable to gain a capability."""
    for capability in range(_LAST_CAPABILITY + 1):
        # Those that the kernel does not know, and all of them without CAP_SETPCAP: no program can give them back
        # all the same, because of `_NO_NEW_PRIVILEGES`.
        _LIBC.prctl(_DROP_BOUND, ctypes.c_ulong(capability), *(ctypes.c_ulong(0),) * 3)
    try:
        os.setgroups([])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
    except PermissionError as error:
        message = "root cannot become another user here (no CAP_SETUID and CAP_SETGID), and no image is run as root"
        raise PermissionError(error.errno, message) from error


def _limit_files(writable: list[str], readable: list[str]) -> None:
    """Let this process, and all that it becomes or starts, use these files alone."""
    version = landlock_version()
    handled = _EVERYTHING | (_TRUNCATE if version >= _TRUNCATES else 0)
    # Longer than an old kernel's structure, which is accepted as long as the rest is zero.
    scoped = _SIGNALS_AND_SOCKETS if version >= _SCOPES else 0
    attributes = struct.pack("=QQQ", handled, 0, scoped)
    rules = int(_LIBC.syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint(0)))
    if rules < 0:
        _fail("landlock_create_ruleset")
    for paths, rights in ((readable, _EXECUTE | _READ | _LIST), (writable, handled & ~_DEVICE_NODES)):
        for path in paths:
            _allow(rules, path, rights & handled)
    if _LIBC.syscall(_RESTRICT_SELF, ctypes.c_int(rules), ctypes.c_uint(0)):
        _fail("landlock_restrict_self")
    os.close(rules)


def _allow(rules: int, path: str, rights: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            rights &= _OF_FILES
        rule = struct.pack("=Qi", rights, descriptor)
        if _LIBC.syscall(_ADD_RULE, ctypes.c_int(rules), ctypes.c_int(_BELOW_PATH), rule, ctypes.c_uint(0)):
            _fail(f"landlock_add_rule {path}")
        os.close(descriptor)


def _filter_calls(program: bytes) -> None:
    """Install a seccomp filter."""

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))

    filled = Program(len(program) // 8, program)
    _call("prctl", _SET_SECCOMP, ctypes.c_ulong(_FILTER), ctypes.byref(filled))


def _end_all() -> None:
    """Kill every process below this one, until there is none."""
    while True:
        for pid in _below(os.getpid()):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(_TICK_S)


def _below(top: int) -> list[int]:
    """The processes below one, farthest first: proot, which stands between, goes last."""
    children: dict[int, list[int]] = {}
    # Not Path.glob, which raises ProcessLookupError if a process ends while it is listed.
    for pid in (name for name in os.listdir("/proc") if name.isdecimal()):  # noqa: PTH208
        with contextlib.suppress(OSError, ValueError, IndexError):
            parent = int(Path("/proc", pid, "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(pid))
    processes, waiting = [], [top]
    while waiting:
        below = children.get(waiting.pop(), [])
        processes += below
        waiting += below
    return processes[::-1]


def _call(name: str, *arguments: Any) -> None:
    if getattr(_LIBC, name)(*arguments):
        _fail(name)


def _fail(name: str) -> None:
    number = ctypes.get_errno()
    raise OSError(number, f"{name}: {os.strerror(number)}")


if __name__ == "__main__":
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    sys.exit(main(sys.argv[1]))
