"""Build a Debian root file system with mmdebstrap from the distribution's signed packages.

Every engine's bootstrapped base is built here. With a lock, exactly its versions are installed, and every archive's
SHA-256 is compared with the lock. Without one, the mirror's current versions are installed.
"""

from __future__ import annotations

import hashlib
import os
import pwd
import re
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from envkit.engines import compile_inside
from envkit.engines.failures import disk_full
from envkit.ground.errors import (
    RAISE_TIMEOUT,
    EngineError,
    EnvironmentProblem,
    EnvkitError,
    IntegrityError,
    LockError,
    TimeLimitError,
)
from envkit.ground.process import ask, follow
from envkit.lock import apt

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence

    from envkit.engines.journal import Journal
    from envkit.engines.log import BuildLog
    from envkit.lock.model import DebPackage

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_EPOCH = "1735689600"  # 2025-01-01, the date of every file that the packages' scripts write
_ID_RANGES = (Path("/etc/subuid"), Path("/etc/subgid"))
_LIMIT_S = 1800.0  # a base takes a minute; a slow mirror may take many
# The root is packed and then removed, so dpkg need not sync each file to the disk (force-unsafe-io).
_OPTIONS = ("--format=tar", "--variant=minbase", "--dpkgopt=force-unsafe-io")
_MINIMAL = "ca-certificates"  # in addition to the variant's packages; a lock names all of them
# dpkg gets these options only after mmdebstrap has unpacked the essential packages. Otherwise mmdebstrap would apply
# them by starting a filter in Python for each package. Their files are removed here before any script uses them.
_SLIM = (
    "path-exclude=/usr/share/man/*",
    "path-exclude=/usr/share/info/*",
    "path-exclude=/usr/share/locale/*",
    "path-exclude=/usr/share/doc/*",
    "path-include=/usr/share/doc/*/copyright",
)
_CONFIGURE = (
    f"printf '%s\\n' {' '.join(repr(line) for line in _SLIM)} > \"$1\"/etc/dpkg/dpkg.cfg.d/envkit; "
    'rm -rf "$1"/usr/share/man/* "$1"/usr/share/info/* "$1"/usr/share/locale/*; '
    'find "$1/usr/share/doc" -type f ! -path "*/doc/*/copyright" -delete; '
    'find "$1/usr/share/doc" -mindepth 1 -type d -empty -delete'
)
# Bytecode differs from run to run, and name servers and the host name are those of this machine.
_CLEAN = (
    'find "$1/usr" -xdev -name __pycache__ -prune -exec rm -r {} +; '
    'rm -rf "$1"/var/lib/apt/lists/* "$1"/var/cache/apt/*.bin "$1"/var/log/*.log "$1"/var/log/apt '
    '"$1"/etc/resolv.conf "$1"/etc/hostname "$1"/var/cache/debconf/*-old "$1"/var/lib/dpkg/*-old'
)
# After _CLEAN, which removes the bytecode that the packages' scripts made. Python's own modules have no bytecode in the
# packages, and every start of Python reads dozens of them. Without json, only the minimal package is installed.
_COMPILE = (
    "umask 022; for name in python3.8 python3.9 $(seq -f python3.%g 10 29); do "
    'if [ -x "$1/usr/bin/$name" ] && [ -d "$1/usr/lib/$name/json" ]; then '
    f'env -i PATH={PATH} LC_ALL=C.UTF-8 PYTHONHASHSEED=0 chroot "$1" "$name" -s -S -B -W ignore - folders '
    '"/usr/lib/$name" /usr/lib/python3/dist-packages < "$ENVKIT_COMPILE" || exit 1; fi; done'
)
_COMPILER = Path(compile_inside.__file__).read_bytes()
_SUMS = 'sha256sum "$1"/var/cache/apt/archives/*.deb >> "$ENVKIT_SUMS"'
RECIPE = (*_OPTIONS, _MINIMAL, _CONFIGURE, _CLEAN, _COMPILE, hashlib.sha256(_COMPILER).hexdigest(), _EPOCH)
"""Everything besides the packages that determines the contents."""

_TAR_COMPLETE = "I: removing tempdir"  # mmdebstrap's last message; only this removal is left to do
_VERSION_GONE = re.compile(r"Version '[^']*' for '[^']*' was not found|unmet dependencies|held broken packages")
_UNREACHABLE = re.compile(r"Could not (?:resolve|connect)|Temporary failure|Failed to fetch|Unable to connect")
_NO_NAMESPACES = re.compile(r"newuidmap|newgidmap|subuid|subgid|unshare|user namespace")


@dataclass(frozen=True, slots=True, kw_only=True)
class RootOptions:
    """How to build a root file system on this machine."""

    mirror: str | None  # URL of a Debian mirror; None = the host's apt configuration
    log: BuildLog  # receives mmdebstrap's output
    limit_s: float | None = None  # time limit in seconds; never more than half an hour
    stop: threading.Event | None = None  # cancels the work when another thread sets it


def make(
    suite: str,
    packages: Sequence[DebPackage],
    folder: Path,
    options: RootOptions,
    notes: Journal,
    *,
    on_tar: Callable[[Path], None] | None = None,
) -> Path:
    """Build the tar of a root file system. Safe on any thread; if the wait ends early, mmdebstrap is killed.

    Args:
        suite: such as 'bookworm'.
        packages: all packages of the lock; none = a minimal set of the mirror's current versions.
        folder: a temporary folder that apt's own user can enter; the tar is written here.
        options: mirror, log and limits.
        notes: the run's journal, which records the process.
        on_tar: called with the tar while mmdebstrap still cleans up. The tar is valid only if this function returns.

    Raises:
        LockError: the mirror no longer has these versions.
        IntegrityError: an archive's SHA-256 differs from the lock's.
        EnvironmentProblem: mmdebstrap or a permission is missing, the disk is full, or the mirror is unreachable.
        EngineError: mmdebstrap failed for another reason.
        TimeLimitError: the time limit was reached.
    """
    doing, log = f"building a Debian {suite} base", options.log
    program, mode = _program(doing), _mode(doing)
    tar, sums = folder / "base.tar", folder / "sums"
    sums.touch()
    sums.chmod(0o666)  # in a user namespace, the root that runs the hooks is another user here
    wanted = ",".join(f"{package.name}={package.version}" for package in packages) or _MINIMAL
    # Copied for the same reason: the file of this installation may be unreadable for that user.
    compiler = folder / "compile_inside.py"
    compiler.write_bytes(_COMPILER)
    compiler.chmod(0o644)
    # Twice, because mmdebstrap deletes the archives of the essential packages before it installs the others.
    hooks = [f"--extract-hook={_SUMS}", f"--extract-hook={_CONFIGURE}", f"--customize-hook={_SUMS}"]
    apt_options = [f"--aptopt={option}" for option in apt.carried_options()]
    argv = [program, f"--mode={mode}", *_OPTIONS, f"--include={wanted}", *hooks, f"--customize-hook={_CLEAN}"]
    argv.append(f"--customize-hook={_COMPILE}")
    # TMPDIR: the root is unpacked there and removed with the folder. LC_ALL: `_failure` matches the English messages.
    own = {"SOURCE_DATE_EPOCH": _EPOCH, "TMPDIR": str(folder), "LC_ALL": "C.UTF-8"}
    own |= {"ENVKIT_SUMS": str(sums), "ENVKIT_COMPILE": str(compiler)}
    limit = _LIMIT_S if options.limit_s is None else min(options.limit_s, _LIMIT_S)
    reported = False

    def on_line(line: str) -> None:
        nonlocal reported
        log.write(line)
        if not reported and on_tar is not None and line.startswith(_TAR_COMPLETE):
            reported = True
            on_tar(tar)

    try:
        ended = follow(
            [*argv, *apt_options, suite, str(tar), *apt.sources(suite, options.mirror)],
            on_line,
            env={**os.environ, **own},
            limit_s=limit,
            on_start=notes.process,
            stop=options.stop,
        )
    finally:
        _remove_foreign(folder, program, mode)
    if ended.timed_out:
        raise TimeLimitError(f"{doing} did not end within {limit:.0f} s", hint=RAISE_TIMEOUT, details=log.details())
    if ended.code != 0:
        raise _failure(doing, ended.code, folder, log, locked=bool(packages))
    if packages:
        compare(packages, sums.read_text(encoding="utf-8"))
    if not reported and on_tar is not None:
        on_tar(tar)
    return tar


def compare(packages: Sequence[DebPackage], sums: str) -> None:
    """Compare the installed archives, listed by `sha256sum`, with the lock.

    Raises:
        IntegrityError: an archive of the lock was not installed, or one that is not in the lock was.
    """
    # <64 digits>  ROOT/var/cache/apt/archives/ca-certificates_20230311_all.deb
    archives = {line.split()[0]: Path(line.split(maxsplit=1)[1]).name for line in sums.splitlines() if line.strip()}
    locked = {deb.sha256: deb for deb in packages if deb.sha256}
    hint = "run envkit lock again; if the error repeats, check the Debian mirror"
    for digest, package in locked.items():
        if digest not in archives:
            file = next((file for file in archives.values() if file.startswith(f"{package.name}_")), None)
            problem = (
                "it was not installed" if file is None else f"the SHA-256 of the mirror's {file} is not the lock's"
            )
            raise IntegrityError(f"{package.name} {package.version}: {problem}", hint=hint)
    names = {deb.name for deb in packages}
    for digest, file in archives.items():
        # A package of the lock without a SHA-256 is recognized by its name.
        if digest not in locked and file.partition("_")[0] not in names:
            raise IntegrityError(f"{file} was installed, but is not in the lock", hint=hint)


def _program(doing: str) -> str:
    program = shutil.which("mmdebstrap")
    if program is None:
        raise EnvironmentProblem(
            f"{doing} needs mmdebstrap, which is not installed",
            hint="apt-get install mmdebstrap; or set a registry (ENVKIT_REGISTRY=host:port), or use --base IMAGE",
        )
    return program


def _mode(doing: str) -> str:
    """Return mmdebstrap's mode. Users other than root need user namespaces and a range of subordinate user IDs."""
    if os.geteuid() == 0:
        return "root"
    user = _user()
    missing = [file for file in _ID_RANGES if not _is_listed(file, user)]
    if shutil.which("newuidmap") is None or missing:
        problem = f"{missing[0]} has no line for {user}" if missing else "newuidmap is not installed"
        raise _no_namespaces(doing, problem, user)
    return "unshare"


def _user() -> str:
    """Return the user's name, for which mmdebstrap looks up the ranges; without one, the user ID."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def _is_listed(file: Path, user: str) -> bool:
    with suppress(OSError):
        return any(line.startswith(f"{user}:") for line in file.read_text(errors="replace").splitlines())
    return False


def _no_namespaces(doing: str, problem: str, user: str, details: tuple[str, ...] = ()) -> EnvironmentProblem:
    return EnvironmentProblem(
        f"{doing} as a normal user needs user namespaces: {problem}",
        hint=f"as root: apt-get install uidmap; usermod --add-subuids 100000-165535 --add-subgids 100000-165535 {user}"
        "; or run envkit as root, or use --base IMAGE",
        details=details,
    )


def _remove_foreign(folder: Path, program: str, mode: str) -> None:
    """Remove what a killed mmdebstrap left. In unshare mode it belongs to subordinate user IDs of the namespace."""
    leftovers = sorted(folder.glob("mmdebstrap.*"))
    if leftovers and mode == "unshare":
        with suppress(EnvironmentProblem):
            ask([program, "--unshare-helper", "rm", "-rf", *map(str, leftovers)], patience_s=60.0)


def _failure(doing: str, code: int, folder: Path, log: BuildLog, *, locked: bool) -> EnvkitError:
    text, details = "\n".join(log.tail()), log.details()
    if disk_full(text):
        return EnvironmentProblem(
            f"{doing}: disk full on {folder.parent} (it needs about 600 MB)",
            hint="export TMPDIR=/a/larger/disk",
            details=details,
        )
    if locked and _VERSION_GONE.search(text):
        return LockError(
            f"{doing}: the Debian mirror does not have the versions in the lock",
            hint="run envkit lock again",
            details=details,
        )
    if _UNREACHABLE.search(text):
        return EnvironmentProblem(
            f"{doing}: the Debian mirror cannot be reached",
            hint="set another mirror with ENVKIT_DEBIAN_MIRROR=URL",
            details=details,
        )
    if os.geteuid() != 0 and _NO_NAMESPACES.search(text):
        return _no_namespaces(doing, "this machine refuses them", _user(), details)
    return EngineError(f"{doing}: mmdebstrap ended with code {code}", details=details)
