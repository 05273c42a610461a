"""Run images from files with proot, where namespaces are not available, as in most containers."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from envkit.ground import store
from envkit.ground.cache import run_folder
from envkit.ground.errors import EnvironmentProblem, EnvkitError
from envkit.image.opening import described
from envkit.run import containers
from envkit.run.containers import Command
from envkit.run.model import Isolation, RunLimits, RunResult
from envkit.run.pipes import collect
from envkit.run.rootless import cgroups, owners, proot, start
from envkit.run.rootless.host_gpus import host_gpus
from envkit.run.rootless.runner import FileRunner, SessionWords, has_shell
from envkit.run.rootless.sandbox import Inside
from envkit.run.rootless.user import find_user

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from envkit.ground.progress import Reporter
    from envkit.image.spec import Image
    from envkit.run.rootless.layered_tree import LayeredTree
    from envkit.run.rootless.terminal import Terminal
    from envkit.run.session import Mount, Session

_SHARED = ("network", "processes", "shared-memory")
# Where a run's folder may be when the run cannot use the cache (`_base`).
_FOLDERS = ("/var/tmp", "/tmp", "/srv", "/opt")  # noqa: S108 - a folder of this user's own is created there
_OTHERS_ENTER = 0o001
_SHM_PREFIX = "envkit-"


class ProotRunner(FileRunner):
    """Runs commands without any namespace. An entry point is not process 1.

    A run shares network, process IDs and /dev/shm with its environment. If root runs envkit, the run is another user.
    If the kernel has Landlock (Linux 5.19), a run can write only to /tmp and /dev/shm; before Linux 6.2, it can still
    truncate files.
    """

    name = "proot"

    @property
    def isolation(self) -> Isolation:
        """Weak isolation; what is missing depends on the kernel and on whether control groups can be created."""
        # The size does not matter: only whether a group with a memory limit can be created.
        limited = cgroups.make(RunLimits(memory_mb=64))
        limited.remove()
        missing = [*_SHARED]
        missing += [] if self._has_read_only_root() else ["read-only-root"]
        missing += ["memory-limit"] if "memory" in limited.unlimited else []
        return Isolation(level="weak", missing=tuple(missing))

    def probe(self) -> str | None:
        """Return None if proot can run programs here, else the reason."""
        try:
            proot.probe()
        except EnvkitError as error:
            return error.message
        return None

    def shortfalls(self, session: Session) -> tuple[str, ...]:
        """Return in words what a session lacks here that other runners give it."""
        found = ["weak isolation: network and processes of this machine"]
        is_root = os.geteuid() == 0
        if is_root and not session.known:
            found.append("files of another user, because the image was not built here")
        guarded = proot.is_guarded(self._base(), proot.writable_of(session.mounts))
        # What root unpacks belongs to users that no account has.
        if not guarded and not (is_root and owners.host_shift()):
            found.append("its root is a copy that it can change")
        on_disk = proot.shared_memory(session.shm_mb) is None
        return (*found, f"shared memory {'on disk' if on_disk else 'without a limit'}")

    def unprotected(self, session: Session) -> tuple[Mount, ...]:
        """Return the mounts for reading that nothing keeps the session from writing to."""
        writable = proot.writable_of(session.mounts)
        return tuple(one for one in session.mounts if one.read_only and not proot.is_guarded(one.source, writable))

    def _attach(
        self, session: Session, stack: LayeredTree, inside: Inside, words: SessionWords, terminal: Terminal | None
    ) -> int:
        name = socket.gethostname()  # the machine's, because it has the machine's name, too
        env = {"HOSTNAME": name, **inside.env}
        inside = replace(inside, env=env, files={**inside.files, "/etc/hostname": f"{name}\n".encode()})
        reported = has_shell(stack)
        with self._folder() as folder, _shm_folder(folder, session.shm_mb) as shm:
            ready = proot.prepare(folder, stack, inside, proot.Own(shm=shm, known=session.known))
            streams = start.session_streams(terminal)
            with proot.started(ready, words.all, reported=reported, streams=streams) as run:
                return start.follow(run, terminal, first=session.has_init)

    def _run(
        self,
        image: Image,
        stack: LayeredTree,
        command: Command,
        argv: Sequence[str],
        reporter: Reporter,
        *,
        reported: bool,
    ) -> RunResult | None:
        facts, limits = described(image, 0), command.limits
        user = find_user(limits.user or facts["user"], stack)
        with self._folder() as folder:
            inside = Inside(
                files=command.files,
                user=user,
                env=facts["env"],
                workdir=facts["workdir"],
                gpus=host_gpus(command.gpus, stack) if command.gpus else None,
                data=limits.data,
            )
            ready = proot.prepare(folder, stack, inside)
            group = cgroups.make(containers.bounded(limits, containers.memory_here()))
            words = (*facts["entrypoint"], *argv) if command.entrypoint else argv
            output = containers.Output(limits)
            try:
                with proot.started(ready, words, reported=reported) as run:
                    if not run.first:
                        raise start.failure(run.process.communicate()[1], f"the run in {command.image[:19]}")
                    self._note_unlimited(start.limit(run, group, user, limits), reporter)
                    began = time.monotonic()
                    run.release()
                    over = collect(run.process, output, reporter, deadline=start.deadline(limits), kill=run.kill)
                duration = time.monotonic() - began
                oom_killed = group.out_of_memory()
            finally:
                group.remove()
        code = run.process.returncode
        code = containers.exit_code(code, duration, limits, output, over=over, image=command.image[:19])
        failure = proot.failure(code, bytes(output.stderr))
        if failure is not None:
            raise failure
        # 1 is proot's code if it cannot start the program, and may be the command's own, so the message decides.
        if code == 1 and not output.stdout and output.stderr.startswith(proot.ERROR_PREFIX):
            return None
        return output.result(code, duration, image=command.image, oom_killed=oom_killed)

    def _has_read_only_root(self) -> bool:
        """Return whether a run cannot change its image."""
        if os.geteuid() == 0:  # by Landlock, else by a user who may write to none of the image's files
            return True
        with contextlib.suppress(OSError, EnvkitError):
            return proot.is_guarded(self._base())
        return False

    @contextlib.contextmanager
    def _folder(self) -> Iterator[Path]:
        """Make a folder for one run that the run's user may enter."""
        with run_folder(self._base()) as folder:
            if os.geteuid() == 0:
                for path in (folder.parent.parent, folder.parent, folder):
                    path.chmod(0o711)
            yield folder

    def _base(self) -> Path:
        """Return the folder of all runs: the cache, else a folder of this user, on the same file system if possible.

        For root, other users have to be able to enter it. A folder where every run may write is used only if there is
        no other on its file system.

        Raises:
            EnvironmentProblem: root has no such folder.
        """
        self._cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        root, device = os.geteuid() == 0, self._cache.stat().st_dev
        entered = not root or all(parent.stat().st_mode & _OTHERS_ENTER for parent in self._cache.parents)
        others = [Path(path) for path in _FOLDERS if Path(path).is_dir() and os.access(path, os.W_OK)]
        # The run's tree is made of hard links to the cache. On another file system every file is copied.
        if entered:
            others = [path for path in others if path.stat().st_dev == device]
        places = [self._cache, *others] if entered else others
        for place in sorted(places, key=lambda path: (path.stat().st_dev != device, proot.is_shared(path))):
            if place == self._cache:
                return place
            base = place / f"envkit-{os.geteuid()}"
            with contextlib.suppress(OSError):
                base.mkdir(mode=0o711, exist_ok=True)
                # Other users may write there too: the folder or a link at this path may be theirs.
                if not base.is_symlink() and base.stat().st_uid == os.geteuid():
                    return base
        raise EnvironmentProblem(
            f"the user of a run cannot enter {self._cache}, and there is no other usable folder",
            hint="set XDG_CACHE_HOME to a folder whose parents everyone may enter, such as /var/cache",
        )


@contextlib.contextmanager
def _shm_folder(run: Path, shm_mb: int) -> Iterator[Path]:
    """Make the folder that becomes /dev/shm of a session, in the machine's if that is large enough.

    By default an engine gives a container 64 MiB, with which the workers of a DataLoader end by SIGBUS. On disk they
    are slower.
    """
    above = proot.shared_memory(shm_mb)
    with contextlib.ExitStack() as stack:
        folder = run
        if above is not None:
            store.sweep(above.glob(f"{_SHM_PREFIX}*"))
            folder = stack.enter_context(store.fresh_folder(above, prefix=_SHM_PREFIX))
            folder.chmod(0o711)
        # In a folder of this user's, because a killed run's is found by its owner.
        (folder / "shm").mkdir(mode=0o700)
        yield folder / "shm"
