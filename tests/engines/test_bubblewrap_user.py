"""The runners' tests once more, for bubblewrap, as a user with no power at all."""

import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.world import apt, base
from tests.world.places import REPOSITORY, UnavailableError

pytestmark = pytest.mark.engine
_USER = "envkit-tests"


@pytest.fixture(scope="module")
def nobody() -> Iterator[pwd.struct_passwd]:
    """A user made for these tests."""
    if os.geteuid() != 0:
        raise UnavailableError("another user can be made by root alone; the tests of the runners ran as this one")
    apt.require("bwrap", "bubblewrap")
    try:
        pwd.getpwnam(_USER)
    except KeyError:
        subprocess.run(["useradd", "--create-home", _USER], check=True)
    yield pwd.getpwnam(_USER)
    subprocess.run(["userdel", "--remove", _USER], check=True, capture_output=True)


@pytest.fixture
def delegated(nobody: pwd.struct_passwd) -> Iterator[tuple[Path, ...]]:
    """Control groups that belong to that user, as a login manager would give."""
    made: list[Path] = []
    for controller in ("memory", "pids"):
        own = _own_group(controller)
        if own is None:
            continue
        folder = own / f"{_USER}-{os.getpid()}"
        folder.mkdir()
        made.append(folder)
        for path in (folder, *folder.iterdir()):
            os.chown(path, nobody.pw_uid, nobody.pw_gid)
    yield tuple(made)
    for folder in made:
        for left in (*folder.iterdir(), folder):
            if left.is_dir():
                left.rmdir()


def test_the_runners_tests_pass_for_a_normal_user(nobody: pwd.struct_passwd, delegated: tuple[Path, ...]) -> None:
    if not delegated:
        raise UnavailableError("control groups of version 1 are not mounted here, so none can be handed over")
    base.layer()
    candidates = (sys.executable, shutil.which("python3", path="/usr/bin"))
    python = next((one for one in candidates if _runs(one, nobody)), None)
    if python is None:
        raise UnavailableError("no Python here that another user may run")
    site = next(path for path in sys.path if path.endswith("site-packages"))
    environment = {
        "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
        "HOME": nobody.pw_dir,
        "PYTHONPATH": f"{REPOSITORY}:{site}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "ENVKIT_WORLD": os.environ.get("ENVKIT_WORLD", str(REPOSITORY / ".world")),
        "CI": "true",  # where a skip is a failure
    }
    words = [f"echo $$ > {folder}/cgroup.procs" for folder in delegated]
    argv = [python, "-m", "pytest", "-q", "-x", "--run-engines", "-p", "no:cacheprovider", "-k", "bubblewrap"]
    argv += ["--basetemp", f"{nobody.pw_dir}/pytest", str(REPOSITORY / "tests/engines/test_runners.py")]
    # The shell joins the groups as root, and only then is root no more.
    script = "; ".join([*words, 'exec "$@"'])
    done = subprocess.run(
        ["sh", "-ec", script, "sh", *_as(nobody), *argv],
        cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert " 0 failed, 0 skipped" in done.stdout


def _runs(python: str | None, user: pwd.struct_passwd) -> bool:
    """Whether a user may start this Python, and it has what the tests import."""
    if python is None:
        return False
    site = next(path for path in sys.path if path.endswith("site-packages"))
    done = subprocess.run(
        [*_as(user), python, "-c", "import pytest, yaml"], env={"PYTHONPATH": site}, capture_output=True, check=False
    )
    return done.returncode == 0


def _as(user: pwd.struct_passwd) -> list[str]:
    """The words that run a command as a user; the shell in between has lost root's powers when it starts it."""
    words = ["setpriv", "--reuid", str(user.pw_uid), "--regid", str(user.pw_gid), "--clear-groups", "--"]
    return [*words, "/bin/sh", "-c", 'exec "$0" "$@"']


def _own_group(controller: str) -> Path | None:
    """This process's own control group of version 1."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        folder = Path("/sys/fs/cgroup") / controller / path.lstrip("/")
        if controller in names.split(",") and folder.is_dir():
            return folder
    return None
