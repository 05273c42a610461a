"""An image that an engine keeps, sent to the registry that the fleet shares."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from envkit.assemble.outputs import parse_output, repositories
from envkit.build import surroundings
from envkit.ground.paths import cache_dir, run_folder
from envkit.ground.progress import Silent
from envkit.registry.push import Pusher
from envkit.registry.registry import Registry
from envkit.registry.transport import Transport
from envkit.run.source import find_source

if TYPE_CHECKING:
    from envkit.build.model import BuildOptions, BuiltImage
    from envkit.ground.progress import Reporter


def send(built: BuiltImage, options: BuildOptions, talk: Reporter) -> BuiltImage:
    """Push what an engine built to the registry that `options.output` names; by digest, so no tag moves.

    An image that is there already, or that no registry was named for, is given back as it is.

    Raises:
        EngineError: the engine or the registry refuses.
        IntegrityError: bytes are not what was promised, here or there.
        SurroundingsError: one of them does not answer, or a disk is full.
    """
    reference = parse_output(options.output).reference if options.output else None
    if reference is None or built.pushed is not None:
        return built
    mirrors, _ = surroundings.certificates(options.mirrors, os.environ, Silent())
    cache = cache_dir()
    with Transport(ca_bundle=mirrors.ca_bundle) as transport, run_folder(cache) as folder:
        source = find_source(built.id, folder, transport, talk, engine=built.engine)
        pusher = Pusher(
            reference,
            Registry.of(reference, transport),
            sources=repositories(reference, options.mount_from),
            replace_tag=options.replace_tag,
            fetch=source.fetch,
        )
        with pusher:
            pushed = pusher.finish(source.read(pusher.offer), talk)
    return replace(built, pushed=pushed.reference, digest=pushed.digest, sent=pushed.sent)
