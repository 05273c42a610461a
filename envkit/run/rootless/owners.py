"""Which of the host's users a container's users are.

Source: user_namespaces(7); Linux fs/proc/proc_sysctl.c (`test_perm`).
"""

from __future__ import annotations

import os
from pathlib import Path

MOST_ID = 2**31 - 2  # the highest user or group ID in a container; Docker allows no higher one either
NO_ID = -1  # below a container's first ID, and so the owner of no file of a container where its IDs are shifted
NOBODY = 65534  # the kernel's overflow ID
# No account has an ID with the highest bit set: login managers and directories count in 31 bits.
_SHIFT = 2**31


def host_shift() -> int:
    """Return what is added to a container's user and group IDs to get the host's; 0 where both are the same.

    The kernel lets the host's root write sysctls and root's own files even when it has no capabilities. So a container
    that root starts gets IDs that no account has. A user namespace that lacks these IDs has another root than the host.
    """
    if os.geteuid() != 0:
        return 0
    return shift_within(*(Path(f"/proc/self/{name}").read_text() for name in ("uid_map", "gid_map")))


def shift_within(*maps: str) -> int:
    """Return `host_shift` for root with these ID maps, in the form of `/proc/self/uid_map`."""
    for text in maps:
        rows = [tuple(map(int, line.split())) for line in text.splitlines()]
        if not any(first <= _SHIFT and first + count > _SHIFT + MOST_ID for first, _, count in rows):
            return 0
    return _SHIFT


def host_id(ident: int, shift: int) -> int:
    """Return the host's ID for a container's; one that no container can have becomes nobody, as the kernel shows it."""
    return (ident if 0 <= ident <= MOST_ID else NOBODY) + shift
