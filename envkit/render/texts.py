"""The text of one template: shipped, the user's or a plug-in's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from envkit.render.engine import render_template, source_of, with_plugins


def text_of(name: str, values: dict[str, Any], folders: Sequence[Path]) -> str:
    """The text of a template: rendered here, or in a process with limits where a user's folder can have a part in it.

    A built-in template includes others by names that a folder may answer, so the folder decides and not the name.

    Args:
        name: path below a template folder, such as `wheels.Dockerfile.j2`.
        values: JSON-ready.
        folders: the user's template folders, first wins.

    Raises:
        EnvironmentProblem: a plug-in cannot be loaded.
        UsageError: the template is invalid.
    """
    folders = with_plugins(name, folders)
    if folders:
        source_of(name, folders)  # what is missing is told without a process
        from envkit.render.confined import render_confined  # noqa: PLC0415 - only where it runs

        return render_confined(name, values, folders)
    return render_template(name, values, folders)
