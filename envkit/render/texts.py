"""Render one template: a built-in one, the user's or a plug-in's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from envkit.render.engine import render_template, source_of, with_plugins


def text_of(name: str, values: dict[str, Any], folders: Sequence[Path]) -> str:
    """Return the text of a template, rendered in a process with limits if there is a user's template folder.

    The folder decides, not the template: a built-in template includes others by names that the folder may override.

    Args:
        name: path below a template folder, such as `wheels.Dockerfile.j2`.
        values: JSON-ready.
        folders: the user's template folders; the first one that has a template wins.

    Raises:
        EnvironmentProblem: a plug-in cannot be loaded.
        UsageError: the template is invalid.
    """
    folders = with_plugins(name, folders)
    if folders:
        source_of(name, folders)  # reports a missing template without starting a process
        from envkit.render.confined import render_confined  # noqa: PLC0415 - rarely needed

        return render_confined(name, values, folders)
    return render_template(name, values, folders)
