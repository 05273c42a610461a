"""Nothing of the kernel is writable from inside an image, whichever user the image chooses and whatever runs it.

A root process without capabilities still passes the permission check of every sysctl: it compares user IDs. So every
file below /proc and /sys is opened for writing as 0:0 (and closed again, nothing is written), in every runner.
"""

import json

import pytest

from envkit.image.name import image_name
from envkit.run.bubblewrap import BubblewrapRunner
from envkit.run.model import RunLimits, Runner
from envkit.run.rootless.sandbox import Means
from tests.support.heard import Heard
from tests.support.kernel_files import OWN_ENTRIES, SCRIPT, writable_paths

pytestmark = pytest.mark.engine

# Runs of proot may write entries of processes only if they have GPUs (`test_cuda_starts.py`).
ALLOWED = dict.fromkeys(("docker", "podman", "bubblewrap"), OWN_ENTRIES) | {"proot": frozenset[str]()}


def writable(runner: Runner, image: str, *, user: str) -> tuple[set[str], int]:
    """Return the paths that can be opened for writing, and how many were tried; see `writable_paths`."""
    result = runner.run(
        image_name(image),
        ["perl", "-e", SCRIPT],
        {},
        gpus=None,
        limits=RunLimits(timeout_s=120, user=user),
        reporter=Heard(),
    )
    assert result.exit_code == 0, result.stderr
    return writable_paths(result.stdout.decode())


@pytest.mark.requirement("R44")
@pytest.mark.parametrize("user", ["0:0", "1234:1234"])
def test_no_kernel_file_can_be_opened_for_writing(runner: Runner, image: str, user: str) -> None:
    found, tried = writable(runner, image, user=user)
    print(json.dumps({"runner": runner.name, "user": user, "tried": tried, "writable": sorted(found)}, indent=1))
    assert tried > 500  # otherwise the test has looked at nothing
    assert found <= ALLOWED[runner.name]


def test_bubblewrap_alone_protects_them_from_the_hosts_root(file_image: str) -> None:
    runner = BubblewrapRunner()
    runner._means = Means(entered=False, overlay=False, sysfs=False)  # where `enter.py` can do nothing
    assert writable(runner, file_image, user="0:0")[0] <= OWN_ENTRIES


def test_no_environment_and_no_descriptor_of_the_host_comes_in(runner: Runner, image: str) -> None:
    script = "tr '\\0' '\\n' < /proc/1/environ | cut -d= -f1 | sort | tr '\\n' ' '; ls /proc/self/fd"
    result = runner.run(
        image_name(image),
        ["sh", "-c", script],
        {},
        gpus=None,
        limits=RunLimits(timeout_s=60, user="0:0"),
        reporter=Heard(),
    )
    names, _, descriptors = result.stdout.decode().rpartition(" ")
    assert set(names.split()) <= {"PATH", "HOME", "HOSTNAME", "GREETING", "container", "TERM"}
    assert descriptors == "0\n1\n2\n3\n"  # 3 is the folder that `ls` reads


@pytest.mark.requirement("R44")
def test_root_in_a_container_made_by_bubblewrap_is_not_root_outside(file_image: str) -> None:
    shown = BubblewrapRunner().run(
        image_name(file_image),
        [
            "sh",
            "-c",
            "id -u; id -g; stat -c '%u %g' / /etc/passwd /run/envkit/f; cat /proc/self/uid_map /proc/self/gid_map",
        ],
        {"/run/envkit/f": b""},
        gpus=None,
        limits=RunLimits(timeout_s=60, user="0:0"),
        reporter=Heard(),
    )
    lines = shown.stdout.decode().splitlines()
    assert lines[:5] == ["0", "0", "0 0", "0 0", "0 0"]
    assert [line.split() for line in lines[5:]] == [["0", str(2**31), str(2**31 - 1)]] * 2
