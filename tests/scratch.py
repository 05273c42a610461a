"""`python -m tests.scratch up|down|clear`: the file system of a run's temporary files and engines' images.

Tests create and remove hundreds of thousands of files. On ext4 without a journal, as images of virtual machines have
it, that takes half of the time of the long tests: an inode is not used again for a minute or more after its file was
removed, and every new file searches past all of those. So root gets a file system with a journal, in a sparse file of
the test world. Where it cannot be mounted, the tests use the usual folders.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.world.places import REPOSITORY, cache, say

GIB = 1 << 30
_MOST = 32 * GIB  # more than a run ever needed at once
_LEFT = 2 * GIB  # of the disk, for what the world writes beside it
# Nothing in it outlives a run, so nothing has to be on the disk at any time. What is freed goes back to the disk.
_OPTIONS = "noatime,discard,data=writeback,barrier=0,commit=300"


def folder() -> Path:
    """Where it is mounted. The path is short, because sockets below it have at most 107 characters.

    Not below /tmp: every run through proot may write there, so its files would need more protection than usual.
    """
    return Path("/var/tmp") / f"envkit-{hashlib.sha256(str(REPOSITORY).encode()).hexdigest()[:8]}"


def storage(name: str) -> Path:
    """Return the folder of an engine's images, created if missing: on this file system, else in the test world."""
    path = folder() / name if folder().is_mount() else cache(name)
    path.mkdir(parents=True, exist_ok=True)
    return path


def up() -> str:
    """Mount the file system and return the folder for temporary files; empty where those stay in the usual place."""
    path, file = folder(), _file()
    clear()
    size = min(shutil.disk_usage(file.parent).free - _LEFT, _MOST)
    if os.geteuid() != 0 or size <= 0:
        return ""
    try:
        path.mkdir(mode=0o755)
    except FileExistsError:  # another user's, or the storage of an engine that was not ended
        say(f"{path} exists, so the tests use the usual folders")
        return ""
    try:
        with file.open("wb") as image:
            image.truncate(size)
        _run("mkfs.ext4", "-q", "-F", "-m", "0", "-E", "lazy_itable_init=1,lazy_journal_init=1", str(file))
        device = _run("losetup", "--find", "--show", "--direct-io=on", str(file)).strip()
        try:
            _run("mount", "-o", _OPTIONS, device, str(path))
        finally:
            _run("losetup", "--detach", device)  # as soon as it is unmounted
    except (OSError, subprocess.CalledProcessError):  # no such programs, or root of a container that may not mount
        clear()
        return ""
    return str(path)


def down() -> None:
    """Unmount it, unless it has what a failed test wrote: that stays until the next run, or `make clean`."""
    if not any(folder().glob("pytest-of-*/pytest-*/popen-*/test_*")):
        clear()


def clear() -> None:
    """Unmount it and remove its file."""
    path = folder()
    if os.geteuid() == 0 and path.is_mount():
        subprocess.run(["umount", "--lazy", path], check=True)
    with contextlib.suppress(OSError):  # absent, or another user's
        path.rmdir()
    if not _file().exists():
        return
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        # Those that a killed `up` left.
        for row in _run("losetup", "--associated", str(_file())).splitlines():
            _run("losetup", "--detach", row.partition(":")[0])
    _file().unlink(missing_ok=True)


def taken() -> int:
    """Return the bytes of disk that the file of an earlier run takes; `up` frees them."""
    return _file().stat().st_blocks * 512 if _file().exists() else 0


def _file() -> Path:
    return cache() / "scratch.ext4"


def _run(*command: str) -> str:
    """Run a command as root, whose PATH may lack the folders of administrators' programs."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
    done = subprocess.run(command, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=True)
    return done.stdout


if __name__ == "__main__":
    if sys.argv[1:] == ["up"]:
        print(up())
    elif sys.argv[1:] == ["down"]:
        down()
    elif sys.argv[1:] == ["clear"]:
        clear()
    else:
        sys.exit("usage: python -m tests.scratch up|down|clear")
