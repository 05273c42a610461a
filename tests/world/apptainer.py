"""Apptainer, which stable Debian does not have: a root of Debian unstable with it, and a program that runs it there."""

import os
import subprocess
from dataclasses import replace
from pathlib import Path

from tests.world import apt
from tests.world.places import UnavailableError, cache, locked, say

SUITE = "unstable"
# What the root has itself; of /var only its temporary folder is shared.
_SYSTEM = {"bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "libx32", "proc", "sbin", "sys", "usr", "var"}


def program() -> Path:
    """Return a program `apptainer`; it sees all folders of this machine that are not the system's.

    Raises:
        UnavailableError: the root cannot be built here.
    """
    with locked("apptainer"):
        folder = cache("apptainer")
        root, path = folder / "root", folder / "bin" / "apptainer"
        if not path.parent.exists():
            _bootstrap(root)
            path.parent.mkdir()
        path.write_text(_script(root))
        path.chmod(0o755)
    return path


def _script(root: Path) -> str:
    # Where the tests put their data is the caller's choice (TMPDIR, a checkout anywhere), so a list would be a guess.
    theirs = sorted(folder for folder in Path("/").iterdir() if folder.is_dir() and folder.name not in _SYSTEM)
    binds = " ".join(f"--bind {folder} {folder}" for folder in (*theirs, Path("/var/tmp")) if not folder.is_symlink())
    # Apptainer mounts these files of its machine into every container.
    files = " ".join(f"--ro-bind-try {file} {file}" for file in ("/etc/hosts", "/etc/localtime", "/etc/resolv.conf"))
    system = f"--dev-bind /dev /dev --proc /proc --ro-bind-try /sys /sys {files}"
    options = f"--bind {root} / {system} {binds}"
    bwrap = apt.require("bwrap", "bubblewrap")
    return f'#!/bin/sh\nexec {bwrap} {options} --chdir "$PWD" -- /usr/bin/apptainer "$@"\n'


def _bootstrap(root: Path) -> None:
    if os.geteuid() != 0:
        raise UnavailableError("building a Debian root with mmdebstrap needs root here")
    main = next(source for source in apt.debian_sources() if "-" not in source.suite)
    command = [apt.require("mmdebstrap", "mmdebstrap"), "--quiet", "--mode=root", "--variant=apt"]
    command += [f"--aptopt={option}" for option in apt.carried_options()]
    command += ["--include=apptainer", SUITE, str(root), replace(main, suite=SUITE).line()]
    say("building a root of Debian unstable with Apptainer (about a minute)")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UnavailableError(f"mmdebstrap: {done.stderr.strip()[-600:]}")
