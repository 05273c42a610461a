"""A GitHub Actions workflow: it builds every image, and verifies GPU images on a GPU runner."""

from __future__ import annotations

from collections.abc import Mapping

from envkit.export import selection
from envkit.export.model import Option, Order, candidate, install_script, installed, logout, needs_gpu
from envkit.ground.errors import UsageError
from envkit.ground.requirement import Form
from envkit.render.quoting import yaml
from envkit.render.texts import text_of

FILE = ".github/workflows/envkit.yml"
PLANS = ".github/envkit"
_MAX_CELLS = 256  # of one matrix
# The actions that a workflow uses, each pinned to the commit of a release, because a tag can be moved.
# Source: the tags of each action's repository, read on 2026-11-20. In the exported file, the version follows the commit
# as a comment, from which Dependabot and Renovate update both.
# name of the option -> (action, commit, version)
_ACTIONS = {
    "checkout": ("actions/checkout", "3d3c42e5aac5ba805825da76410c181273ba90b1", "v7.0.1"),
    "setup_python": ("actions/setup-python", "5fda3b95a4ea91299a34e894583c3862153e4b97", "v7.0.0"),
    "cache_action": ("actions/cache", "27d5ce7f107fe9357f9df03efb73ab90386fccae", "v5.0.5"),
    "upload": ("actions/upload-artifact", "bbbca2ddaa5d8feaa63e36b76fdaad77386f024f", "v7.0.0"),
    "download": ("actions/download-artifact", "3e5f45b2cfb9172054b4087a40e8e0b5a5461e7c", "v8.0.1"),
}
_VERSIONS = {f"{action}@{commit}": version for action, commit, version in _ACTIONS.values()}

_ACTION_OPTIONS: Mapping[str, Option] = {
    name: Option(
        default=f"{action}@{commit}",
        about=f"{action} at a commit ({version}), or another action",
        pattern=r"[A-Za-z0-9_.-]+/[A-Za-z0-9_./-]+@[A-Za-z0-9_./-]+",
    )
    for name, (action, commit, version) in _ACTIONS.items()
}
OPTIONS: Mapping[str, Option] = {
    "branch": Option(default="main", about="branch whose images are published", pattern=r"[A-Za-z0-9._/-]+"),
    "runs_on": Option(default="ubuntu-24.04", about="label of the runner for builds", pattern=r"[A-Za-z0-9._-]+"),
    "gpu_runner": Option(
        default="self-hosted,linux,gpu",
        about="labels of the GPU runner for verification, or none",
        pattern=r"[A-Za-z0-9._-]+(?:,[A-Za-z0-9._-]+)*",
    ),
    "python": Option(default="3.12", about="Python version that runs envkit", pattern=r"3\.[0-9]+"),
    "cache": Option(default="4GB", about="size of the cache kept between runs, or none", pattern=r"[0-9]+GB|none"),
    **_ACTION_OPTIONS,
}


def export(order: Order) -> dict[str, str]:
    """Return the workflow, and the plans of a matrix.

    Raises:
        UsageError: there are too many cells for a matrix of GitHub, or a tag would be too long.
    """
    if len(order.cells) > _MAX_CELLS:
        raise UsageError(
            f"{len(order.cells)} images exceed the {_MAX_CELLS} jobs that GitHub allows in one matrix",
            hint="export them in several files",
        )
    chosen = order.options
    gpu = [cell.name for cell in order.cells if needs_gpu(cell)]
    verified = bool(gpu) and order.registry is not None and chosen["gpu_runner"] != "none"
    refused = {Form.IMAGE: "the jobs use the Docker client and the GPUs of the runner itself"}
    if verified:
        refused[Form.PATH] = "the job on the GPU runner has no checkout (--set gpu_runner=none leaves it out)"
    # GITHUB_TOKEN is valid only for GitHub's own registry.
    own = order.registry is not None and order.registry.startswith("ghcr.io/")
    values = {
        "command": order.command,
        "requirement": installed(order, refused).text,
        "install": install_script(),
        "install_in_venv": install_script('"$RUNNER_TEMP/envkit/bin/python"'),
        "registry": order.registry,
        "login": order.registry is not None and not own,
        "packages": own,
        "user": "${{ github.actor }}" if own else "${{ secrets.REGISTRY_USER }}",
        "password": "${{ secrets.GITHUB_TOKEN }}" if own else "${{ secrets.REGISTRY_PASSWORD }}",
        "logout": logout(order),
        "branch": chosen["branch"],
        "ref": f"'refs/heads/{chosen['branch']}'",
        "runs_on": chosen["runs_on"],
        "gpu_runner": ", ".join(map(yaml, chosen["gpu_runner"].split(","))) if verified else None,
        "gpu_cells": ", ".join(map(yaml, gpu)),
        "minutes": order.minutes,
        "jobs": order.jobs,
        "python": chosen["python"],
        "engine": order.engine,
        "select": selection.words(order, PLANS),
        "hashed": f"format('{PLANS}/{{0}}.json', matrix.cell)" if order.matrix else "matrix.definition",
        "plans": order.matrix and PLANS,
        "pushing": ' "${push[@]}"' if order.registry else "",
        "tier": f" --tier {order.tier}" if order.tier else "",
        "keep_cache": chosen["cache"] != "none",
        "cache_limit": chosen["cache"],
        "cells": [
            {
                "name": cell.name,
                "fields": selection.fields(order, cell),
                "tag": candidate(cell.name) if verified and needs_gpu(cell) else cell.name,
            }
            for cell in order.cells
        ],
        **{name: uses(chosen[name]) for name in _ACTION_OPTIONS},
    }
    text = text_of("export/github.yml.j2", values, order.template_dirs)
    return {FILE: text} | selection.plans(order, PLANS)


def uses(action: str) -> str:
    """Return the value of `uses:`; a known commit is followed by a comment with its version."""
    version = _VERSIONS.get(action)
    return f"{action} # {version}" if version else action
