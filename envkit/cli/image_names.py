"""The names of images on the command line: types of click that parse what was typed, the only place here that does.

A name that is not valid is refused while the options are read, before anything is done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from envkit.image.name import ImageName


class _Image(click.ParamType):  # type: ignore[type-arg]
    """The name of an image; `HOST/NAME` is an engine's."""

    name = "image"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> ImageName:
        """Return the parsed name.

        Raises:
            UsageError: it is not a valid name in a registry.
        """
        from envkit.image.name import image_name

        del param, ctx
        return image_name(value) if isinstance(value, str) else value


class _Published(_Image):
    """The name of an image that was published; `HOST/NAME` is in its registry."""

    def __init__(self, *, or_file: bool = False) -> None:
        self._or_file = or_file

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> ImageName:
        """Return the parsed name; as `_Image`."""
        from envkit.image.name import published_name

        del param, ctx
        return published_name(value, or_file=self._or_file) if isinstance(value, str) else value


IMAGE = _Image()
PUBLISHED = _Published()
PUBLISHED_OR_FILE = _Published(or_file=True)
"""As `PUBLISHED`, or the path of a file, which stays a name without a registry."""
