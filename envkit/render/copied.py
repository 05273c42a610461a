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
    contents: dict[str, bytes] = {}
    executable = set()
    for index, (copied, files) in enumerate(zip(plan.copy, copying.files_of(plan), strict=True)):
        for file in files:
            name = f"{COPIED}/{index}/{PurePosixPath('/', file.target).relative_to(copied.into)}"
            contents[name] = file.data
            executable |= {name} if file.executable else set()
    return contents, frozenset(executable)


def copied_folders(plan: BuildPlan) -> list[list[str]]:
    """Folders of the context, each with the folder of the image that it fills."""
    return [[f"{COPIED}/{index}/", f"{pair.into.rstrip('/')}/"] for index, pair in enumerate(plan.copy)]
