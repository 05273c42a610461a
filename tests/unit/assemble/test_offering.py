"""Every layer that the cache gives out is offered, made or kept."""

from pathlib import Path
from typing import IO

import pytest

from envkit.assemble.cache import Cached
from envkit.assemble.layer import LayerWriter
from envkit.assemble.offering import OfferingCache
from envkit.ground.errors import EngineError
from envkit.image.spec import LayerDigest

KEY = "0" * 64


def write(sink: IO[bytes]) -> LayerDigest:
    with LayerWriter(sink) as writer:
        writer.add_bytes("file", b"contents")
        return writer.close()


def test_made_and_kept_layers_are_offered(tmp_path: Path) -> None:
    offered: list[Cached] = []
    cache = OfferingCache(tmp_path, offered.append)
    assert cache.get(KEY) is None
    assert not offered
    made = cache.make(KEY, write)
    assert cache.get(KEY) == made
    assert offered == [made, made]
    assert made.path.stat().st_size == made.layer.size


def test_a_failed_push_ends_the_making(tmp_path: Path) -> None:
    def refuse(_: Cached) -> None:
        raise EngineError("the registry denied access")

    with pytest.raises(EngineError, match="the registry denied access"):
        OfferingCache(tmp_path, refuse).make(KEY, write)
