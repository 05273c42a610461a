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
from envkit.run.rootless.cell import Inside, environment, host_mounts, lay_out
from envkit.run.rootless.owners import NO_ID, NOBODY, host_id, host_shift
from envkit.run.rootless.stack import Stack, inside
from envkit.run.rootless.supervise import FAILED, SAYS, STOP, landlock_version
from envkit.run.rootless.user import User

PROGRAM = "proot"
INSTALL = "apt-get install proot"
SAID_BY_PROOT = b"proot error: "
_SUPERVISE = Path(__file__).with_name("supervise.py")
_OWN_FILES = "/tmp"  # noqa: S108 - where proot keeps its files, and nothing can change that
_REPORT = 9  # a shell can redirect descriptors of one digit only
_PROBE_S = 9.0  # `Runner.probe` promises an answer within ten seconds
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - the mount that the run shares
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_LINKS = {"/dev/fd": "/proc/self/fd", "/dev/stdin": "fd/0", "/dev/stdout": "fd/1", "/dev/stderr": "fd/2"}
_FOLDERS = ("/proc", "/sys", "/tmp", _SHARED_MEMORY)  # noqa: S108 - of the container
# What proot itself is loaded from.
_PROGRAMS = ("/usr", "/bin", "/lib", "/lib64", "/etc/ld.so.cache")
# The loader of proot must not read what the image sets for its own; the shell in the image sets these.
_LATE = ("LD_", "PROOT_")
# Tells the exit code of the command itself: proot's own is that of whichever process ended last.
_WRAPPED = (
    'while [ "$1" != -- ]; do export "$1"; shift; done; shift; '
    f'"$@" {_REPORT}>&-; code=$?; echo "$code" >&{_REPORT}; exit "$code"'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """The machine's user that a run is; None for both: the one who runs envkit."""

    uid: int | None
    gid: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A run that is ready to be started."""

    words: tuple[str, ...]  # proot and its options
    env: Mapping[str, str]
    late: tuple[str, ...]  # NAME=VALUE that the shell in the image sets
    outside: Outside
    writable: tuple[str, ...] | None  # None: the kernel has no Landlock
    readable: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class Traced(start.Started):
    """A run whose first process waits to be let go."""

    def kill(self) -> None:
        """End every process of the run."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self.go, STOP)


def outside_of(user: User) -> Outside:
    """Return whom a run is outside: as root never user or group 0 of this machine."""
    if os.geteuid() != 0:
        return Outside(uid=None, gid=None)
    shift = host_shift()
    if not landlock_version():
        # The image's files are those of the cached layers, and nothing but their owners keeps a run from changing them.
        nobody = shift + NO_ID if shift else NOBODY
        return Outside(uid=nobody, gid=nobody)
    uid, gid = (host_id(number, shift) for number in (user.uid, user.gid))
    return Outside(uid=uid or NOBODY, gid=gid or NOBODY)


def prepare(folder: Path, stack: Stack, run: Inside) -> Prepared:
    """Fill a run's folder and return how proot is called.

    Raises:
        EnvironmentProblem: the folder cannot be written or named to proot, proot is missing, or nothing here keeps
            a run from writing to the user's data.
    """
    if ":" in str(folder):  # it stands between the two paths of a binding, and nothing escapes it
        raise EnvironmentProblem(
            f"{PROGRAM} takes no path with a colon: {folder}", hint="set XDG_CACHE_HOME to a folder without one"
        )
    landlock = landlock_version() > 0
    if run.data is not None:
        _check_protected(run.data, landlock=landlock)
    gpus, user = run.gpus, run.user
    devices = [(f"/dev/{name}", f"/dev/{name}") for name in _DEVICES] + list(gpus.devices if gpus else ())
    devices = [(host, path) for host, path in devices if Path(host).exists()]
    mounts = host_mounts(gpus, run.data)
    spots = {path: b"" for _, path in devices}
    workdir = inside(run.workdir)
    folders = (*_FOLDERS, workdir)
    links = {**_LINKS, **(gpus.links if gpus else {})}
    lay_out(folder, stack, files={**run.files, **spots}, folders=folders, links=links, mounts=mounts, overlay=False)
    root = folder / "merged"
    outside = outside_of(user)
    (folder / "tmp").mkdir()
    (folder / "tmp").chmod(0o1777)
    shared = [(target, target) for target in ("/proc", "/sys", _SHARED_MEMORY)]
    binds = [*devices, *mounts, (str(folder / "tmp"), "/tmp"), *shared]  # noqa: S108 - the container's
    words = [program(), "-v", "-1", "-r", str(root), "-w", workdir, "-i", f"{user.uid}:{user.gid}"]
    for host, path in binds:
        words += ["-b", f"{host}:{path}"]
    # An init in the image is not process 1 here, and tini adopts orphans only when it is told to.
    given = {"TINI_SUBREAPER": "1", **environment(user, run.env, gpus)}
    late = {key: value for key, value in given.items() if key.startswith(_LATE)}
    return Prepared(
        words=tuple(words),
        env={key: value for key, value in given.items() if key not in late},
        late=tuple(f"{key}={value}" for key, value in late.items()),
        outside=outside,
        writable=(str(folder / "tmp"), _OWN_FILES, _SHARED_MEMORY, *(host for host, _ in devices))
        if landlock
        else None,
        readable=(str(root), *_PROGRAMS, "/proc", "/sys", *(host for host, _ in mounts)) if landlock else None,
    )  # fmt: skip


def _check_protected(data: Path, *, landlock: bool) -> None:
    """Refuse a folder that a run could write to: its user may write wherever anyone may, but for Landlock.

    Raises:
        EnvironmentProblem: the kernel has no Landlock, or Landlock has to let the run write there.
    """
    shared = [path for path in (_OWN_FILES, _SHARED_MEMORY) if data.resolve().is_relative_to(Path(path).resolve())]
    if landlock and not shared:
        return
    why = f"every run may write below {shared[0]}" if shared else "this kernel has no Landlock (Linux 5.19)"
    raise EnvironmentProblem(
        f"{PROGRAM} cannot make {data} read-only: {why}",
        hint="use another runner (--runner bubblewrap, docker or podman)" + (", or another folder" if shared else ""),
    )


@contextmanager
def started(ready: Prepared, argv: Sequence[str], *, reported: bool) -> Iterator[Traced]:
    """Start a command; leaving ends every process of it. `reported`: the image's shell tells its exit code.

    Without that, it is the code of the process that ended last.

    Raises:
        EnvironmentProblem: Python cannot be started again.
    """
    status, writer = os.pipe()
    control, go = os.pipe()

    def end(_: subprocess.Popen[bytes]) -> None:
        with contextlib.suppress(BrokenPipeError):
            os.write(go, STOP)

    with contextlib.ExitStack() as kept:
        for descriptor in (status, go):
            kept.callback(os.close, descriptor)
        with start.handed_over(writer, control) as passed:
            rules = seccomp.program(platform.machine(), traced=True)
            if rules is not None:
                passed.append(start.memory_file(rules))
            asked = {
                "argv": [*ready.words, *(_wrapped(ready, argv) if reported else argv)],
                "env": {**ready.env, **({} if reported else dict(entry.partition("=")[::2] for entry in ready.late))},
                "uid": ready.outside.uid,
                "gid": ready.outside.gid,
                "rules": None if rules is None else passed[-1],
                "writable": ready.writable,
                "readable": ready.readable,
                "control": control,
                "status": writer,
                "report": _REPORT,
            }
            process = kept.enter_context(
                child(
                    [sys.executable, "-I", "-S", str(_SUPERVISE), json.dumps(asked)],
                    end=end,  # the supervisor ends all processes of the run, and then itself
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
    """Run `true` in this machine's own root as a run would be.

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
        outside=outside_of(User(uid=0, gid=0, home="/")),
        writable=(_OWN_FILES,) if landlock else None,
        readable=(*_PROGRAMS, true, "/proc") if landlock else None,
    )
    with started(ready, [true], reported=False) as run:
        run.release()
        try:
            _, said = run.process.communicate(timeout=_PROBE_S)
        except subprocess.TimeoutExpired:
            run.kill()
            raise EnvironmentProblem(f"{PROGRAM} did not answer within {_PROBE_S:g} s", hint=None) from None
    if run.process.returncode != 0:
        raise EnvironmentProblem(f"{PROGRAM} cannot run anything here: {_own_files() or _reason(said)}")


def failure(code: int, stderr: bytes) -> EnvironmentProblem | None:
    """Return the error of a run that never started, None for one that did."""
    if code == FAILED and stderr.startswith(SAYS):
        return EnvironmentProblem(f"{PROGRAM} was not started: {_reason(stderr)}", hint="envkit doctor")
    return None


def is_among_own_files(folder: Path) -> bool:
    """Whether a folder is where proot keeps its own files, so that a run may write there."""
    return Path(folder).resolve().is_relative_to(Path(_OWN_FILES).resolve())


def program() -> str:
    """Return the path of proot.

    Raises:
        EnvironmentProblem: it is not installed.
    """
    path = shutil.which(PROGRAM)
    if path is None:
        raise EnvironmentProblem(f"{PROGRAM} is not installed", hint=INSTALL)
    return path


def _own_files() -> str | None:
    """Why proot cannot keep its own files, None where it can."""
    if not os.access(_OWN_FILES, os.W_OK):
        return f"{_OWN_FILES} cannot be written"
    if os.statvfs(_OWN_FILES).f_flag & os.ST_NOEXEC:
        return f"{_OWN_FILES} is mounted noexec, and proot starts a program of its own there"
    return None


def _wrapped(ready: Prepared, argv: Sequence[str]) -> tuple[str, ...]:
    return ("/bin/sh", "-c", _WRAPPED, "envkit", *ready.late, "--", *argv)


def _reason(said: bytes) -> str:
    text = " ".join(said.decode(errors="replace").split())
    return text.partition(" fatal error:")[0].removeprefix(SAYS.decode()).removeprefix(SAID_BY_PROOT.decode())[:300]
