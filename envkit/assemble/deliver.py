"""An assembled image to the place on this machine that `--output` names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envkit.assemble.daemon import load_into_docker
from envkit.image.docker_archive import write_docker_archive
from envkit.image.layout import link, write_layout

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from envkit.assemble.outputs import Output
    from envkit.ground.progress import Reporter
    from envkit.image.spec import Image, Layer


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
