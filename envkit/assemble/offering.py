"""A layer cache that tells of every layer it gives out, so that one can be sent while others are still being made."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import IO

from envkit.assemble.cache import Cached, LayerCache
from envkit.image.spec import LayerDigest

Offer = Callable[[Cached], None]


class OfferingCache(LayerCache):
    """The layers below one folder. What `offer` raises ends the work that asked for the layer.

    Args:
        folder: of the cache.
        offer: hears of each layer once its blob is whole and kept; called from any thread.
    """

    def __init__(self, folder: Path, offer: Offer) -> None:
        super().__init__(folder)
        self._offer = offer

    def get(self, key: str) -> Cached | None:
        """As `LayerCache.get`."""
        found = super().get(key)
        if found is not None:
            self._offer(found)
        return found

    def make(self, key: str, write: Callable[[IO[bytes]], LayerDigest]) -> Cached:
        """As `LayerCache.make`."""
        made = super().make(key, write)
        self._offer(made)
        return made
