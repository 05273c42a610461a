"""A program that starts proot without privileges and kills every process of the run at the end.

Without a PID namespace, the kernel does not kill the processes that a run leaves behind. So this process adopts the
run's orphans (as their subreaper) and kills all that are left when the command has ended, or when envkit has.
Only the standard library is imported, because this runs without site packages.

Argument: one JSON object
    argv      the command to execute, with a full path
    env       its environment
    uid, gid  the machine's user for the run; null: the caller
    rules     a descriptor from which the system call filter is read; null: none
    writable, readable    the only files and folders that the run may use; both null: no limit
    updatable    folders in which it may also write to the files that exist; no ioctls
    control   a descriptor: START starts the run; STOP, or end of file, ends it
    status    a descriptor to which the process ID of the run's first process is written as JSON
    report    the number of the descriptor to which the run writes its exit code
    terminal  whether standard input is a terminal that the run controls
Source: prctl(2), seccomp(2), landlock(7), capabilities(7); Linux include/uapi/linux/landlock.h.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import select
import signal
import stat
import struct
import sys
import termios
import time
from pathlib import Path
from typing import Any

FAILED = 125
"""The exit code if the run was not started; stderr then begins with `PREFIX`."""
PREFIX = b"supervise: "
START, STOP = b"1", b"0"
_SET_SUBREAPER, _DROP_BOUND, _NO_NEW_PRIVILEGES, _SET_SECCOMP, _FILTER = 36, 24, 38, 22, 2
_LAST_CAPABILITY = 63  # capability sets have 64 bits; the kernel refuses those it does not define
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same number on every architecture
_BELOW_PATH = 1  # LANDLOCK_RULE_PATH_BENEATH
KEEPS_CONTENTS = 3
"""The first version of Landlock (Linux 6.2) that also forbids truncation: before, a run can empty any file it owns."""
# Version 1 forbids every rename between folders. Version 5 (Linux 6.10) adds the ioctls of devices that a run opens,
# version 6 signals and abstract sockets.
_LEAST, _IOCTLS, _SCOPES = 2, 5, 6
_EXECUTE, _WRITE, _READ, _LIST, _TRUNCATE, _IOCTL = 1, 2, 4, 8, 1 << 14, 1 << 15
_EVERYTHING = (1 << 14) - 1  # of version 2
_DEVICE_NODES = (1 << 6) | (1 << 11)  # LANDLOCK_ACCESS_FS_MAKE_CHAR, LANDLOCK_ACCESS_FS_MAKE_BLOCK
_OF_FILES = _EXECUTE | _WRITE | _READ | _TRUNCATE | _IOCTL
_SIGNALS_AND_SOCKETS = 3  # LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET and LANDLOCK_SCOPE_SIGNAL
_CAPABILITIES_3 = 0x20080522  # _LINUX_CAPABILITY_VERSION_3: two words of each of the three sets
_KILLED = 137  # 128 + SIGKILL
_IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # only `control` ends this process
_TICK_MS, _TICK_S = 100, 0.01
_LIBC = ctypes.CDLL(None, use_errno=True)


def landlock_version() -> int:
    """Return the version of Landlock, 0 if the kernel has none or one that is too old."""
    # LANDLOCK_CREATE_RULESET_VERSION: with this flag the call returns the version and creates nothing.
    version = int(_LIBC.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint(1)))
    return version if version >= _LEAST else 0


def main(text: str) -> int:
    """Run the command of the argument and return its exit code."""
    task = json.loads(text)
    for descriptor in (task["control"], task["status"], task["rules"]):
        if descriptor is not None:
            os.set_inheritable(descriptor, False)
    _call("prctl", _SET_SUBREAPER, ctypes.c_ulong(1))
    gate, report = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(gate[1])
            _become(task, gate[0], report[1])
        except OSError as failure:
            os.write(2, PREFIX + f"{failure.strerror}\n".encode())
        os._exit(FAILED)
    os.close(gate[0])
    os.close(report[1])
    try:
        os.write(task["status"], json.dumps({"child-pid": child}).encode() + b"\n")  # in bubblewrap's format
        os.close(task["status"])
        return _watch(child, task["control"], gate[1], report[0])
    finally:
        _end_all()


def _watch(child: int, control: int, gate: int, report: int) -> int:
    """Wait for the reported exit code, for proot's end, or for `control`; return the exit code.

    The code is reported separately because proot runs as long as any process of the run, and returns the exit code of
    the one that ended last.
    """
    poll = select.poll()
    poll.register(control, select.POLLIN)
    poll.register(report, select.POLLIN)
    while True:
        for descriptor, _ in poll.poll(_TICK_MS):
            data = os.read(descriptor, 64).strip()
            if descriptor == report and data.isdigit():
                return int(data)
            if descriptor == report:
                poll.unregister(report)
            elif data == START:
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


def _become(task: dict[str, Any], gate: int, report: int) -> None:
    """Wait for the start, give up privileges, and execute the command."""
    os.setsid()
    if task["terminal"]:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    for signum in (*_IGNORED, signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores the last two
        signal.signal(signum, signal.SIG_DFL)
    if not os.read(gate, 1):
        return
    # Read before dup2 below: this descriptor may have the number that the report gets.
    rules = None if task["rules"] is None else os.read(task["rules"], 1 << 16)
    if task["uid"] is not None:
        _be_user(task["uid"], task["gid"])
    # Without CAP_SYS_ADMIN, Landlock and seccomp both require it.
    _call("prctl", _NO_NEW_PRIVILEGES, *(ctypes.c_ulong(argument) for argument in (1, 0, 0, 0)))
    if task["readable"] is not None:
        _limit_files(task["writable"], task["readable"], task["updatable"])
    os.dup2(report, task["report"], inheritable=True)
    os.chdir("/")
    if rules is not None:
        _filter_calls(rules)
    os.execve(task["argv"][0], task["argv"], task["env"])  # noqa: S606 - a full path, no shell


def _be_user(uid: int, gid: int) -> None:
    """Change to this user and group, leave all other groups, and drop all capabilities."""
    for capability in range(_LAST_CAPABILITY + 1):
        # Errors are ignored: this fails for undefined capabilities, and for all without CAP_SETPCAP. Because of
        # `_NO_NEW_PRIVILEGES`, no program can regain capabilities in any case.
        _LIBC.prctl(_DROP_BOUND, ctypes.c_ulong(capability), *(ctypes.c_ulong(0),) * 3)
    try:
        os.setgroups([])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
    except PermissionError as error:
        message = "root cannot change to another user here (no CAP_SETUID or CAP_SETGID), and images never run as root"
        raise PermissionError(error.errno, message) from error
    # A change from root to another user has done this. Root stays without them because of `_NO_NEW_PRIVILEGES`.
    _call("capset", struct.pack("=Ii", _CAPABILITIES_3, 0), bytes(24))


def _limit_files(writable: list[str], readable: list[str], updatable: list[str]) -> None:
    """Restrict this process and all of its children to these files."""
    version = landlock_version()
    handled = _EVERYTHING | (_TRUNCATE if version >= KEEPS_CONTENTS else 0) | (_IOCTL if version >= _IOCTLS else 0)
    # An older kernel has a shorter structure, and accepts this one if the rest is zero.
    scoped = _SIGNALS_AND_SOCKETS if version >= _SCOPES else 0
    attributes = struct.pack("=QQQ", handled, 0, scoped)
    rules = int(_LIBC.syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint(0)))
    if rules < 0:
        _fail("landlock_create_ruleset")
    for paths, rights in (
        (readable, _EXECUTE | _READ | _LIST),
        (updatable, _WRITE | _TRUNCATE),
        (writable, handled & ~_DEVICE_NODES),
    ):
        for path in paths:
            _allow(rules, path, rights & handled)
    if _LIBC.syscall(_RESTRICT_SELF, ctypes.c_int(rules), ctypes.c_uint(0)):
        _fail("landlock_restrict_self")
    os.close(rules)


def _allow(rules: int, path: str, rights: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        # The kernel refuses a rule for a file that has rights of folders.
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            rights &= _OF_FILES
        # struct landlock_path_beneath_attr, which is packed
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
    """Kill all descendants of this process until none is left."""
    while True:
        # Listed again each time, because a process may fork before its signal arrives.
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
    """Return the descendants of a process, farthest first, so that proot, which traces the others, is killed last."""
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
