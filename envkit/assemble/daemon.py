"""An image into the Docker engine, streamed: nothing is written in between."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envkit.ground.errors import IntegrityError
from envkit.image.docker_archive import stream

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from envkit.ground.progress import Reporter
    from envkit.image.spec import Image


def load_into_docker(image: Image, names: Sequence[str], reporter: Reporter) -> str:
    """Load an image into the engine and give its id there.

    Raises:
        EnvironmentProblem: no engine answers, or its disk is full.
        EngineError: the engine refuses the archive.
        IntegrityError: the engine holds another image afterwards.
    """
    from envkit.build.docker import DockerEngine  # noqa: PLC0415 - the SDK takes 0.2 s to import

    reporter.step("load the image into Docker")
    engine, total = DockerEngine(), image.size

    def pieces() -> Iterator[bytes]:
        sent = 0
        for piece in stream(image, names):
            sent += len(piece)
            reporter.advance(min(sent, total), total)
            yield piece

    engine.load(pieces())
    found = engine.local(image.id)
    if found is None:
        raise IntegrityError(
            f"Docker loaded the image under another id than {image.id}",
            hint="docker images --no-trunc shows what it has",
        )
    return found.id
