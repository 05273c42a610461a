"""Hints for a machine where no runner works: the commands that would make one work."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from envkit.ground import namespaces
from envkit.ground.host import root_without

_PATIENCE_S = 5.0  # to start Python and make one system call
_NEW_USERS, _TRACE_ME = 0x10000000, 0  # CLONE_NEWUSER, PTRACE_TRACEME
_IN_A_CONTAINER = ("/.dockerenv", "/run/.containerenv")  # created by Docker and by Podman
_CHANGE_USER = (6, 7)  # CAP_SETGID, CAP_SETUID
_CALL = "import ctypes, sys; sys.exit(ctypes.CDLL(None).{call} != 0)"
DOCKER = "docker run --security-opt seccomp=unconfined --security-opt systempaths=unconfined"
"""Starts a Docker container in which bubblewrap works: it may create namespaces and mount /proc."""
PODMAN = "podman run --security-opt unmask=ALL"
"""The same for Podman, whose seccomp filter allows namespaces."""


def hint(*, building: bool) -> str:
    """Return the commands that make running images possible here, best first, one per line.

    `building`: include building without verification.
    """
    return "\n      or: ".join(options(building=building) or ["envkit doctor"])


def namespaces_open() -> bool:
    """Return whether this process may create a user namespace."""
    return _works(f"unshare({_NEW_USERS})")


def can_trace() -> bool:
    """Return whether a process may be traced here, which proot needs."""
    return _works(f"ptrace({_TRACE_ME}, 0, 0, 0)")


def is_contained() -> bool:
    """Return whether this process is in a container whose engine left a mark, or that filters system calls."""
    # The kubelet sets the variable in every container. containerd creates no marker file, but filters.
    marked = any(Path(path).exists() for path in _IN_A_CONTAINER) or "KUBERNETES_SERVICE_HOST" in os.environ
    return marked or (namespaces.is_filtered() and not namespaces_open())


def options(*, building: bool) -> list[str]:
    """Return what would make running images possible here, best first; any one of them is enough.

    Nothing that is installed is in it, and a setting of the kernel only if it is what forbids namespaces.
    """
    remedies: list[str] = []
    install = "apt-get install" if os.geteuid() == 0 else "as root: apt-get install"
    apt, bwrap = shutil.which("apt-get") is not None, shutil.which("bwrap") is not None
    if root_without(*_CHANGE_USER):
        remedies.append("run as a user other than root (docker run --user 1000), or with CAP_SETUID and CAP_SETGID")
    elif apt and not bwrap and namespaces_open():
        remedies.append(f"{install} bubblewrap")
    elif apt and shutil.which("proot") is None and can_trace():
        remedies.append(f"{install} proot")
    if is_contained():
        needed = "" if bwrap else ", with bubblewrap installed"
        remedies += [f"{DOCKER} ...{needed}", f"{PODMAN} ...{needed}"]
    # One of several settings alone changes nothing.
    elif not namespaces_open() and (commands := " && ".join(one.command for one in namespaces.closed_by())):
        needed = "" if bwrap else ", with bubblewrap installed"
        remedies.append(f"{commands}   # as root: bubblewrap needs user namespaces{needed}")
    if building:
        remedies.append("envkit build --no-verify")
    return remedies


def _works(call: str) -> bool:
    """Return whether a call of the C library succeeds. It is made in a child, because it changes the caller."""
    argv = [sys.executable, "-I", "-S", "-c", _CALL.format(call=call)]
    try:
        return subprocess.run(argv, capture_output=True, timeout=_PATIENCE_S, check=False).returncode == 0  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return False
