"""One run through proot: its folder, its arguments, and how it is started and ended. No namespace is needed.

Proot shows a folder as the root by translating the paths of system calls. What keeps a run in is not that but the
kernel: another user than root, no capabilities, a system call filter, and Landlock, where the kernel has it.

BASE/runs/NAME/merged    the image, made of hard links
BASE/runs/NAME/tmp       /tmp of the run
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from envkit.ground.errors import EnvironmentProblem
from envkit.ground.process import child
from envkit.run.rootless import seccomp, start
from envkit.run.rootless.cell import Inside, environment, host_mounts, lay_out, merge
from envkit.run.rootless.owners import NO_ID, NOBODY, host_id, host_shift
from envkit.run.rootless.stack import Stack, inside
from envkit.run.rootless.supervise import FAILED, KEEPS_CONTENTS, PREFIX, STOP, landlock_version
from envkit.run.rootless.user import User

PROGRAM = "proot"
INSTALL = "apt-get install proot"
ERROR_PREFIX = b"proot error: "
_SUPERVISE = Path(__file__).with_name("supervise.py")
_OWN_FILES = "/tmp"  # noqa: S108 - where proot keeps its own files
_REPORT = 9  # POSIX shells redirect only descriptors of one digit
_PROBE_S = 9.0  # `Runner.probe` promises an answer within ten seconds
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - the machine's, which the run shares
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_LINKS = {"/dev/fd": "/proc/self/fd", "/dev/stdin": "fd/0", "/dev/stdout": "fd/1", "/dev/stderr": "fd/2"}
_FOLDERS = ("/proc", "/sys", "/tmp", _SHARED_MEMORY)  # noqa: S108 - of the container
_OF_ALL_RUNS = (_OWN_FILES, _SHARED_MEMORY)  # where every run may write
# CUDA names its threads in /proc/PID/task/TID/comm and fails with error 304 if it cannot. Landlock's rules are about
# files that exist, so none can name the processes that a run will have. Of all other files below /proc, the kernel lets
# a user who is not root write `_OPEN_TO_ALL`. If a user runs envkit, a run may also change settings of that user's
# other processes, such as oom_score_adj; memory and signals stay out of reach.
_OF_PROCESSES = ("/proc",)
# Proot shows /dev/null there. Otherwise a run might wait for pressure of the machine, which is harmless; writing to
# ns_last_pid needs a capability.
_OPEN_TO_ALL = ("/proc/pressure/cpu", "/proc/pressure/io", "/proc/pressure/irq", "/proc/pressure/memory",
                "/proc/sys/kernel/ns_last_pid")  # fmt: skip
# What is needed to load proot itself.
_PROGRAMS = ("/usr", "/bin", "/lib", "/lib64", "/etc/ld.so.cache")
# Variables of the image that proot and its loader would obey. The shell in the image sets them instead.
_LATE = ("LD_", "PROOT_")
# Reports the exit code of the command: proot returns that of whichever process ended last.
_WRAPPED = (
    'while [ "$1" != -- ]; do export "$1"; shift; done; shift; '
    f'"$@" {_REPORT}>&-; code=$?; echo "$code" >&{_REPORT}; exit "$code"'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """The machine's user that a run has; None for both: the caller."""

    uid: int | None
    gid: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A run that is ready to start."""

    words: tuple[str, ...]  # proot and its options
    env: Mapping[str, str]
    late: tuple[str, ...]  # variables that the shell in the image sets, as NAME=VALUE
    outside: Outside
    writable: tuple[str, ...] | None  # None: the kernel has no Landlock
    readable: tuple[str, ...] | None
    updatable: tuple[str, ...] = ()  # folders in which the run may write to existing files, as far as its user may


@dataclass(frozen=True, slots=True)
class Traced(start.Started):
    """A run whose first process waits to be released."""

    def kill(self) -> None:
        """Kill every process of the run."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self.go, STOP)


def outside_of(user: User, *, guarded: bool) -> Outside:
    """Return the machine's user for a run. Started by root, a run never gets user or group 0 of this machine.

    Args:
        user: the user that the run sees.
        guarded: whether Landlock keeps the run from changing the contents of its image (`is_guarded`).
    """
    if os.geteuid() != 0:
        return Outside(uid=None, gid=None)
    shift = host_shift()
    if not guarded:
        # The image's files are hard links to the cached layers, which only their permissions protect from a run: this
        # user may write to none of them (`link_stack`).
        nobody = shift + NO_ID if shift else NOBODY
        return Outside(uid=nobody, gid=nobody)
    uid, gid = (host_id(number, shift) for number in (user.uid, user.gid))
    return Outside(uid=uid or NOBODY, gid=gid or NOBODY)


def prepare(folder: Path, stack: Stack, run: Inside) -> Prepared:
    """Fill a run's folder and return the proot command.

    Raises:
        EnvironmentProblem: the folder cannot be written or has a colon in its path, proot is missing, or the user's
            data cannot be protected from being written.
    """
    if ":" in str(folder):  # proot's -b separates its two paths with a colon, which cannot be escaped
        raise EnvironmentProblem(
            f"{PROGRAM} cannot use a path with a colon: {folder}",
            hint="set XDG_CACHE_HOME to a folder without a colon in its path",
        )
    landlock = landlock_version() > 0
    guarded = is_guarded(folder)
    outside = outside_of(run.user, guarded=guarded)
    if run.data is not None:
        _check_protected(run.data)
    gpus, user = run.gpus, run.user
    devices = [(f"/dev/{name}", f"/dev/{name}") for name in _DEVICES] + list(gpus.devices if gpus else ())
    devices = [(host, path) for host, path in devices if Path(host).exists()]
    mounts = host_mounts(gpus, run.data)
    device_files = {path: b"" for _, path in devices}  # proot binds the devices over these
    workdir = inside(run.workdir)
    folders = (*_FOLDERS, workdir)
    links = {**_LINKS, **(gpus.links if gpus else {})}
    files = {**run.files, **device_files}
    lay_out(folder, stack, files=files, folders=folders, links=links, mounts=mounts)
    merge(folder, stack, keep_from=None if guarded else outside.uid)
    root = folder / "merged"
    (folder / "tmp").mkdir()
    (folder / "tmp").chmod(0o1777)
    shared = [(target, target) for target in ("/proc", "/sys", _SHARED_MEMORY)]
    masks = [("/dev/null", path) for path in _OPEN_TO_ALL if gpus and Path(path).exists()]
    binds = [*devices, *mounts, (str(folder / "tmp"), "/tmp"), *shared, *masks]  # noqa: S108 - the container's
    # -v -1: without proot's warnings, which would be taken for the run's stderr. -i: the IDs that the run sees.
    words = [program(), "-v", "-1", "-r", str(root), "-w", workdir, "-i", f"{user.uid}:{user.gid}"]
    for host, path in binds:
        words += ["-b", f"{host}:{path}"]
    # An init in the image is not process 1 here, and tini then adopts orphans only if this variable is set.
    variables = {"TINI_SUBREAPER": "1", **environment(user, run.env, gpus)}
    late = {key: value for key, value in variables.items() if key.startswith(_LATE)}
    return Prepared(
        words=tuple(words),
        env={key: value for key, value in variables.items() if key not in late},
        late=tuple(f"{key}={value}" for key, value in late.items()),
        outside=outside,
        writable=(str(folder / "tmp"), _OWN_FILES, _SHARED_MEMORY, *(host for host, _ in devices))
        if landlock
        else None,
        readable=(str(root), *_PROGRAMS, "/proc", "/sys", *(host for host, _ in mounts)) if landlock else None,
        updatable=_OF_PROCESSES if gpus else (),
    )  # fmt: skip


def _check_protected(data: Path) -> None:
    """Check that a run cannot write to a folder. Without Landlock, it may write wherever its user may.

    Raises:
        EnvironmentProblem: the kernel has no Landlock that protects contents, or every run may write to the folder.
    """
    if is_guarded(data):
        return
    shared = next((path for path in _OF_ALL_RUNS if is_below(data, path)), None)
    reason = f"every run may write below {shared}" if shared else "this kernel has no Landlock for it (Linux 6.2)"
    raise EnvironmentProblem(
        f"{PROGRAM} cannot make {data} read-only: {reason}",
        hint="use another runner (--runner bubblewrap, docker or podman)" + (", or another folder" if shared else ""),
    )


@contextmanager
def started(ready: Prepared, argv: Sequence[str], *, reported: bool) -> Iterator[Traced]:
    """Start a command; on exit, all of its processes are killed.

    With `reported`, the image's shell reports the exit code of the command. Otherwise it is the code of the process
    that ended last.

    Raises:
        EnvironmentProblem: the supervising process cannot be started.
    """
    status, writer = os.pipe()
    control, go = os.pipe()

    def end(_: subprocess.Popen[bytes]) -> None:
        with contextlib.suppress(BrokenPipeError):
            os.write(go, STOP)

    with contextlib.ExitStack() as cleanup:
        for descriptor in (status, go):
            cleanup.callback(os.close, descriptor)
        with start.passed_descriptors(writer, control) as passed:
            rules = seccomp.program(platform.machine(), traced=True)
            if rules is not None:
                passed.append(start.memory_file(rules))
            task = {
                "argv": [*ready.words, *(_wrapped(ready, argv) if reported else argv)],
                "env": {**ready.env, **({} if reported else dict(entry.partition("=")[::2] for entry in ready.late))},
                "uid": ready.outside.uid,
                "gid": ready.outside.gid,
                "rules": None if rules is None else passed[-1],
                "writable": ready.writable,
                "readable": ready.readable,
                "updatable": ready.updatable,
                "control": control,
                "status": writer,
                "report": _REPORT,
            }
            process = cleanup.enter_context(
                child(
                    [sys.executable, "-I", "-S", str(_SUPERVISE), json.dumps(task)],
                    end=end,  # the supervisor kills all processes of the run and exits
                    env={},
                    cwd="/",
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    pass_fds=passed,
                    start_new_session=True,
                )
            )
        yield Traced(process, start.first_process(status, process), go)


def probe() -> None:
    """Run `true` under proot in this machine's own root.

    Raises:
        EnvironmentProblem: proot is missing, or cannot run anything here.
    """
    true = os.path.realpath(shutil.which("true") or "/bin/true")
    words = (program(), "-v", "-1", "-r", "/", "-w", "/", "-i", "1:1", "-b", "/proc")
    landlock = landlock_version() > 0
    ready = Prepared(
        words=words,
        env={},
        late=(),
        outside=outside_of(User(uid=0, gid=0, home="/"), guarded=landlock),
        writable=(_OWN_FILES,) if landlock else None,
        readable=(*_PROGRAMS, true, "/proc") if landlock else None,
    )
    with started(ready, [true], reported=False) as run:
        run.release()
        try:
            _, stderr = run.process.communicate(timeout=_PROBE_S)
        except subprocess.TimeoutExpired:
            run.kill()
            raise EnvironmentProblem(f"{PROGRAM} did not answer within {_PROBE_S:g} s", hint=None) from None
    if run.process.returncode != 0:
        raise EnvironmentProblem(f"{PROGRAM} cannot run programs here: {_own_files_problem() or _reason(stderr)}")


def failure(code: int, stderr: bytes) -> EnvironmentProblem | None:
    """Return the error of a run that was never started, None if it was started."""
    if code == FAILED and stderr.startswith(PREFIX):
        return EnvironmentProblem(f"{PROGRAM} was not started: {_reason(stderr)}", hint="envkit doctor")
    return None


def is_guarded(folder: Path) -> bool:
    """Return whether Landlock keeps every run from changing the contents of the files below a folder."""
    return landlock_version() >= KEEPS_CONTENTS and not is_shared(folder)


def is_shared(folder: Path) -> bool:
    """Return whether every run may write below a folder."""
    return any(is_below(folder, path) for path in _OF_ALL_RUNS)


def is_below(folder: Path, place: str) -> bool:
    """Return whether a folder is in another one, by whatever path: Landlock's rules are about folders, not names."""
    real = folder.resolve()
    with contextlib.suppress(OSError):
        found = Path(place).stat()
        return any(os.path.samestat(found, above.stat()) for above in (real, *real.parents) if above.exists())
    return False


def program() -> str:
    """Return the path of proot.

    Raises:
        EnvironmentProblem: it is not installed.
    """
    path = shutil.which(PROGRAM)
    if path is None:
        raise EnvironmentProblem(f"{PROGRAM} is not installed", hint=INSTALL)
    return path


def _own_files_problem() -> str | None:
    """Return why proot cannot use the folder for its own files, None if it can."""
    if not os.access(_OWN_FILES, os.W_OK):
        return f"{_OWN_FILES} cannot be written"
    if os.statvfs(_OWN_FILES).f_flag & os.ST_NOEXEC:
        return f"{_OWN_FILES} is mounted noexec, but proot starts a program from it"
    return None


def _wrapped(ready: Prepared, argv: Sequence[str]) -> tuple[str, ...]:
    return ("/bin/sh", "-c", _WRAPPED, "envkit", *ready.late, "--", *argv)


def _reason(stderr: bytes) -> str:
    text = " ".join(stderr.decode(errors="replace").split())
    # proot error: execve("/x"): No such file or directory fatal error: see `proot --help`.
    return text.partition(" fatal error:")[0].removeprefix(PREFIX.decode()).removeprefix(ERROR_PREFIX.decode())[:300]
