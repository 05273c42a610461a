"""The common part of the jobs that update a lock: the options, and the values for their templates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from envkit.export.model import Option, Order, install_script, installed
from envkit.ground.errors import UsageError
from envkit.ground.requirement import Form

_PACKAGE = r"[A-Za-z0-9][A-Za-z0-9._-]*"
OPTIONS: Mapping[str, Option] = {
    "lock": Option(
        default="envkit.lock", about="path of the lock in the repository", pattern=r"[A-Za-z0-9_][A-Za-z0-9._/-]*"
    ),
    "packages": Option(
        default="",
        about="packages to update, separated by commas; all if empty",
        pattern=rf"|{_PACKAGE}(?:,{_PACKAGE})*",
    ),
    # Without a dash at the beginning, which git reads as an option, and without dots: git refuses `..` and `.lock`.
    "branch": Option(
        default="envkit/lock", about="branch of the proposal", pattern=r"[A-Za-z0-9][A-Za-z0-9_-]*(?:/[A-Za-z0-9_-]+)*"
    ),
}


def values(order: Order) -> dict[str, Any]:
    """Return the values that both templates need.

    Raises:
        UsageError: the order is not a single definition.
    """
    if order.matrix is not None or len(order.cells) != 1:
        raise UsageError(
            f"a lock belongs to one definition, not to {'a matrix' if order.matrix else f'{len(order.cells)}'}",
            hint="export a job for each definition: --set lock=NAME.lock --set branch=envkit/NAME --out FILE",
        )
    chosen = order.options
    (definition,) = order.definitions.values()
    updates = [f"--update {name}" for name in chosen["packages"].split(",") if name] or ["--upgrade"]
    return {
        "command": order.command,
        "requirement": installed(order, {Form.IMAGE: "the job also needs git and the client of the CI system"}).text,
        "install": install_script(),
        "definition": definition,
        "lock": chosen["lock"],
        "branch": chosen["branch"],
        "title": f"Update {chosen['lock']}",
        "minutes": order.minutes,
        "solve": " ".join(['envkit lock "$DEFINITION"', f"--engine {order.engine}", '-o "$LOCK"', *updates]),
    }
