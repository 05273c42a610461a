"""The build context of an image, for engines that build from a Dockerfile."""

from __future__ import annotations

from envkit.export.model import Order
from envkit.fleet.expand import base_of
from envkit.fleet.model import Cell
from envkit.ground import platforms
from envkit.ground.errors import UsageError
from envkit.render.render import render

_BOOTSTRAP = "bootstrap:"


def build_context(order: Order, cell: Cell) -> dict[str, str]:
    """Return every file of the context by its name, including the CA bundle of the mirrors.

    Raises:
        UsageError: the base image of the cell is not in a registry, its definition copies files, or a template or a
            mirror is invalid.
    """
    base = base_of(cell, "")
    if base.startswith(_BOOTSTRAP):
        raise UsageError(
            f"{cell.name}: only envkit can build the base {base}; a Dockerfile cannot use it",
            hint="use a base from a registry in the matrix",
        )
    if cell.plan.copy:
        raise UsageError(
            f"{cell.name}: its definition has `copy`, but exported build contexts cannot contain files of the project",
            hint="leave out copy, or build with `envkit build`",
        )
    rendered = render(
        cell.plan,
        syntax="buildkit",
        mirrors=order.mirrors,
        template_dirs=order.template_dirs,
        base=base or None,
    )
    files = {name: data.decode() for name, data in rendered.files.items()}
    if order.mirrors.ca_bundle:
        files["ca-bundle.pem"] = order.ca_bundle
    return files


def oci_platform(cell: Cell) -> str:
    """Return the platform as container engines write it: `linux/amd64`."""
    return platforms.platform(cell.plan.resolution.platform).oci
