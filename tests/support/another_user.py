"""Running commands as a user with no power at all, where the tests themselves run as root."""

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
    """A user made for this; raises UnavailableError where this process may not make one."""
    if os.geteuid() != 0:
        raise UnavailableError("another user can be made by root alone")
    try:
        pwd.getpwnam(name)
    except KeyError:
        subprocess.run(["useradd", "--create-home", name], check=True)
    try:
        yield pwd.getpwnam(name)
    finally:
        subprocess.run(["userdel", "--remove", name], check=True, capture_output=True)


def words_for(user: pwd.struct_passwd) -> list[str]:
    """The words that run a command as a user; the shell in between has lost root's powers when it starts it."""
    words = ["setpriv", "--reuid", str(user.pw_uid), "--regid", str(user.pw_gid), "--clear-groups", "--"]
    return [*words, "/bin/sh", "-c", 'exec "$0" "$@"']


def site_packages() -> str:
    """Where this interpreter's packages are."""
    return next(path for path in sys.path if path.endswith("site-packages"))


def python_for(user: pwd.struct_passwd) -> str:
    """A Python with this one's packages that the user may start; raises UnavailableError where there is none."""
    for python in (sys.executable, shutil.which("python3", path="/usr/bin")):
        command = [*words_for(user), str(python), "-c", "import pytest, yaml"]
        if (
            python
            and not subprocess.run(
                command, env={"PYTHONPATH": site_packages()}, capture_output=True, check=False
            ).returncode
        ):
            return python
    raise UnavailableError("no Python here that another user may run")
