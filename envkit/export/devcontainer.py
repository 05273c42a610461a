"""Dev containers: an editor works inside the image, with the GPU and enough shared memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from envkit.export.contexts import build_context, oci_platform
from envkit.export.model import Option, Order, needs_gpu
from envkit.fleet.model import Cell
from envkit.render.texts import text_of
from envkit.run.command_line import gpu_options, shm_option

FOLDER = ".devcontainer"
FILE = "devcontainer.json"
OPTIONS: Mapping[str, Option] = {
    "gpus": Option(default="auto", about="value of docker run --gpus: auto, all or none", pattern="auto|all|none"),
}
_USER = "envkit"  # the name that images give their user, whatever its UID


def export(order: Order) -> dict[str, str]:
    """Return a devcontainer.json for each image, and without a registry its build context.

    Several images each get a folder of their own, from which editors let the user choose.

    Raises:
        UsageError: a template or a mirror is invalid.
    """
    files: dict[str, str] = {}
    contexts: dict[str, str] = {}
    for cell in order.cells:
        folder = FOLDER if len(order.cells) == 1 else f"{FOLDER}/{cell.name}"
        values = _values(order, cell)
        files[f"{folder}/{FILE}"] = text_of(f"export/{FILE}.j2", values, order.template_dirs)
        if order.registry is None:
            contexts |= {f"{folder}/{name}": text for name, text in build_context(order, cell).items()}
    return files | contexts


def _values(order: Order, cell: Cell) -> dict[str, Any]:
    plan = cell.plan
    gpu = needs_gpu(cell) if order.options["gpus"] == "auto" else order.options["gpus"] == "all"
    return {
        "command": order.command,
        "title": plan.title,
        "image": None if order.registry is None else order.image(cell),
        "platform": oci_platform(cell),
        "gpu": gpu,
        "run_args": [
            *gpu_options("docker", "all" if gpu else None),
            shm_option(plan.smoke.shm_mb),
            f"--platform={oci_platform(cell)}",
        ],
        "user": _USER,
        # forwardPorts has no protocol: editors forward only TCP.
        "ports": [int(port.removesuffix("/tcp")) for port in plan.ports if port.endswith("/tcp")],
        "python": f"{plan.prefix}/bin/python",
    }
