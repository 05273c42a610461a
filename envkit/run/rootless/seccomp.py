"""The system calls that a container may not use, as the classic BPF program that the kernel takes.

Everything is allowed but what changes mounts, namespaces, the clock, the kernel or its keys, or was often a way out.
What is refused fails with EPERM; `clone3`, whose flags no filter can see, with ENOSYS, so callers use `clone`.
Source: Linux include/uapi/linux/{seccomp,filter,audit}.h, arch/x86/entry/syscalls/syscall_64.tbl and
include/uapi/asm-generic/unistd.h; seccomp(2), clone(2).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from envkit.ground import platforms

ALLOW, ERRNO = 0x7FFF0000, 0x00050000
_EPERM, _ENOSYS = 1, 38
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER_AT, _ARCHITECTURE_AT, _FIRST_ARGUMENT_AT = 0, 4, 16
_NEW_NAMESPACES = 0x7E020000  # CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET
_X32 = 0x40000000  # __X32_SYSCALL_BIT of x86-64
_CLONE3 = 435  # its flags are in memory, where no filter sees them

# io_uring, then the newer mount calls: these have one number everywhere.
_EVERYWHERE = (425, 426, 427, 428, 429, 430, 431, 432, 433, 442, 443)


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """The numbers of one processor architecture."""

    audit: int
    clone: int
    refused: tuple[int, ...]
    untraced: tuple[int, ...]
    x32: bool = False


# renameat2 execveat statx, then openat2 faccessat2 fchmodat2 setxattrat getxattrat listxattrat removexattrat
# open_tree_attr file_getattr file_setattr: they take paths, and proot 5.1.0 is older than they are. Callers use the
# calls that were there before.
_UNTRACED = (437, 439, 452, 463, 464, 465, 466, 467, 468, 469)

# mount umount2 pivot_root chroot unshare setns open_by_handle_at quotactl acct swapon swapoff reboot sethostname
# setdomainname init_module delete_module finit_module kexec_load kexec_file_load bpf perf_event_open userfaultfd
# add_key request_key keyctl settimeofday clock_settime clock_adjtime syslog vhangup nfsservctl lookup_dcookie;
# on x86-64 also iopl ioperm uselib create_module
ARCHITECTURES = {
    platforms.X86.machine: Architecture(
        audit=0xC000003E,
        clone=56,
        refused=(
            165, 166, 155, 161, 272, 308, 304, 179, 163, 167, 168, 169, 170, 171, 175, 176, 313, 246, 320, 321, 298,
            323, 248, 249, 250, 164, 227, 305, 103, 153, 180, 212, 172, 173, 134, 174, *_EVERYWHERE,
        ),
        untraced=(316, 322, 332, *_UNTRACED),
        x32=True,
    ),
    platforms.ARM.machine: Architecture(
        audit=0xC00000B7,
        clone=220,
        refused=(
            40, 39, 41, 51, 97, 268, 265, 60, 89, 224, 225, 142, 161, 162, 105, 106, 273, 104, 294, 280, 241, 282,
            217, 218, 219, 170, 112, 266, 116, 58, 42, 18, *_EVERYWHERE,
        ),
        untraced=(276, 281, 291, *_UNTRACED),
    ),
}  # fmt: skip


def program(machine: str, *, traced: bool = False) -> bytes | None:
    """The filter for a machine as `platform.machine()` names it, None where its numbers are not known.

    `traced`: proot translates the paths of system calls, so those that it does not know do not exist (ENOSYS).
    """
    known = ARCHITECTURES.get(machine)
    if known is None:
        return None
    refuse, unknown = ERRNO | _EPERM, ERRNO | _ENOSYS
    words = [
        # First of all: to a 32-bit program the same numbers are other calls (seccomp(2)).
        _word(_LOAD, _ARCHITECTURE_AT),
        *_unless(_EQUAL, known.audit, unknown),
        _word(_LOAD, _NUMBER_AT),
        # x32 has the same calls under numbers of its own, with bit 30 set.
        *(_when(_AT_LEAST, _X32, unknown) if known.x32 else ()),
        *_when(_EQUAL, _CLONE3, unknown),
        *(word for number in (known.untraced if traced else ()) for word in _when(_EQUAL, number, unknown)),
        *(word for number in known.refused for word in _when(_EQUAL, number, refuse)),
        _word(_EQUAL, known.clone, yes=0, no=3),  # other calls skip the three instructions on its flags
        _word(_LOAD, _FIRST_ARGUMENT_AT),
        *_when(_ANY_BIT, _NEW_NAMESPACES, refuse),
        _word(_RETURN, ALLOW),
    ]
    return b"".join(words)


def _word(code: int, value: int, *, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("=HBBI", code, yes, no, value)


def _when(test: int, value: int, answer: int) -> tuple[bytes, bytes]:
    """Answer when the test holds."""
    return _word(test, value, yes=0, no=1), _word(_RETURN, answer)


def _unless(test: int, value: int, answer: int) -> tuple[bytes, bytes]:
    """Answer unless the test holds."""
    return _word(test, value, yes=1, no=0), _word(_RETURN, answer)
