"""Nothing of the kernel is writable from inside an image, whichever user the image chooses and whatever runs it.

A root process without capabilities still passes the permission check of every sysctl: it compares user IDs. So every
file below /proc and /sys is opened for writing as 0:0 (and closed again, nothing is written), in every runner.
"""

import json
import re

import pytest

from envkit.run.bubblewrap import BubblewrapRunner
from envkit.run.model import RunLimits, Runner
from envkit.run.rootless.cell import Means
from tests.support.heard import Heard

pytestmark = pytest.mark.engine

# What engines leave writable: entries of processes of the same container, and none of another's.
OWN = frozenset(
    {
        "attr/apparmor/current", "attr/apparmor/exec", "attr/current", "attr/exec", "attr/fscreate",
        "attr/keycreate", "attr/smack/current", "attr/sockcreate", "autogroup", "clear_refs", "comm",
        "coredump_filter", "gid_map", "loginuid", "make-it-fail", "fail-nth", "mem", "oom_adj", "oom_score_adj",
        "projid_map", "sched", "setgroups", "timens_offsets", "timerslack_ns", "uid_map",
    }
)  # fmt: skip
ALLOWED = {"docker": OWN, "podman": OWN, "bubblewrap": frozenset[str](), "proot": frozenset[str]()}

# /dev/null over a file is how engines mask it; writing to that changes nothing.
_SCRIPT = r"""
use strict; use Fcntl; use filetest 'access';
my $null = join ',', (stat '/dev/null')[6];
sub look {
  my ($folder) = @_;
  print "$folder/\n" if -w $folder && $folder !~ m{^/proc/\d+/};
  opendir(my $listing, $folder) or return;
  my @names = grep { !/^\.\.?$/ } readdir $listing;
  closedir $listing;
  for my $name (@names) {
    my $path = "$folder/$name";
    my @seen = lstat $path or next;
    next if -l _;
    if (-d _) { look($path); next }
    next if -c _ && $seen[6] eq $null;
    $main::tried++;
    print "$path\n" if sysopen(my $file, $path, O_WRONLY | O_NONBLOCK | O_NOCTTY);
  }
}
look('/proc'); look('/sys');
print "tried $main::tried\n";
"""
_PROCESS = re.compile(r"^/proc/(?:\d+|self|thread-self)/(?:task/\d+/)?")


def writable(runner: Runner, image: str, *, user: str) -> tuple[set[str], int]:
    """Paths that can be opened for writing, those of processes as `/proc/PID/NAME`, and how many were tried."""
    result = runner.run(
        image,
        ["perl", "-e", _SCRIPT],
        {},
        gpus=None,
        limits=RunLimits(timeout_s=120, user=user),
        reporter=Heard(),
    )
    assert result.exit_code == 0, result.stderr
    *paths, last = result.stdout.decode().splitlines()
    return {_PROCESS.sub("/proc/PID/", path) for path in paths}, int(last.removeprefix("tried "))


@pytest.mark.requirement("R44")
@pytest.mark.parametrize("user", ["0:0", "1234:1234"])
def test_no_kernel_file_can_be_opened_for_writing(runner: Runner, image: str, user: str) -> None:
    found, tried = writable(runner, image, user=user)
    print(json.dumps({"runner": runner.name, "user": user, "tried": tried, "writable": sorted(found)}, indent=1))
    assert tried > 500  # otherwise the test has looked at nothing
    assert found <= {f"/proc/PID/{name}" for name in ALLOWED[runner.name]}


def test_bubblewrap_alone_protects_them_from_the_hosts_root(file_image: str) -> None:
    runner = BubblewrapRunner()
    runner._means = Means(entered=False, overlay=False, sysfs=False)  # where `enter.py` can do nothing
    assert writable(runner, file_image, user="0:0")[0] == set()


def test_no_environment_and_no_descriptor_of_the_host_comes_in(runner: Runner, image: str) -> None:
    script = "tr '\\0' '\\n' < /proc/1/environ | cut -d= -f1 | sort | tr '\\n' ' '; ls /proc/self/fd"
    result = runner.run(
        image, ["sh", "-c", script], {}, gpus=None, limits=RunLimits(timeout_s=60, user="0:0"), reporter=Heard()
    )
    names, _, descriptors = result.stdout.decode().rpartition(" ")
    assert set(names.split()) <= {"PATH", "HOME", "HOSTNAME", "GREETING", "container", "TERM"}
    assert descriptors == "0\n1\n2\n3\n"  # 3 is the folder that `ls` reads


@pytest.mark.requirement("R44")
def test_root_in_a_container_made_by_bubblewrap_is_not_root_outside(file_image: str) -> None:
    shown = BubblewrapRunner().run(
        file_image,
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
