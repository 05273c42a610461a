"""One template's text, whoever wrote the template."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from envkit.render.engine import own_template, render_template


def text_of(name: str, values: dict[str, Any], folders: Sequence[Path]) -> str:
    """The text of a template: a built-in one is rendered here, a user's in a process with limits.

    Args:
        name: path below a template folder, such as `wheels.Dockerfile.j2`.
        values: JSON-ready.
        folders: the user's template folders, first wins.

    Raises:
        UsageError: the template is at fault.
    """
    if folders and own_template(name, folders):
        from envkit.render.confined import render_confined  # noqa: PLC0415 - a process, for a user's templates only

        return render_confined(name, values, folders)
    return render_template(name, values, folders)
