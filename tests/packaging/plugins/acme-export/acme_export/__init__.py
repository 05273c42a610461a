"""A kind of `envkit export`: the names of the images, one a line."""

from __future__ import annotations

from collections.abc import Mapping

from envkit.export.model import Option, Order

ABOUT = "the names of the images, one a line"
FILE = "images.txt"
OPTIONS = {"prefix": Option(default="", about="text before each name", pattern=r"[a-z-]*")}


def export(order: Order) -> Mapping[str, str]:
    """Return the one file."""
    return {FILE: "".join(f"{order.options['prefix']}{order.image(cell)}\n" for cell in order.cells)}
