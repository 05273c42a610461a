"""A GitLab job that solves a lock again in a scheduled pipeline and proposes the changes as a merge request."""

from __future__ import annotations

from collections.abc import Mapping

from envkit.export import lock_update
from envkit.export.gitlab import OPTIONS as _GITLAB
from envkit.export.gitlab import yaml_list
from envkit.export.model import Option, Order
from envkit.render.texts import text_of

FILE = ".gitlab/envkit-lock.yml"
OPTIONS: Mapping[str, Option] = {
    **lock_update.OPTIONS,
    "image": Option(
        default="python:3.12-bookworm",
        about="image with Python, git and curl for the job",
        pattern=_GITLAB["image"].pattern,
    ),
    "tags": _GITLAB["tags"],
}


def export(order: Order) -> dict[str, str]:
    """Return the file with the job.

    Raises:
        UsageError: the order is not one definition.
    """
    chosen = order.options
    own = {"image": chosen["image"], "tags": yaml_list(chosen["tags"])}
    return {FILE: text_of("export/gitlab-lock.yml.j2", lock_update.values(order) | own, order.template_dirs)}
