"""The project's files (`copy` of a definition) in a build context, in one folder per entry."""

from __future__ import annotations

from pathlib import PurePosixPath

from envkit.plan import copying
from envkit.plan.model import BuildPlan

COPIED = "copied"
"""The folder in the build context."""


def copied_files(plan: BuildPlan) -> tuple[dict[str, bytes], frozenset[str]]:
    """Return the project's files by name in the context, and the names of executable ones.

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
    """Return the folders of the context, each with its target folder in the image."""
    return [[f"{COPIED}/{index}/", f"{pair.into.rstrip('/')}/"] for index, pair in enumerate(plan.copy)]
