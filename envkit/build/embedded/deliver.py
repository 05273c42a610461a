"""An assembled image to the place that `--output` names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envkit.build.embedded.daemon import load_into_docker
from envkit.build.embedded.docker_archive import write_docker_archive
from envkit.build.embedded.layout import link, write_layout
from envkit.build.embedded.push import push
from envkit.build.embedded.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from envkit.build.embedded.oci import Image, Layer
    from envkit.build.embedded.outputs import Output
    from envkit.build.embedded.transport import Transport
    from envkit.progress import Reporter


def deliver(
    image: Image,
    output: Output,
    names: Sequence[str],
    transport: Transport,
    reporter: Reporter,
    *,
    place: Callable[[Layer, Path], None] = link,
    replace_tag: bool = False,
    sources: tuple[str, ...] = (),
) -> str:
    """Write, load or push an image, and give the name by which it can be used from there.

    Args:
        image: every layer has its blob, but for those that a registry's own repositories hold.
        output: where to.
        names: what the image is called in engines, 'name:tag' each; the output's own name comes on top.
        transport: connections, for a registry.
        reporter: hears steps and bytes.
        place: puts a layer's blob into a layout.
        replace_tag: whether a registry's tag may move away from another image.
        sources: repositories of the registry that may hold blobs.

    Raises:
        UsageError: a layout's folder holds something else.
        EngineError: the engine or the registry refuses.
        SurroundingsError: the disk is full, or the engine or the registry is away.
        IntegrityError: what arrived has other bytes.
    """
    called = tuple(dict.fromkeys((*names, *([output.name] if output.name else []))))
    if output.reference is not None:
        registry = Registry.of(output.reference, transport)
        return push(image, output.reference, registry, reporter, replace_tag=replace_tag, sources=sources).reference
    if output.path is None:
        return load_into_docker(image, called, reporter)
    reporter.step(f"write {output.path}")
    if output.kind == "docker-archive":
        write_docker_archive(image, output.path, called)
    else:
        write_layout(image, output.path, output.name, place=place)
    return f"{output.kind}:{output.path}"
