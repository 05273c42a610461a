"""One run through proot: its folder, its arguments, and how it is started and ended. No namespace is needed.

Proot shows a folder as the root by translating the paths of system calls. What keeps a run in is not that but the
kernel: another user than root, no capabilities, a system call filter, and Landlock, where the kernel has it.

A session is a run of the user's own: in an image that was built here or is attested, root stays root, without
capabilities, so that what it writes into a mounted folder belongs to the caller.

BASE/runs/NAME/merged    the image, made of hard links
BASE/runs/NAME/tmp       /tmp of the run
BASE/runs/NAME/shm       /dev/shm of a session, if the machine's is too small
BASE/runs/NAME/volume0   the image's volumes, of a session
/dev/shm/envkit-NAME/shm    /dev/shm of a session
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
from envkit.run.rootless.layered_tree import LayeredTree, inside
from envkit.run.rootless.owners import NO_ID, NOBODY, host_id, host_shift
from envkit.run.rootless.sandbox import Inside, environment, host_mounts, lay_out, merge
from envkit.run.rootless.supervise import FAILED, KEEPS_CONTENTS, PREFIX, STOP, landlock_version
from envkit.run.rootless.user import User
from envkit.run.session import Mount

PROGRAM = "proot"
INSTALL = "apt-get install proot"
ERROR_PREFIX = b"proot error: "
_SUPERVISE = Path(__file__).with_name("supervise.py")
_OWN_FILES = "/tmp"  # noqa: S108 - where proot keeps its own files
_REPORT = 9  # POSIX shells redirect only descriptors of one digit
_PROBE_S = 9.0  # `Runner.probe` promises an answer within ten seconds
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - the machine's, which a run shares
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_TERMINALS = ("/dev/pts", "/dev/ptmx")  # for programs that open terminals, such as tmux or Jupyter
_OTHERS_ENTER = 0o001
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
# Reports the exit code of the command: proot returns that of whichever process ended last. Ctrl-C at a terminal is for
# the command; without the trap, the shell would end before it reports.
_WRAPPED = (
    'trap : INT QUIT; while [ "$1" != -- ]; do export "$1"; shift; done; shift; '
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

    def send(self, number: int, *, first: bool) -> None:
        """Send a signal to the command, which is below the shell that reports its exit code, if there is one.

        `first` makes no difference: nothing is process 1 here.
        """
        del first
        shell = start.children(self.first)
        for pid in [*(below for above in shell for below in start.children(above))] or shell or [self.first]:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)


@dataclass(frozen=True, slots=True, kw_only=True)
class Own:
    """What a session has of its own."""

    shm: Path  # an empty folder that becomes /dev/shm
    known: bool  # the image was built here or is attested


def outside_of(user: User, *, guarded: bool, known: bool = False) -> Outside:
    """Return the machine's user for a run. Started by root, it gets user or group 0 of this machine only if `known`.

    Args:
        user: the user that the run sees.
        guarded: whether Landlock keeps the run from changing the contents of its image (`is_guarded`).
        known: whether it is a session in an image that was built here or is attested.
    """
    if os.geteuid() != 0:
        return Outside(uid=None, gid=None)
    if known:
        # As it is: what the session writes into a mounted folder belongs to this user.
        return Outside(uid=user.uid, gid=user.gid)
    shift = host_shift()
    if not guarded:
        # The image's files are hard links to the cached layers, which only their permissions protect from a run: this
        # user may write to none of them (`link_layers`).
        nobody = shift + NO_ID if shift else NOBODY
        return Outside(uid=nobody, gid=nobody)
    uid, gid = (host_id(number, shift) for number in (user.uid, user.gid))
    return Outside(uid=uid or NOBODY, gid=gid or NOBODY)


def prepare(folder: Path, stack: LayeredTree, run: Inside, own: Own | None = None) -> Prepared:
    """Fill a run's folder and return the proot command; `own` makes the run a session.

    Raises:
        EnvironmentProblem: the folder cannot be written or has a colon in its path, proot is missing, the user's data
            cannot be protected from being written, or the run's user cannot enter a mounted folder.
    """
    if ":" in str(folder):  # proot's -b separates its two paths with a colon, which cannot be escaped
        raise EnvironmentProblem(
            f"{PROGRAM} cannot use a path with a colon: {folder}",
            hint="set XDG_CACHE_HOME to a folder without a colon in its path",
        )
    landlock = landlock_version() > 0
    open_to_run = _OF_ALL_RUNS if own is None else writable_of(run.mounts)
    guarded = is_guarded(folder, open_to_run)
    outside = outside_of(run.user, guarded=guarded, known=own is not None and own.known)
    if run.data is not None:
        _check_protected(run.data)
    for mount in run.mounts:
        _check_entered(mount.source, outside, known=own is not None and own.known)
        if mount.read_only and not (own is not None and own.known):
            _check_protected(mount.source, open_to_run)
    gpus, user = run.gpus, run.user
    devices = [(f"/dev/{name}", f"/dev/{name}") for name in _DEVICES] + list(gpus.devices if gpus else ())
    # An image that is not known could write to the terminals of the caller's other programs.
    devices += [(path, path) for path in _TERMINALS] if own is not None and own.known else []
    devices = [(host, path) for host, path in devices if Path(host).exists()]
    mounts = host_mounts(gpus, run.data)
    # Proot binds the devices over these.
    device_folders = [path for host, path in devices if Path(host).is_dir()]
    device_files = {path: b"" for _, path in devices if path not in device_folders}
    workdir = inside(run.workdir)
    folders = (*_FOLDERS, workdir, *device_folders, *run.volumes, *(mount.target for mount in run.mounts))
    links = {**_LINKS, **(gpus.links if gpus else {})}
    files = {**run.files, **device_files}
    lay_out(folder, stack, files=files, folders=folders, links=links, mounts=mounts)
    merge(folder, stack, keep_from=_kept_from(outside, guarded=guarded, session=own is not None))
    root = folder / "merged"
    # For any user, because the image's USER may be any.
    volumes = [(_shared_folder(folder / f"volume{number}"), inside(path)) for number, path in enumerate(run.volumes)]
    tmp = _shared_folder(folder / "tmp")
    shared = [(target, target) for target in ("/proc", "/sys")]
    shared.append((_SHARED_MEMORY if own is None else str(own.shm), _SHARED_MEMORY))
    masks = [("/dev/null", path) for path in _OPEN_TO_ALL if gpus and Path(path).exists()]
    binds = [*devices, *mounts, (tmp, "/tmp"), *shared, *masks, *volumes]  # noqa: S108 - the container's
    binds += [(str(mount.source), inside(mount.target)) for mount in run.mounts]
    # -v -1: without proot's warnings, which would be taken for the run's stderr. -i: the IDs that the run sees.
    words = [program(), "-v", "-1", "-r", str(root), "-w", workdir, "-i", f"{user.uid}:{user.gid}"]
    for host, path in binds:
        words += ["-b", f"{host}:{path}"]
    # An init in the image is not process 1 here, and tini then adopts orphans only if this variable is set.
    variables = {"TINI_SUBREAPER": "1", **environment(user, run.env, gpus)}
    late = {key: value for key, value in variables.items() if key.startswith(_LATE)}
    writable = [tmp, *open_to_run, *(host for host, _ in (*volumes, *devices))]
    if own is not None:
        writable.append(str(own.shm))
        _give(own.shm, outside)
    readable = [str(root), *_PROGRAMS, "/proc", "/sys", *(host for host, _ in mounts)]
    readable += [str(mount.source) for mount in run.mounts if mount.read_only]
    return Prepared(
        words=tuple(words),
        env={key: value for key, value in variables.items() if key not in late},
        late=tuple(f"{key}={value}" for key, value in late.items()),
        outside=outside,
        writable=tuple(writable) if landlock else None,
        readable=tuple(readable) if landlock else None,
        updatable=_OF_PROCESSES if gpus else (),
    )


def writable_of(mounts: Sequence[Mount]) -> tuple[str, ...]:
    """Return the folders of this machine that a session with these mounts may write to, besides its own."""
    return (_OWN_FILES, *(str(mount.source) for mount in mounts if not mount.read_only))


def shared_memory(shm_mb: int) -> Path | None:
    """Return where a session's /dev/shm of this size is made, None if the machine's is missing or too small."""
    with contextlib.suppress(OSError):
        space = os.statvfs(_SHARED_MEMORY)
        if os.access(_SHARED_MEMORY, os.W_OK) and space.f_bavail * space.f_frsize >= shm_mb << 20:
            return Path(_SHARED_MEMORY)
    return None


def _kept_from(outside: Outside, *, guarded: bool, session: bool) -> int | None:
    """Return the user for whom `merge` copies the files that it could write, None if none has to be copied.

    A session may change any file that its user may change, such as by `pip install`. As a hard link, that would be the
    cached layer's. A run for a verification of the caller's own image is trusted not to.
    """
    if guarded:
        return None
    return os.geteuid() if outside.uid is None and session else outside.uid


def _shared_folder(folder: Path) -> str:
    """Make a folder in which every user may create files."""
    folder.mkdir()
    folder.chmod(0o1777)
    return str(folder)


def _give(folder: Path, outside: Outside) -> None:
    if outside.uid is not None and outside.gid is not None:
        os.chown(folder, outside.uid, outside.gid)


def _check_entered(folder: Path, outside: Outside, *, known: bool) -> None:
    """Check that the run's user may enter a folder: started by root, it has no capability to pass permissions.

    Raises:
        EnvironmentProblem: it may not.
    """
    if outside.uid is None:
        return
    for path in (*reversed(folder.parents), folder):
        status = path.stat()
        shift = 6 if status.st_uid == outside.uid else 3 if status.st_gid == outside.gid else 0
        if not (status.st_mode >> shift) & _OTHERS_ENTER:
            raise EnvironmentProblem(
                f"user {outside.uid} cannot enter {path}, which belongs to user {status.st_uid}: a session of "
                f"{PROGRAM} has no capabilities",
                hint=f"--user {status.st_uid}:{status.st_gid}, or chmod o+x {path}"
                if known
                else "run envkit as a user other than root: root runs an image that was not built here as another user",
            )


def _check_protected(data: Path, open_to_run: Sequence[str] = _OF_ALL_RUNS) -> None:
    """Check that a run cannot write to a folder. Without Landlock, it may write wherever its user may.

    Raises:
        EnvironmentProblem: the kernel has no Landlock that protects contents, or the run may write to the folder.
    """
    if is_guarded(data, open_to_run):
        return
    shared = next((path for path in open_to_run if is_below(data, path)), None)
    reason = f"every run may write below {shared}" if shared else "this kernel has no Landlock for it (Linux 6.2)"
    raise EnvironmentProblem(
        f"{PROGRAM} cannot make {data} read-only: {reason}",
        hint="use another runner (--runner bubblewrap, docker or podman)" + (", or another folder" if shared else ""),
    )


@contextmanager
def started(
    ready: Prepared, argv: Sequence[str], *, reported: bool, streams: start.Streams = start.CAPTURED
) -> Iterator[Traced]:
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
                "terminal": streams.terminal,
            }
            process = cleanup.enter_context(
                child(
                    [sys.executable, "-I", "-S", str(_SUPERVISE), json.dumps(task)],
                    end=end,  # the supervisor kills all processes of the run and exits
                    env={},
                    cwd="/",
                    stdin=streams.stdin,
                    stdout=streams.stdout,
                    stderr=streams.stderr,
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


def is_guarded(folder: Path, open_to_run: Sequence[str] | None = None) -> bool:
    """Return whether Landlock keeps a run from changing the contents of the files below a folder.

    `open_to_run`: folders in which this run may write; None: those in which every run may.
    """
    places = _OF_ALL_RUNS if open_to_run is None else open_to_run
    return landlock_version() >= KEEPS_CONTENTS and not any(is_below(folder, path) for path in places)


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
