"""Outputs of a build: `oci:DIR`, `docker-archive:FILE`, `sif:FILE`, `docker-daemon` or `registry:REFERENCE`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envkit.assemble import sif
from envkit.assemble.compress import GZIP
from envkit.ground.errors import IntegrityError, UsageError
from envkit.image.archive import stream, write_archive
from envkit.image.layout import write_layout
from envkit.image.name import (
    ARCHIVE,
    DAEMON,
    InArchive,
    InEngine,
    InLayout,
    InRegistry,
    InSif,
    Reference,
    parse_reference,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from envkit.engines.model import BuildOptions
    from envkit.ground.progress import Reporter
    from envkit.image.spec import Image


def check_output(options: BuildOptions) -> None:
    """Check all options about the output.

    Raises:
        UsageError: the output is invalid, or an option for registries is given with another kind of output.
        EnvironmentProblem: the program that writes this kind is missing.
    """
    output = options.target
    match output:
        case InRegistry(reference=reference):
            repositories(reference, options.mount_from)
            return
        case InArchive() | InEngine() if options.compression != GZIP:
            kind = ARCHIVE if isinstance(output, InArchive) else DAEMON
            raise UsageError(
                f"--compression {options.compression} does not work with {kind}: Docker before 25 cannot read zstd",
                hint="use --output oci:DIR or registry:HOST/NAME:TAG, or omit --compression",
            )
        case InSif():
            sif.client()
        case _:
            pass
    for flag, value in (("--replace-tag", options.replace_tag), ("--mount-from", options.mount_from)):
        if value:
            raise UsageError(f"{flag} requires an output in a registry", hint="--output registry:HOST/NAME:TAG")


def repositories(reference: Reference, typed: Sequence[str]) -> tuple[str, ...]:
    """Return the repositories of `--mount-from`: `team/base`, or `HOST/team/base` in the registry of the output.

    Raises:
        UsageError: a repository is invalid or in another registry.
    """
    names = []
    for text in typed:
        name = text.removeprefix(f"{reference.registry}/")
        try:
            other = parse_reference(f"{reference.registry}/{name}:latest")
        except UsageError:
            other = None
        # A first part with a dot is the host of another registry.
        if other is None or "." in name.partition("/")[0]:
            raise UsageError(
                f"--mount-from {text!r:.200} is not a repository of {reference.registry}",
                hint=f"use a name without a tag: --mount-from {reference.registry}/team/base",
            )
        names.append(other.repository)
    return tuple(names)


def deliver(
    image: Image,
    output: InLayout | InArchive | InEngine,
    names: Sequence[str],
    reporter: Reporter,
) -> str:
    """Write or load an image, and return its name at the destination.

    Args:
        image: every layer has its blob.
        output: the destination; not a registry (`envkit.registry.push`) or a SIF file (`envkit.assemble.sif`).
        names: the names of the image in engines, 'name:tag' each; the name in `output` is added.
        reporter: gets steps and bytes.

    Raises:
        UsageError: the folder of the layout contains something else.
        EngineError: the engine refuses the image.
        EnvironmentProblem: the disk is full, or the engine cannot be reached.
        IntegrityError: the engine has other bytes afterwards.
    """
    if isinstance(output, InEngine):
        return load_into_docker(image, _with(names, output.name), reporter)
    reporter.step(f"write {output.path}")
    match output:
        case InArchive():
            write_archive(image, output.path, _with(names, output.tag))
        case InLayout():
            write_layout(image, output.path, output.tag)
    return f"{output.kind}:{output.path}"


def _with(names: Sequence[str], another: str | None) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*names, *([another] if another else []))))


def load_into_docker(image: Image, names: Sequence[str], reporter: Reporter) -> str:
    """Load an image into Docker and return its ID there.

    Raises:
        EnvironmentProblem: Docker does not answer, or its disk is full.
        EngineError: Docker refuses the archive.
        IntegrityError: Docker has another image afterwards.
    """
    from envkit.engines.docker import DockerEngine  # noqa: PLC0415 - the SDK takes 0.2 s to import

    reporter.step("load the image into Docker")
    engine, total = DockerEngine(), image.size

    def pieces() -> Iterator[bytes]:
        sent = 0
        for piece in stream(image, names):
            sent += len(piece)
            reporter.advance(min(sent, total), total)
            yield piece

    engine.load(pieces())
    # The ID is the hash of the configuration. With another ID, Docker has changed the image, and its digest in records
    # would be wrong.
    loaded = engine.local(image.id)
    if loaded is None:
        raise IntegrityError(
            f"Docker loaded the image under an ID other than {image.id}",
            hint="docker images --no-trunc lists its images",
        )
    return loaded.id
