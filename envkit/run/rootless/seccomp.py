"""The seccomp filter of a container, as a classic BPF program.

It refuses calls that change mounts, namespaces, the clock, the kernel or its keys, and calls that container escapes
have often used. Refused calls fail with EPERM. `clone3`, whose flags a filter cannot see, fails with ENOSYS, so that
callers fall back to `clone`.
Source: Linux include/uapi/linux/{seccomp,filter,audit}.h, arch/x86/entry/syscalls/syscall_64.tbl and
include/uapi/asm-generic/unistd.h; seccomp(2), clone(2).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from envkit.ground import platforms

ALLOW, ERRNO = 0x7FFF0000, 0x00050000  # SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO
_EPERM, _ENOSYS = 1, 38
# BPF_LD|BPF_W|BPF_ABS, BPF_JMP with BPF_JEQ, BPF_JGE and BPF_JSET (all |BPF_K), BPF_RET|BPF_K
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
# Offsets in struct seccomp_data; args[0] has 64 bits, of which a little-endian machine has the lower half first.
_NUMBER_AT, _ARCHITECTURE_AT, _FIRST_ARGUMENT_AT = 0, 4, 16
_NEW_NAMESPACES = 0x7E020000  # CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET
_X32 = 0x40000000  # __X32_SYSCALL_BIT of x86-64
_CLONE3 = 435  # its flags are in memory, which filters cannot read

# io_uring and the newer mount calls, which have the same number on every architecture.
_EVERYWHERE = (425, 426, 427, 428, 429, 430, 431, 432, 433, 442, 443)


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """The system call numbers of one processor architecture."""

    audit: int
    clone: int
    refused: tuple[int, ...]
    untraced: tuple[int, ...]
    x32: bool = False


# renameat2 execveat statx, then openat2 faccessat2 fchmodat2 setxattrat getxattrat listxattrat removexattrat
# open_tree_attr file_getattr file_setattr: they take paths, and proot 5.1.0, which is older, does not translate them.
# Callers fall back to older calls.
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
    """Return the filter for a value of `platform.machine()`, None for an unknown architecture.

    `traced`: for proot, which translates paths in system calls. Calls that it does not support fail with ENOSYS.
    """
    architecture = ARCHITECTURES.get(machine)
    if architecture is None:
        return None
    refuse, unknown = ERRNO | _EPERM, ERRNO | _ENOSYS
    words = [
        # First, because in a 32-bit program the same numbers are other calls (seccomp(2)).
        _word(_LOAD, _ARCHITECTURE_AT),
        *_unless(_EQUAL, architecture.audit, unknown),
        _word(_LOAD, _NUMBER_AT),
        # x32 has the same calls with bit 30 of the number set.
        *(_when(_AT_LEAST, _X32, unknown) if architecture.x32 else ()),
        *_when(_EQUAL, _CLONE3, unknown),
        *(word for number in (architecture.untraced if traced else ()) for word in _when(_EQUAL, number, unknown)),
        *(word for number in architecture.refused for word in _when(_EQUAL, number, refuse)),
        _word(_EQUAL, architecture.clone, yes=0, no=3),  # other calls skip the three instructions for clone's flags
        _word(_LOAD, _FIRST_ARGUMENT_AT),
        *_when(_ANY_BIT, _NEW_NAMESPACES, refuse),
        _word(_RETURN, ALLOW),
    ]
    return b"".join(words)


def _word(code: int, value: int, *, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("=HBBI", code, yes, no, value)  # struct sock_filter


def _when(test: int, value: int, answer: int) -> tuple[bytes, bytes]:
    """Return instructions that give this answer if the test is true."""
    return _word(test, value, yes=0, no=1), _word(_RETURN, answer)


def _unless(test: int, value: int, answer: int) -> tuple[bytes, bytes]:
    """Return instructions that give this answer if the test is false."""
    return _word(test, value, yes=1, no=0), _word(_RETURN, answer)
