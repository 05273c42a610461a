"""How the blobs of layers are compressed: gzip, which every engine reads, or zstd."""

from __future__ import annotations

from envkit.assemble.layer import LayerWriter

GZIP, ZSTD = "gzip", "zstd"
COMPRESSIONS = (GZIP, ZSTD)


def writer(compression: str) -> type[LayerWriter]:
    """What writes such layers."""
    if compression == GZIP:
        return LayerWriter
    from envkit.assemble.zstd import ZstdWriter  # noqa: PLC0415 - a library for these layers alone

    return ZstdWriter


def recipe(compression: str) -> str | None:
    """What has a say in the bytes beside the contents; None for gzip, whose writers name it themselves."""
    if compression == GZIP:
        return None
    from envkit.image.zstd import VERSION  # noqa: PLC0415 - as above

    return f"{compression} {VERSION}"
