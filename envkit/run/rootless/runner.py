"""What the runners of images in files have in common: they open the image, unpack its layers and run in them."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envkit.ground.paths import cache_dir
from envkit.ground.progress import Silent
from envkit.image.document import declared_volumes
from envkit.image.opening import described
from envkit.run import containers
from envkit.run.containers import Command
from envkit.run.rootless.host_gpus import host_gpus
from envkit.run.rootless.sandbox import Inside
from envkit.run.rootless.store import ImageStore
from envkit.run.rootless.terminal import new_terminal
from envkit.run.rootless.user import find_user

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from envkit.ground.progress import Reporter
    from envkit.image.name import ImageName
    from envkit.image.spec import Image
    from envkit.run.model import RunLimits, RunResult
    from envkit.run.rootless.layered_tree import LayeredTree
    from envkit.run.rootless.terminal import Terminal
    from envkit.run.session import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionWords:
    """The command of a session."""

    entrypoint: tuple[str, ...]
    argv: tuple[str, ...]

    @property
    def all(self) -> tuple[str, ...]:
        """The words to execute."""
        return (*self.entrypoint, *self.argv)


class FileRunner(ABC):
    """Runs commands in `oci:DIR`, `docker-archive:FILE` and `registry:HOST/NAME:TAG`.

    Each layer is unpacked once, below XDG_CACHE_HOME/envkit.
    """

    name: str

    def __init__(self, reporter: Reporter | None = None, *, ca_bundle: str | None = None) -> None:
        self._reporter = reporter or Silent()
        self._cache = cache_dir()
        self._store = ImageStore(self._cache, ca_bundle=ca_bundle)
        self._noted: set[str] = set()

    def identify(self, image: ImageName) -> str:
        """Return an image's ID. Only its configuration is read or downloaded.

        Raises:
            EngineError: the image does not exist.
        """
        return self._store.open(image).id

    def inspect(self, image: ImageName) -> Mapping[str, Any]:
        """Return an image's configuration; see `Runner`. This unpacks the layers; the size is that of their tars.

        Raises:
            EngineError: the image does not exist.
            IntegrityError: a blob is not what its digest says.
        """
        opened_image = self._store.open(image)
        _, size = self._store.stack(opened_image, self._reporter)
        return described(opened_image, size)

    def run(
        self,
        image: ImageName,
        argv: Sequence[str],
        files: Mapping[str, bytes],
        *,
        gpus: str | None,
        limits: RunLimits,
        reporter: Reporter,
        entrypoint: bool = False,
    ) -> RunResult:
        """Run a command; see `Runner`."""
        containers.folders(files)  # the same paths are refused on every runner
        opened_image = self._store.open(image)
        stack, _ = self._store.stack(opened_image, reporter)
        command = Command(
            image=opened_image.id, argv=tuple(argv), files=files, gpus=gpus, limits=limits, entrypoint=entrypoint
        )
        return containers.run_first(
            command, lambda words, is_shell: self._run(opened_image, stack, command, words, reporter, reported=is_shell)
        )

    def attach(self, session: Session, reporter: Reporter) -> int:
        """Run a session's command with this process's own streams, and return its exit code (128 + n for signal n).

        Raises:
            EngineError: the image does not exist, or has no such user.
            EnvironmentProblem: the container cannot be made, or this machine has no such GPU.
        """
        image = self._store.open(session.image)
        stack, _ = self._store.stack(image, reporter)
        facts = described(image, 0)
        inside = Inside(
            files=_network_files() if session.network == "host" else {},
            user=find_user(session.user or facts["user"], stack),
            env={**facts["env"], **dict(session.env)},
            workdir=session.workdir or facts["workdir"],
            gpus=host_gpus(session.gpus, stack) if session.gpus else None,
            mounts=session.mounts,
            volumes=declared_volumes(image.settings),
            network=session.network != "host",
            terminal=session.terminal,
        )
        words = SessionWords(entrypoint=facts["entrypoint"], argv=tuple(session.argv or facts["cmd"]))
        with contextlib.ExitStack() as open_terminal:
            terminal = open_terminal.enter_context(new_terminal()) if session.terminal else None
            return self._attach(session, stack, inside, words, terminal)

    @abstractmethod
    def _attach(
        self, session: Session, stack: LayeredTree, inside: Inside, words: SessionWords, terminal: Terminal | None
    ) -> int:
        """Run a session's command to its end.

        Args:
            session: what to run.
            stack: the unpacked layers of its image.
            inside: the contents and settings of the container.
            words: the command.
            terminal: the container's own terminal, if it has one.
        """

    @abstractmethod
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
        """Run `argv` once; return None when the image has no such program.

        Args:
            image: the opened image.
            stack: its unpacked layers.
            command: what was asked for; its `argv` is without the shell that `argv` may have.
            argv: the words to run.
            reporter: receives output and notes.
            reported: whether `argv` is a shell, which itself reports that the program cannot be started.
        """

    def _note_unlimited(self, unlimited: Sequence[str], reporter: Reporter) -> None:
        """Report each resource that cannot be limited here, once."""
        new = [name for name in unlimited if name not in self._noted]
        self._noted.update(new)
        if new:
            reporter.note(f"{self.name} cannot limit {', '.join(new)} here: no control group can be created")


def has_shell(stack: LayeredTree) -> bool:
    """Return whether an image has a shell."""
    return any(stack.find(path) is not None for path in ("bin/sh", "usr/bin/sh"))


def _network_files() -> dict[str, bytes]:
    """Return this machine's files for name resolution, for a container on the host network."""
    files: dict[str, bytes] = {}
    for path in ("/etc/resolv.conf", "/etc/hosts"):
        with contextlib.suppress(OSError):
            files[path] = Path(path).read_bytes()
    return files
