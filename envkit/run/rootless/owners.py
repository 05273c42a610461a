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
    return shift_within(*_own_maps()) if os.geteuid() == 0 else 0


def shift_within(*maps: str) -> int:
    """Return `host_shift` for root with these ID maps, in the format of `/proc/self/uid_map`."""
    return _SHIFT if all(_covers(text, _SHIFT, _SHIFT + MOST_ID) for text in maps) else 0


def keeps_owners() -> bool:
    """Return whether this process can give files to the users and groups of an image.

    Root can, but not that of a user namespace with a single user, such as `unshare --map-root-user` makes.
    """
    return os.geteuid() == 0 and gives_away(*_own_maps())


def gives_away(*maps: str) -> bool:
    """Return `keeps_owners` for root with these ID maps."""
    return all(_covers(text, 0, NOBODY) for text in maps)


def _own_maps() -> list[str]:
    return [Path(f"/proc/self/{name}").read_text() for name in ("uid_map", "gid_map")]


def _covers(text: str, first: int, last: int) -> bool:
    """Return whether a map has all IDs from `first` to `last`, in one row or in several."""
    for begin, _, count in sorted(tuple(map(int, line.split())) for line in text.splitlines()):
        if begin > first:
            return False
        first = max(first, begin + count)
    return first > last


def host_id(ident: int, shift: int) -> int:
    """Return the host's ID for a container's ID. An ID outside a container's range becomes nobody, as in the kernel."""
    return (ident if 0 <= ident <= MOST_ID else NOBODY) + shift
