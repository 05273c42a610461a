"""`python -m tests.scratch up|down|clear`: the folder of tests' temporary files, in memory where root can mount one.

Tests create and remove hundreds of thousands of files. On ext4 without a journal, as images of virtual machines have
it, that takes half of the time of the long tests: an inode is not used again for a minute or more after its file was
removed, and every new file searches past all of those.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.world.places import REPOSITORY

GIB = 1 << 30
# A run needs up to 6 GiB for programs and 2 for temporary files; the rest of this is a margin.
LEAST = 14 * GIB


def folder() -> Path:
    """The folder of this checkout's runs; its path is short, because sockets below it have at most 107 characters."""
    name = hashlib.sha256(str(REPOSITORY).encode()).hexdigest()[:8]
    return Path(tempfile.gettempdir()) / f"envkit-{name}"


def up() -> str:
    """Mount the folder and return its path; empty where temporary files stay in the usual place."""
    path = folder()
    _unmount(path)
    if os.geteuid() != 0 or _available() < LEAST:
        return ""
    try:
        path.mkdir()
    except FileExistsError:  # another user's, in a folder that everyone may write to
        return ""
    command = ["mount", "-t", "tmpfs", "-o", f"mode=0755,size={_available() // 2}", "envkit-tests", str(path)]
    if subprocess.run(command, capture_output=True, check=False).returncode:  # root of a container that may not mount
        path.rmdir()
        return ""
    return str(path)


def down() -> None:
    """Unmount the folder, unless it has what a failed test wrote: that stays until the next run, or `make clean`."""
    path = folder()
    if not any(path.glob("pytest-of-*/pytest-*/popen-*/test_*")):
        _unmount(path)


def _unmount(path: Path) -> None:
    if os.geteuid() == 0 and path.is_mount():
        subprocess.run(["umount", "--lazy", path], check=True)
    with contextlib.suppress(OSError):  # absent, or another user's
        path.rmdir()


def _available() -> int:
    """Return the bytes of memory that programs can still get."""
    rows = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    return int(rows["MemAvailable"].split()[0]) << 10


if __name__ == "__main__":
    if sys.argv[1:] == ["up"]:
        print(up())
    elif sys.argv[1:] == ["down"]:
        down()
    elif sys.argv[1:] == ["clear"]:
        _unmount(folder())
    else:
        sys.exit("usage: python -m tests.scratch up|down|clear")
