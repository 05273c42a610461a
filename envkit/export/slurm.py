"""Slurm job arrays: one task builds or verifies one image, and a script prints all verdicts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from envkit.export.model import Option, Order, needs_gpu
from envkit.fleet.expand import base_of
from envkit.fleet.model import Cell
from envkit.ground.errors import UsageError
from envkit.render.texts import text_of
from envkit.run.command_line import gres

_PATH = r"/[A-Za-z0-9_.+/-]+"
_NAME = r"[A-Za-z0-9_.,-]+"
OPTIONS: Mapping[str, Option] = {
    "images": Option(
        default="", about="shared folder for images as OCI layouts, instead of --registry", pattern=f"|{_PATH}"
    ),
    "nodes": Option(default="1", about="number of nodes on which each image is verified", pattern=r"[1-9][0-9]{0,3}"),
    "cpus": Option(default="4", about="CPUs of one task", pattern=r"[1-9][0-9]{0,3}"),
    "memory": Option(
        default="16G", about="memory of one task, in the form of sbatch --mem", pattern=r"[1-9][0-9]*[KMGT]?"
    ),
    "gres": Option(
        default="auto",
        about="value of --gres: gpu:2, gpu:h100:1, none, or auto for the GPUs that the images need",
        pattern=r"[A-Za-z0-9_:.,-]+",
    ),
    "partition": Option(default="", about="partition of the jobs", pattern=f"|{_NAME}"),
    "account": Option(default="", about="account of the jobs", pattern=f"|{_NAME}"),
    "envkit": Option(
        default="envkit", about="envkit command on the nodes, a name or a path", pattern=r"[A-Za-z0-9_./+-]+"
    ),
    "only": Option(
        default="", about="IDs of the checks to run, separated by commas", pattern=r"|C[0-9]{2}(,C[0-9]{2})*"
    ),
    "cache": Option(default="", about="folder on each node's local disk for unpacked layers", pattern=f"|{_PATH}"),
}


def export(order: Order) -> Mapping[str, str]:
    """Return the verify array, the build array, the script that prints the verdicts, and the plan of each image.

    Raises:
        UsageError: there is neither a registry nor a shared folder for the images, or the engine is not embedded.
    """
    if order.engine != "embedded":
        raise UsageError(
            f"--engine {order.engine} keeps images on its own node, where other nodes cannot reach them",
            hint="leave out --engine",
        )
    values = _values(order)
    texts = {
        name: text_of(f"export/slurm-{name}.j2", values, order.template_dirs)
        for name in ("verify.sbatch", "build.sbatch", "verdicts.sh")
    }
    plans = {f"plans/{cell.name}.json": cell.plan.canonical().decode() for cell in order.cells}
    return texts | plans


def _values(order: Order) -> dict[str, Any]:
    options = order.options
    flags = (("tier", order.tier), ("only", options["only"]))
    headers = [f"--{name}={options[name]}" for name in ("partition", "account") if options[name]]
    return {
        "command": order.command,
        "rows": [
            {"name": cell.name, "image": _image(order, cell), "base": base_of(cell, "auto")} for cell in order.cells
        ],
        "based": any(base_of(cell, "") for cell in order.cells),
        "last": len(order.cells) - 1,
        "jobs": order.jobs,
        "minutes": order.minutes,
        "nodes": options["nodes"],
        "cpus": options["cpus"],
        "memory": options["memory"],
        "gres": _gres(order),
        "headers": headers,
        "envkit": options["envkit"],
        "cache": options["cache"],
        "how": "".join(f" --{name} {value}" for name, value in flags if value),
    }


def _image(order: Order, cell: Cell) -> str:
    """Return the image in the form that `envkit build --output` and `envkit verify` both accept."""
    if order.options["images"]:
        return f"oci:{order.options['images'].rstrip('/')}/{cell.name}"
    if order.registry is None:
        raise UsageError(
            "--registry is required",
            hint="--registry registry.example.com/team/train, or --set images=/shared/images",
        )
    return f"registry:{order.image(cell)}"


def _gres(order: Order) -> str:
    """Return the value of --gres, or "" for none. All tasks of an array have the same, so one GPU image decides."""
    value = order.options["gres"]
    if value == "auto":
        return gres(order.gpus) if order.gpus and any(needs_gpu(cell) for cell in order.cells) else ""
    return "" if value == "none" else value
