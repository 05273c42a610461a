"""Whether this machine lets programs create user namespaces: the kernel's settings, and what would allow it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from envkit.ground.host import text_of

_FILTERED = "2"  # SECCOMP_MODE_FILTER


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A setting that keeps users from creating user namespaces."""

    name: str  # of the sysctl
    value: str  # now
    allows: str  # the value that allows them
    why: str

    @property
    def command(self) -> str:
        """The command that allows them until the next start, for root."""
        return f"sysctl -w {self.name}={self.allows}"


_MOST = Setting(name="user.max_user_namespaces", value="0", allows="15000", why="the kernel allows none")
_CLONE = Setting(name="kernel.unprivileged_userns_clone", value="0", allows="1", why="only root may (Debian's kernels)")
_APPARMOR = Setting(
    name="kernel.apparmor_restrict_unprivileged_userns", value="1", allows="0",
    why="only programs with an AppArmor profile may (Ubuntu 23.10 and later)",
)  # fmt: skip


def settings(root: Path = Path("/")) -> dict[str, str]:
    """Return the settings that this kernel has, with their values."""
    values = {one.name: _sysctl(root, one.name) for one in (_CLONE, _MOST, _APPARMOR)}
    return {name: value for name, value in values.items() if value}


def closed_by(root: Path = Path("/"), *, uid: int | None = None) -> tuple[Setting, ...]:
    """Return the settings that keep a user from creating user namespaces; empty if none does.

    A container or a chroot may still forbid it: see `is_filtered` and `in_chroot`.
    """
    is_root = (os.geteuid() if uid is None else uid) == 0
    values = settings(root)
    found = [_MOST] if values.get(_MOST.name) == _MOST.value else []
    # Both are for users without capabilities.
    if not is_root and values.get(_CLONE.name) == _CLONE.value:
        found.append(_CLONE)
    if not is_root and values.get(_APPARMOR.name) == _APPARMOR.value and has_apparmor(root):
        found.append(_APPARMOR)
    return tuple(found)


def has_apparmor(root: Path = Path("/")) -> bool:
    """Return whether AppArmor is on; its sysctls have no effect where it is off. Unknown counts as on."""
    return text_of(root / "sys/module/apparmor/parameters/enabled").strip() != "N"


def has_profile(program: str, root: Path = Path("/")) -> bool:
    """Return whether the system has an AppArmor profile for a program, such as `bwrap-userns-restrict`."""
    try:
        return any(path.name.startswith(program) for path in (root / "etc/apparmor.d").iterdir())
    except OSError:
        return False


def is_filtered(root: Path = Path("/")) -> bool:
    """Return whether a filter of system calls is on for this process, as in containers of Docker and Kubernetes."""
    rows = dict(row.partition(":")[::2] for row in text_of(root / "proc/self/status").splitlines())
    return rows.get("Seccomp", "").strip() == _FILTERED


def in_chroot(root: Path = Path("/")) -> bool:
    """Return whether this process is in a chroot, where nobody may create user namespaces; False if that is unknown."""
    try:
        first, own = (root / "proc/1/root").stat(), root.stat()
    except OSError:  # of another user
        return False
    return (first.st_dev, first.st_ino) != (own.st_dev, own.st_ino)


def _sysctl(root: Path, name: str) -> str:
    return text_of(root / "proc/sys" / name.replace(".", "/")).strip()
