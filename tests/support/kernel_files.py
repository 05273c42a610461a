"""Which files below /proc and /sys a run can open for writing: a script for the run, and what reads its output."""

import re

OWN_ENTRIES = frozenset(
    f"/proc/OWN/{name}"
    for name in (
        "attr/apparmor/current", "attr/apparmor/exec", "attr/current", "attr/exec", "attr/fscreate",
        "attr/keycreate", "attr/smack/current", "attr/sockcreate", "autogroup", "clear_refs", "comm",
        "coredump_filter", "gid_map", "loginuid", "make-it-fail", "fail-nth", "mem", "oom_adj", "oom_score_adj",
        "projid_map", "sched", "setgroups", "timens_offsets", "timerslack_ns", "uid_map",
    )
)  # fmt: skip
"""What engines leave writable: entries of processes of the same container."""

# /dev/null over a file is how engines mask it; writing to that changes nothing. A process of the run is one whose
# environment the run can read: the kernel allows that where it allows tracing.
SCRIPT = r"""
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
    next unless sysopen(my $file, $path, O_WRONLY | O_NONBLOCK | O_NOCTTY);
    my $of_other = $path =~ m{^/proc/(\d+)/} && !sysopen(my $own, "/proc/$1/environ", O_RDONLY);
    print $of_other ? "other $path\n" : "$path\n";
  }
}
look('/proc'); look('/sys');
print "tried $main::tried\n";
"""
_PROCESS = re.compile(r"/proc/(?:\d+|self|thread-self)/(?:task/\d+/)?")


def writable_paths(output: str) -> tuple[set[str], int]:
    """Return the paths of the script's output and how many were tried.

    Entries of processes are `/proc/OWN/NAME`, or `other /proc/OWN/NAME` for a process that is not the run's.
    """
    *paths, last = output.splitlines()
    return {_PROCESS.sub("/proc/OWN/", path) for path in paths}, int(last.removeprefix("tried "))
