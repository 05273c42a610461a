"""Run commands as an unprivileged user when the tests run as root."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests.world.places import UnavailableError


@contextmanager
def another_user(name: str) -> Iterator[pwd.struct_passwd]:
    """Create a user for the length of the block; raises UnavailableError if this process is not root.

    Each process of the tests has a user of its own: it ends with the block, also for the others.
    """
    if os.geteuid() != 0:
        raise UnavailableError("only root can create another user")
    name = f"{name}-{os.getpid()}"
    try:
        pwd.getpwnam(name)
    except KeyError:
        subprocess.run(["useradd", "--create-home", name], check=True)
    try:
        yield pwd.getpwnam(name)
    finally:
        subprocess.run(["userdel", "--remove", name], check=True, capture_output=True)


def words_for(user: pwd.struct_passwd) -> list[str]:
    """Return the arguments that run a command as a user. The shell starts it after root's capabilities are dropped."""
    words = ["setpriv", "--reuid", str(user.pw_uid), "--regid", str(user.pw_gid), "--clear-groups", "--"]
    return [*words, "/bin/sh", "-c", 'exec "$0" "$@"']


def site_packages() -> str:
    """Return this interpreter's site-packages folder."""
    return next(path for path in sys.path if path.endswith("site-packages"))


def python_for(user: pwd.struct_passwd) -> str:
    """Return a Python that the user may start with this one's packages; raises UnavailableError if there is none."""
    for python in (sys.executable, shutil.which("python3", path="/usr/bin")):
        command = [*words_for(user), str(python), "-c", "import pytest, yaml"]
        if (
            python
            and not subprocess.run(
                command, env={"PYTHONPATH": site_packages()}, capture_output=True, check=False
            ).returncode
        ):
            return python
    raise UnavailableError("there is no Python here that another user may run")
