"""A GitHub Actions workflow that solves a lock again on a schedule and proposes the changes as a pull request."""

from __future__ import annotations

from collections.abc import Mapping

from envkit.export import lock_update
from envkit.export.github import OPTIONS as _GITHUB
from envkit.export.github import uses
from envkit.export.model import Option, Order
from envkit.render.texts import text_of

FILE = ".github/workflows/envkit-lock.yml"
_SHARED = ("runs_on", "python", "checkout", "setup_python")
OPTIONS: Mapping[str, Option] = {
    **lock_update.OPTIONS,
    # Mondays at 04:17: GitHub delays or drops scheduled runs at the start of an hour, when its load is highest.
    "schedule": Option(
        default="17 4 * * 1", about="when to solve, as cron in UTC", pattern=r"[0-9*,/-]+(?: [0-9*,/A-Z-]+){4}"
    ),
    **{name: _GITHUB[name] for name in _SHARED},
}


def export(order: Order) -> dict[str, str]:
    """Return the workflow.

    Raises:
        UsageError: the order is not one definition.
    """
    chosen = order.options
    own = {
        "schedule": chosen["schedule"],
        "runs_on": chosen["runs_on"],
        "python": chosen["python"],
        "checkout": uses(chosen["checkout"]),
        "setup_python": uses(chosen["setup_python"]),
    }
    return {FILE: text_of("export/github-lock.yml.j2", lock_update.values(order) | own, order.template_dirs)}
