"""Files of the user's project in a build context: one folder for each pair of `copy`, and the COPY that takes it."""

from __future__ import annotations

from pathlib import PurePosixPath

from envkit.plan import copying
from envkit.plan.model import BuildPlan

COPIED = "copied"
"""Folder of the build context."""


def copied_files(plan: BuildPlan) -> tuple[dict[str, bytes], frozenset[str]]:
    """The project's files by name in the context, and which of them are executable.

    Raises:
        UsageError: as `envkit.plan.copying.files_of`.
    """
    found: dict[str, bytes] = {}
    executable = set()
    for place, (copied, files) in enumerate(zip(plan.copy, copying.files_of(plan), strict=True)):
        for one in files:
            name = f"{COPIED}/{place}/{PurePosixPath('/', one.target).relative_to(copied.into)}"
            found[name] = one.data
            executable |= {name} if one.executable else set()
    return found, frozenset(executable)


def copied_folders(plan: BuildPlan) -> list[list[str]]:
    """Folders of the context, each with the folder of the image that it fills."""
    return [[f"{COPIED}/{place}/", f"{one.into.rstrip('/')}/"] for place, one in enumerate(plan.copy)]
