"""Map a container's user and group IDs to the host's.

Source: user_namespaces(7); Linux fs/proc/proc_sysctl.c (`test_perm`).
"""

from __future__ import annotations

import os
from pathlib import Path

MOST_ID = 2**31 - 2  # the highest user or group ID in a container; Docker has the same limit
NO_ID = -1  # with shifted IDs, the ID below a container's first one owns none of its files
NOBODY = 65534  # the kernel's overflow ID
# No account has an ID with the highest bit set: login managers and directory services use 31 bits.
_SHIFT = 2**31


def host_shift() -> int:
    """Return the offset from a container's user and group IDs to the host's; 0 if they are the same.

    The kernel lets the host's root write sysctls and root's own files even without capabilities. So a container that
    root starts gets IDs that no account has. Where a user namespace lacks these IDs, its root is not the host's root.
    """
    if os.geteuid() != 0:
        return 0
    return shift_within(*(Path(f"/proc/self/{name}").read_text() for name in ("uid_map", "gid_map")))


def shift_within(*maps: str) -> int:
    """Return `host_shift` for root with these ID maps, in the format of `/proc/self/uid_map`."""
    for text in maps:
        rows = [tuple(map(int, line.split())) for line in text.splitlines()]
        if not any(first <= _SHIFT and first + count > _SHIFT + MOST_ID for first, _, count in rows):
            return 0
    return _SHIFT


def host_id(ident: int, shift: int) -> int:
    """Return the host's ID for a container's ID. An ID outside a container's range becomes nobody, as in the kernel."""
    return (ident if 0 <= ident <= MOST_ID else NOBODY) + shift
