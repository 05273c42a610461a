"""Outputs of a build: `oci:DIR`, `docker-archive:FILE`, `sif:FILE`, `docker-daemon` or `registry:REFERENCE`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from envkit.assemble import sif
from envkit.assemble.compress import GZIP
from envkit.ground.errors import IntegrityError, UsageError
from envkit.image.archive import stream, write_archive
from envkit.image.layout import link, write_layout
from envkit.image.name import Reference, parse_reference, registry_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from envkit.engines.model import BuildOptions
    from envkit.ground.progress import Reporter
    from envkit.image.spec import Image, Layer

KINDS = ("oci", "docker-archive", "sif", "docker-daemon", "registry")
_FORMS = "--output oci:DIR, docker-archive:FILE, sif:FILE, docker-daemon or registry:HOST/NAME:TAG"
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
# Names that other tools use for these outputs.
_FOREIGN = {"docker": "registry", "oci-layout": "oci", "docker-tar": "docker-archive", "daemon": "docker-daemon",
            "apptainer": "sif", "singularity": "sif"}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """A destination for an image."""

    kind: str  # one of KINDS
    path: Path | None = None  # the folder of a layout, the file of an archive or SIF
    name: str | None = None  # the tag in a layout, or the image's name in an engine
    reference: Reference | None = None  # in a registry


def parse_output(text: str) -> Output:
    """Parse the value of `--output`. The path of a layout or archive may be followed by `:NAME`.

    Raises:
        UsageError: the value is invalid.
    """
    kind, sign, rest = text.partition(":")
    if kind in _FOREIGN:
        own_kind = _FOREIGN[kind]
        raise UsageError(
            f"--output {text!r:.200}: unknown kind {kind!r}",
            hint=f"--output {own_kind}{sign}{rest.removeprefix('//')}",
        )
    match kind:
        case "oci" if rest:
            return _layout(text, rest)
        case "docker-archive" if rest:
            return _archive(text, rest)
        case "sif" if rest:
            return Output(kind=kind, path=_file(text, kind, rest, "image.sif"))
        case "docker-daemon" if rest or not sign:
            return Output(kind=kind, name=_name(text, rest) if rest else None)
        case "registry" if rest:
            return _registry(text, rest)
    if kind in KINDS:
        raise UsageError(f"--output {text!r:.200}: a value is missing after the colon", hint=_FORMS)
    raise UsageError(f"--output {text!r:.200}: unknown kind of output", hint=_FORMS)


def check_output(options: BuildOptions) -> None:
    """Check all options about the output.

    Raises:
        UsageError: the output is invalid, or an option for registries is given with another kind of output.
        EnvironmentProblem: the program that writes this kind is missing.
    """
    output = parse_output(options.output) if options.output else None
    if output is not None and output.kind.startswith("docker-") and options.compression != GZIP:
        raise UsageError(
            f"--compression {options.compression} does not work with {output.kind}: Docker before 25 cannot read zstd",
            hint="use --output oci:DIR or registry:HOST/NAME:TAG, or omit --compression",
        )
    if output is not None and output.kind == "sif":
        sif.client()
    if output is not None and output.reference is not None:
        repositories(output.reference, options.mount_from)
        return
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
    output: Output,
    names: Sequence[str],
    reporter: Reporter,
    *,
    place: Callable[[Layer, Path], None] = link,
) -> str:
    """Write or load an image, and return its name at the destination.

    Args:
        image: every layer has its blob.
        output: the destination; not a registry (`envkit.registry.push`) or a SIF file (`envkit.assemble.sif`).
        names: the names of the image in engines, 'name:tag' each; the name in `output` is added.
        reporter: gets steps and bytes.
        place: puts a layer's blob into a layout.

    Raises:
        UsageError: the folder of the layout contains something else.
        EngineError: the engine refuses the image.
        EnvironmentProblem: the disk is full, or the engine cannot be reached.
        IntegrityError: the engine has other bytes afterwards.
    """
    all_names = tuple(dict.fromkeys((*names, *([output.name] if output.name else []))))
    if output.path is None:
        return load_into_docker(image, all_names, reporter)
    reporter.step(f"write {output.path}")
    if output.kind == "docker-archive":
        write_archive(image, output.path, all_names)
    else:
        write_layout(image, output.path, output.name, place=place)
    return f"{output.kind}:{output.path}"


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


def _layout(text: str, rest: str) -> Output:
    folder, sign, tag = rest.rpartition(":")
    # A slash after the colon: it is part of a folder's name, and there is no tag.
    if not sign or "/" in tag:
        folder, tag = rest, ""
    elif not folder or not _TAG.fullmatch(tag):
        raise UsageError(f"--output {text!r:.200}: {tag!r:.140} is not a tag", hint="--output oci:DIR:TAG")
    return Output(kind="oci", path=_path(text, folder), name=tag or None)


def _archive(text: str, rest: str) -> Output:
    # The first colon: the name can contain more of them (HOST:PORT/NAME:TAG).
    file, _, name = rest.partition(":")
    path = _file(text, "docker-archive", file, "image.tar")
    return Output(kind="docker-archive", path=path, name=_name(text, name) if name else None)


def _file(text: str, kind: str, typed: str, example: str) -> Path:
    path = _path(text, typed)
    if path.is_dir():
        raise UsageError(f"--output {text!r:.200}: {typed} is a folder", hint=f"--output {kind}:{typed}/{example}")
    return path


def _registry(text: str, rest: str) -> Output:
    name = rest.removeprefix("//")
    reference = parse_reference(name, what=f"--output {text!r:.200}")
    if registry_of(name) is None:
        raise UsageError(
            f"--output {text!r:.200} has no registry", hint="--output registry:registry.example.com/team/train:1.0"
        )
    if reference.digest:
        raise UsageError(
            f"--output {text!r:.200} has a digest; use a tag, because the digest follows from the image",
            hint=f"--output registry:{reference.registry}/{reference.repository}:TAG",
        )
    return Output(kind="registry", reference=reference)


def _name(text: str, name: str) -> str:
    reference = parse_reference(name, what=f"--output {text!r:.200}")
    if reference.digest:
        raise UsageError(f"--output {text!r:.200} has a digest", hint="use NAME:TAG")
    return name if name.endswith(f":{reference.tag}") else f"{name}:{reference.tag}"


def _path(text: str, typed: str) -> Path:
    if not typed or "\0" in typed:
        raise UsageError(f"--output {text!r:.200} has no valid path", hint=_FORMS)
    return Path(typed)
