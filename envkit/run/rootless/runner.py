"""What the runners of images in files have in common: they open the image, unpack its layers and run in them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from envkit.ground.paths import cache_dir
from envkit.ground.progress import Silent
from envkit.image.opening import described
from envkit.run import cage
from envkit.run.cage import Command
from envkit.run.rootless.store import ImageStore

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from envkit.ground.progress import Reporter
    from envkit.image.spec import Image
    from envkit.run.model import RunLimits, RunResult
    from envkit.run.rootless.stack import Stack


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

    def identify(self, image: str) -> str:
        """Return an image's ID. Only its configuration is read or downloaded.

        Raises:
            EngineError: the image does not exist.
        """
        return self._store.open(image).id

    def inspect(self, image: str) -> Mapping[str, Any]:
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
        image: str,
        argv: Sequence[str],
        files: Mapping[str, bytes],
        *,
        gpus: str | None,
        limits: RunLimits,
        reporter: Reporter,
        entrypoint: bool = False,
    ) -> RunResult:
        """Run a command; see `Runner`."""
        cage.folders(files)  # the same paths are refused on every runner
        opened_image = self._store.open(image)
        stack, _ = self._store.stack(opened_image, reporter)
        command = Command(
            image=opened_image.id, argv=tuple(argv), files=files, gpus=gpus, limits=limits, entrypoint=entrypoint
        )
        return cage.run_first(
            command, lambda words, is_shell: self._run(opened_image, stack, command, words, reporter, reported=is_shell)
        )

    @abstractmethod
    def _run(
        self, image: Image, stack: Stack, command: Command, argv: Sequence[str], reporter: Reporter, *, reported: bool
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
