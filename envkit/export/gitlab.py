"""A GitLab pipeline: it builds every image, and verifies GPU images on a GPU runner."""

from __future__ import annotations

from collections.abc import Mapping

from envkit.export import selection
from envkit.export.model import Option, Order, candidate, install_script, installed, logout, needs_gpu
from envkit.ground.errors import UsageError
from envkit.ground.requirement import Form
from envkit.render.quoting import yaml
from envkit.render.texts import text_of

FILE = ".gitlab-ci.yml"
PLANS = ".gitlab/envkit"
_MAX_CELLS = 200  # jobs of one parallel:matrix
_TAGS = r"[A-Za-z0-9._-]+(?:,[A-Za-z0-9._-]+)*"
OPTIONS: Mapping[str, Option] = {
    "image": Option(
        default="python:3.12-slim-bookworm",
        about="image with Python and apt for the build jobs",
        pattern=r"[A-Za-z0-9][A-Za-z0-9._/:@-]*",
    ),
    "tags": Option(default="", about="tags of the runners that build, separated by commas", pattern=f"|{_TAGS}"),
    "gpu_tags": Option(default="gpu", about="tags of the runners that verify on a GPU, or none", pattern=_TAGS),
    "cache": Option(default="4GB", about="size of the cache kept between pipelines, or none", pattern=r"[0-9]+GB|none"),
    "proof": Option(
        default="proot",
        about="runner that verifies the image: proot, bubblewrap if the CI runner's containers allow it, or none",
        pattern="proot|bubblewrap|none",
    ),
}
# --allow-cpu: the runner that builds needs no GPU; the jobs with gpu_tags verify on one.
_VERIFIED = (
    " --allow-cpu \\\n"
    '        --report "json=reports/$CELL/record.json" --report "junit=reports/$CELL/junit.xml" \\\n'
    '        --report "html=reports/$CELL/report.html"'
)


def export(order: Order) -> dict[str, str]:
    """Return the pipeline, and the plans of a matrix.

    Raises:
        UsageError: the engine needs a daemon, there are too many cells for a matrix of GitLab, or a tag would be too
            long.
    """
    if order.engine != "embedded":
        raise UsageError(
            f"--engine {order.engine} needs a daemon, which the exported pipeline does not have",
            hint="--engine embedded",
        )
    if len(order.cells) > _MAX_CELLS:
        raise UsageError(
            f"{len(order.cells)} images exceed the {_MAX_CELLS} jobs that GitLab allows in one matrix",
            hint="export them in several files",
        )
    chosen = order.options
    verified = order.registry is not None and chosen["gpu_tags"] != "none"
    gpu = [cell.name for cell in order.cells if needs_gpu(cell) and verified]
    refused: dict[Form, str] = {}
    if gpu:
        refused[Form.IMAGE] = (
            "the job on the GPU runner needs envkit on that machine (--set gpu_tags=none leaves it out)"
        )
    elif chosen["proof"] == "bubblewrap":
        refused[Form.IMAGE] = "the image has proot, not bubblewrap (--set proof=proot)"
    requirement = installed(order, refused)
    in_image = requirement.form is Form.IMAGE
    needed = [chosen["proof"] if chosen["proof"] != "none" else "", "git" if requirement.form is Form.GIT else ""]
    values = {
        "command": order.command,
        "requirement": requirement.text,
        "in_image": in_image,
        "apt": "" if in_image else " ".join(filter(None, needed)),
        "install": install_script(),
        "install_in_venv": install_script(".venv/bin/python"),
        "registry": order.registry,
        "logout": logout(order),
        "image": requirement.text if in_image else chosen["image"],
        "tags": yaml_list(chosen["tags"]),
        "gpu_tags": yaml_list(chosen["gpu_tags"]),
        "gpu_cells": gpu,
        "minutes": order.minutes,
        "proof": chosen["proof"],
        "verified": _VERIFIED if order.options["proof"] != "none" else " --no-verify",
        "select": selection.words(order, PLANS),
        "plans": order.matrix and PLANS,
        "tier": f" --tier {order.tier}" if order.tier else "",
        "keep_cache": chosen["cache"] != "none",
        "cache_limit": chosen["cache"],
        "cells": [
            {
                "name": cell.name,
                "fields": selection.fields(order, cell),
                "tag": candidate(cell.name) if cell.name in gpu else cell.name,
            }
            for cell in order.cells
        ],
    }
    text = text_of("export/gitlab-ci.yml.j2", values, order.template_dirs)
    return {FILE: text} | selection.plans(order, PLANS)


def yaml_list(words: str) -> str:
    """Return words separated by commas as the items of a YAML flow sequence."""
    return ", ".join(yaml(word) for word in words.split(",") if word)
