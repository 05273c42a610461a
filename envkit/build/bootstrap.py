"""A Debian root file system, made by mmdebstrap from the distribution's own signed packages.

Every engine's bootstrapped base is what is made here. A lock's packages are installed in exactly its versions, and
every archive's SHA-256 is compared with the lock; without a lock they are what the mirror has at the moment.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from envkit.engine.failures import disk_full
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

    from envkit.build.journal import Journal
    from envkit.build.log import BuildLog
    from envkit.lock.model import DebPackage

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_EPOCH = "1735689600"  # 2025-01-01: one date for every file that the packages' scripts write
_ID_RANGES = (Path("/etc/subuid"), Path("/etc/subgid"))
_LIMIT_S = 1800.0  # a base takes a minute; a slow mirror may take many
# A root that is packed at once and then removed need not be synced to the disk file by file.
_OPTIONS = ("--format=tar", "--variant=minbase", "--dpkgopt=force-unsafe-io")
_MINIMAL = "ca-certificates"  # besides the variant's own; a lock names all of them
# dpkg is told only after mmdebstrap has unpacked the essential packages itself: for that it would start a filter
# written in Python once for each of them. What they brought is removed before any of their scripts looks for it.
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
# Bytecode differs from run to run; name servers and the host's name are this machine's.
_CLEAN = (
    'find "$1/usr" -xdev -name __pycache__ -prune -exec rm -r {} +; '
    'rm -rf "$1"/var/lib/apt/lists/* "$1"/var/cache/apt/*.bin "$1"/var/log/*.log "$1"/var/log/apt '
    '"$1"/etc/resolv.conf "$1"/etc/hostname "$1"/var/cache/debconf/*-old "$1"/var/lib/dpkg/*-old'
)
_SUMS = 'sha256sum "$1"/var/cache/apt/archives/*.deb >> "$ENVKIT_SUMS"'
RECIPE = (*_OPTIONS, _MINIMAL, _CONFIGURE, _CLEAN, _EPOCH)
"""What the contents follow from, besides the packages."""

_TAR_IS_THERE = "I: removing tempdir"  # mmdebstrap, when nothing is left to do for it but that
_MOVED = re.compile(r"Version '[^']*' for '[^']*' was not found|unmet dependencies|held broken packages")
_AWAY = re.compile(r"Could not (?:resolve|connect)|Temporary failure|Failed to fetch|Unable to connect")
_NO_NAMESPACES = re.compile(r"newuidmap|newgidmap|subuid|subgid|unshare|user namespace")


@dataclass(frozen=True, slots=True, kw_only=True)
class RootOptions:
    """How this machine makes a root file system."""

    mirror: str | None  # URL of a Debian mirror; None = the host's own apt configuration
    log: BuildLog  # takes mmdebstrap's lines
    limit_s: float | None = None  # time limit in seconds; never more than half an hour
    stop: threading.Event | None = None  # ends the work when another thread sets it


def make(
    suite: str,
    packages: Sequence[DebPackage],
    folder: Path,
    options: RootOptions,
    notes: Journal,
    *,
    on_tar: Callable[[Path], None] | None = None,
) -> Path:
    """Make the tar of a root file system. Safe on any thread; whatever ends the wait ends mmdebstrap and its children.

    Args:
        suite: 'bookworm'.
        packages: of the lock, all of them; none = a minimal set as the mirror has it.
        folder: temporary, and open to apt's own user; the tar is written here.
        options: mirror, log and limits.
        notes: of the run, for the process.
        on_tar: called with the tar while mmdebstrap still cleans up; the return says whether it is valid.

    Raises:
        LockError: the mirror does not have these versions any more.
        IntegrityError: an archive's SHA-256 is not that of the lock.
        EnvironmentProblem: no mmdebstrap, no permission, no disk, no mirror.
        EngineError: mmdebstrap failed otherwise.
        TimeLimitError: it found no end.
    """
    doing, log = f"making a Debian {suite} base", options.log
    program, mode = _program(doing), _mode(doing)
    tar, sums = folder / "base.tar", folder / "sums"
    sums.touch()
    sums.chmod(0o666)  # the hooks' root is another user where user namespaces are used
    wanted = ",".join(f"{package.name}={package.version}" for package in packages) or _MINIMAL
    hooks = [f"--extract-hook={_SUMS}", f"--extract-hook={_CONFIGURE}", f"--customize-hook={_SUMS}"]
    apt_options = [f"--aptopt={option}" for option in apt.carried_options()]
    argv = [program, f"--mode={mode}", *_OPTIONS, f"--include={wanted}", *hooks, f"--customize-hook={_CLEAN}"]
    own = {"SOURCE_DATE_EPOCH": _EPOCH, "TMPDIR": str(folder), "LC_ALL": "C.UTF-8", "ENVKIT_SUMS": str(sums)}
    limit = _LIMIT_S if options.limit_s is None else min(options.limit_s, _LIMIT_S)
    reported = False

    def heard(line: str) -> None:
        nonlocal reported
        log.write(line)
        if not reported and on_tar is not None and line.startswith(_TAR_IS_THERE):
            reported = True
            on_tar(tar)

    try:
        ended = follow(
            [*argv, *apt_options, suite, str(tar), *apt.sources(suite, options.mirror)],
            heard,
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
    """Compare `sha256sum`'s lines about the archives that were installed with the lock.

    Raises:
        IntegrityError: another archive was used, or one of the lock's was not.
    """
    archives = {line.split()[0]: Path(line.split(maxsplit=1)[1]).name for line in sums.splitlines() if line.strip()}
    promised = {deb.sha256: deb for deb in packages if deb.sha256}
    hint = "run envkit lock again; if it repeats, check the Debian mirror"
    for digest, package in promised.items():
        if digest not in archives:
            file = next((file for file in archives.values() if file.startswith(f"{package.name}_")), "no archive")
            raise IntegrityError(
                f"{package.name} {package.version}: the mirror gives {file} with another SHA-256 than the lock's",
                hint=hint,
            )
    names = {deb.name for deb in packages}
    for digest, file in archives.items():
        if digest not in promised and file.partition("_")[0] not in names:
            raise IntegrityError(f"{file} was installed, and the lock does not name it", hint=hint)


def _program(doing: str) -> str:
    program = shutil.which("mmdebstrap")
    if program is None:
        raise EnvironmentProblem(
            f"{doing} is mmdebstrap's work, and it is not installed here",
            hint="apt-get install mmdebstrap; or name a registry (ENVKIT_REGISTRY=host:port), or give --base IMAGE",
        )
    return program


def _mode(doing: str) -> str:
    """Return how mmdebstrap becomes root inside; a normal user needs a range of further user ids for that."""
    if os.geteuid() == 0:
        return "root"
    user = _user()
    lacking = [file for file in _ID_RANGES if not _named_in(file, user)]
    if shutil.which("newuidmap") is None or lacking:
        what = f"{lacking[0]} has no line for {user}" if lacking else "newuidmap is not installed"
        raise _no_namespaces(doing, what, user)
    return "unshare"


def _user() -> str:
    """Return the name by which mmdebstrap looks for the ranges; the number where there is none."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def _named_in(file: Path, user: str) -> bool:
    with suppress(OSError):
        return any(line.startswith(f"{user}:") for line in file.read_text(errors="replace").splitlines())
    return False


def _no_namespaces(doing: str, what: str, user: str, details: tuple[str, ...] = ()) -> EnvironmentProblem:
    return EnvironmentProblem(
        f"{doing} as a normal user needs user namespaces: {what}",
        hint=f"as root: apt-get install uidmap; usermod --add-subuids 100000-165535 --add-subgids 100000-165535 {user}"
        "; or run envkit as root, or give --base IMAGE",
        details=details,
    )


def _remove_foreign(folder: Path, program: str, mode: str) -> None:
    """Remove what a mmdebstrap that was ended left: in user namespaces it belongs to users that only those can be."""
    left = sorted(folder.glob("mmdebstrap.*"))
    if left and mode == "unshare":
        with suppress(EnvironmentProblem):
            ask([program, "--unshare-helper", "rm", "-rf", *map(str, left)], patience_s=60.0)


def _failure(doing: str, code: int, folder: Path, log: BuildLog, *, locked: bool) -> EnvkitError:
    text, details = "\n".join(log.tail()), log.details()
    if disk_full(text):
        return EnvironmentProblem(
            f"{doing}: disk full on {folder.parent} (it needs about 600 MB)",
            hint="export TMPDIR=/a/larger/disk",
            details=details,
        )
    if locked and _MOVED.search(text):
        return LockError(
            f"{doing}: the Debian mirror has other versions than the lock",
            hint="run envkit lock again",
            details=details,
        )
    if _AWAY.search(text):
        return EnvironmentProblem(
            f"{doing}: the Debian mirror cannot be reached",
            hint="ENVKIT_DEBIAN_MIRROR=URL names another mirror",
            details=details,
        )
    if os.geteuid() != 0 and _NO_NAMESPACES.search(text):
        return _no_namespaces(doing, "this machine refuses them", _user(), details)
    return EngineError(f"{doing}: mmdebstrap ended with code {code}", details=details)
