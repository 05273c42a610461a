"""Where envkit's own data lies: beside the package in a checkout, inside it in a wheel."""

from __future__ import annotations

from pathlib import Path

from envkit.ground.errors import EnvironmentProblem

_PACKAGE = Path(__file__).parents[1]


def folder(name: str) -> Path:
    """The folder `templates` or `images` of this installation.

    Raises:
        EnvironmentProblem: the installation is incomplete.
    """
    for candidate in (_PACKAGE / "_data" / name, _PACKAGE.parent / name):
        if candidate.is_dir():
            return candidate
    raise EnvironmentProblem(
        f"this installation has no {name} folder (looked beside {_PACKAGE})",
        hint="pip install --force-reinstall envkit",
    )
