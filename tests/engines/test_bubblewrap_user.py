"""The runners' tests once more, for bubblewrap, as a user with no power at all."""

import os
import pwd
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.another_user import another_user, python_for, site_packages, words_for
from tests.world import apt, base
from tests.world.places import REPOSITORY, UnavailableError

pytestmark = [pytest.mark.engine, pytest.mark.long]
_USER = "envkit-tests"


@pytest.fixture(scope="module")
def nobody() -> Iterator[pwd.struct_passwd]:
    """A user made for these tests."""
    apt.require("bwrap", "bubblewrap")
    with another_user(_USER) as user:
        yield user


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
    python = python_for(nobody)
    environment = {
        "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
        "HOME": nobody.pw_dir,
        "PYTHONPATH": f"{REPOSITORY}:{site_packages()}",
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
        ["sh", "-ec", script, "sh", *words_for(nobody), *argv],
        cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert " 0 failed, 0 skipped" in done.stdout


def _own_group(controller: str) -> Path | None:
    """This process's own control group of version 1."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        folder = Path("/sys/fs/cgroup") / controller / path.lstrip("/")
        if controller in names.split(",") and folder.is_dir():
            return folder
    return None
