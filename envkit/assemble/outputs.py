"""Where an image goes, and how: `oci:DIR`, `docker-archive:FILE`, `docker-daemon` or `registry:REFERENCE`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from envkit.assemble.compress import GZIP
from envkit.ground.errors import IntegrityError, UsageError
from envkit.image.docker_archive import stream, write_docker_archive
from envkit.image.layout import link, write_layout
from envkit.image.reference import Reference, names_registry, parse_reference

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from envkit.build.model import BuildOptions
    from envkit.ground.progress import Reporter
    from envkit.image.spec import Image, Layer

KINDS = ("oci", "docker-archive", "docker-daemon", "registry")
_FORMS = "--output oci:DIR, docker-archive:FILE, docker-daemon or registry:HOST/NAME:TAG"
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
# What other tools call the same things.
_FOREIGN = {"docker": "registry", "oci-layout": "oci", "docker-tar": "docker-archive", "daemon": "docker-daemon"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """One destination."""

    kind: str  # one of KINDS
    path: Path | None = None  # the folder of a layout, the file of an archive
    name: str | None = None  # a layout's tag, or the name an engine gives the image
    reference: Reference | None = None  # in a registry


def parse_output(text: str) -> Output:
    """Return the destination that `--output` names. After the path of a layout or archive, `:NAME` may follow.

    Raises:
        UsageError: it names none.
    """
    kind, sign, rest = text.partition(":")
    if kind in _FOREIGN:
        proper = _FOREIGN[kind]
        raise UsageError(
            f"--output {text!r:.200}: {kind!r} is not a kind of output",
            hint=f"--output {proper}{sign}{rest.removeprefix('//')}",
        )
    match kind:
        case "oci" if rest:
            return _layout(text, rest)
        case "docker-archive" if rest:
            return _archive(text, rest)
        case "docker-daemon" if rest or not sign:
            return Output(kind=kind, name=_name(text, rest) if rest else None)
        case "registry" if rest:
            return _registry(text, rest)
    if kind in KINDS:
        raise UsageError(f"--output {text!r:.200}: nothing follows the colon", hint=_FORMS)
    raise UsageError(f"--output {text!r:.200} is not a place for an image", hint=_FORMS)


def check_output(options: BuildOptions) -> None:
    """Look at all that was typed about the output.

    Raises:
        UsageError: it names no place, or an option for registries alone is given with another place.
    """
    output = parse_output(options.output) if options.output else None
    if output is not None and output.kind.startswith("docker-") and options.compression != GZIP:
        raise UsageError(
            f"--compression {options.compression} is not for {output.kind}: Docker 20.10 cannot read such layers",
            hint="--output oci:DIR or registry:HOST/NAME:TAG; or leave --compression out",
        )
    if output is not None and output.reference is not None:
        repositories(output.reference, options.mount_from)
        return
    for flag, given in (("--replace-tag", options.replace_tag), ("--mount-from", options.mount_from)):
        if given:
            raise UsageError(f"{flag} is for images that go to a registry", hint="--output registry:HOST/NAME:TAG")


def repositories(reference: Reference, typed: Sequence[str]) -> tuple[str, ...]:
    """Return the repositories that --mount-from names, `team/base` or `HOST/team/base` of the output's own registry.

    Raises:
        UsageError: one is invalid or in another registry.
    """
    names = []
    for text in typed:
        name = text.removeprefix(f"{reference.registry}/")
        try:
            other = parse_reference(f"{reference.registry}/{name}:latest")
        except UsageError:
            other = None
        if other is None or "." in name.partition("/")[0]:
            raise UsageError(
                f"--mount-from {text!r:.200} is not a repository of {reference.registry}",
                hint=f"--mount-from {reference.registry}/team/base, without a tag",
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
    """Write or load an image, and give the name by which it can be used from there.

    Args:
        image: every layer has its blob.
        output: where to; no registry, which `envkit.registry.push` is for.
        names: what the image is called in engines, 'name:tag' each; the output's own name comes on top.
        reporter: hears steps and bytes.
        place: puts a layer's blob into a layout.

    Raises:
        UsageError: a layout's folder holds something else.
        EngineError: the engine refuses.
        EnvironmentProblem: the disk is full, or the engine is away.
        IntegrityError: what arrived has other bytes.
    """
    called = tuple(dict.fromkeys((*names, *([output.name] if output.name else []))))
    if output.path is None:
        return load_into_docker(image, called, reporter)
    reporter.step(f"write {output.path}")
    if output.kind == "docker-archive":
        write_docker_archive(image, output.path, called)
    else:
        write_layout(image, output.path, output.name, place=place)
    return f"{output.kind}:{output.path}"


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
    # The ID is the hash of the configuration. Under another one, Docker has changed the image, and its digest in
    # records and locks would be wrong.
    loaded = engine.local(image.id)
    if loaded is None:
        raise IntegrityError(
            f"Docker loaded the image under another id than {image.id}",
            hint="docker images --no-trunc shows what it has",
        )
    return loaded.id


def _layout(text: str, rest: str) -> Output:
    folder, sign, tag = rest.rpartition(":")
    if not sign or "/" in tag:
        folder, tag = rest, ""
    elif not folder or not _TAG.fullmatch(tag):
        raise UsageError(f"--output {text!r:.200}: {tag!r:.140} is not a tag", hint="--output oci:DIR:TAG")
    return Output(kind="oci", path=_path(text, folder), name=tag or None)


def _archive(text: str, rest: str) -> Output:
    file, _, name = rest.partition(":")
    path = _path(text, file)
    if path.is_dir():
        raise UsageError(
            f"--output {text!r:.200}: {file} is a folder", hint=f"--output docker-archive:{file}/image.tar"
        )
    return Output(kind="docker-archive", path=path, name=_name(text, name) if name else None)


def _registry(text: str, rest: str) -> Output:
    name = rest.removeprefix("//")
    reference = parse_reference(name, what=f"--output {text!r:.200}")
    if not names_registry(name):
        raise UsageError(
            f"--output {text!r:.200} names no registry", hint="--output registry:registry.example.com/team/train:1.0"
        )
    if reference.digest:
        raise UsageError(
            f"--output {text!r:.200} names a digest, which only the image itself decides",
            hint=f"--output registry:{reference.registry}/{reference.repository}:TAG",
        )
    return Output(kind="registry", reference=reference)


def _name(text: str, name: str) -> str:
    reference = parse_reference(name, what=f"--output {text!r:.200}")
    if reference.digest:
        raise UsageError(f"--output {text!r:.200} names a digest", hint="write NAME:TAG")
    return name if name.endswith(f":{reference.tag}") else f"{name}:{reference.tag}"


def _path(text: str, typed: str) -> Path:
    if not typed or "\0" in typed:
        raise UsageError(f"--output {text!r:.200} names no path", hint=_FORMS)
    return Path(typed)
