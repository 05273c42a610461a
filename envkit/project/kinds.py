"""The kinds of a project's files, by their names, and by their content where a name says too little."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from envkit.ground import foreign, strictyaml, trees
from envkit.ground.errors import UsageError

NAMES = (
    "cog.yaml", "pixi.toml", "environment.yml", "environment.yaml", "pyproject.toml", "requirements.txt", "Pipfile",
    "Dockerfile", "setup.cfg", "setup.py",
)  # fmt: skip
"""The kinds, which are the names that a folder is searched for, in this order."""
# Locks of other tools, and the files that they are made from, which say what is wanted.
_LOCKS = {
    "uv.lock": "pyproject.toml", "poetry.lock": "pyproject.toml", "pdm.lock": "pyproject.toml",
    "pylock.toml": "pyproject.toml", "Pipfile.lock": "Pipfile", "pixi.lock": "pixi.toml",
    "conda-lock.yml": "environment.yml",
}  # fmt: skip
_DEVCONTAINER = "devcontainer.json"
# The file may have comments, so it is not JSON.
_BUILT = re.compile(r'"dockerfile"\s*:\s*"([^"$\\]+)"', re.IGNORECASE)
_PYPROJECT = frozenset(["project", "build-system", "dependency-groups", "tool"])
# The first line of a Dockerfile that is no comment.
_FIRST = re.compile(r"(?:FROM|ARG)\s", re.IGNORECASE)


def kind_of(path: Path) -> str | None:
    """Return the kind of a project's file, one of `NAMES`; None if it is none.

    Raises:
        UsageError: it is a lock of another tool.
    """
    name = path.name
    if name in _LOCKS:
        raise UsageError(
            f"{name} is a lock of another tool, which only that tool installs",
            hint=f"envkit init {_LOCKS[name]}, the file that it is made from",
        )
    if name in (_DEVCONTAINER, f".{_DEVCONTAINER}"):
        raise UsageError(f"{name} only configures a container, and says nothing of torch", hint=_of_devcontainer(path))
    if name in NAMES:
        return name
    if has_name_of_dockerfile(name):
        return "Dockerfile"
    if path.suffix in (".txt", ".in"):
        return "requirements.txt"
    if path.suffix in (".yml", ".yaml"):
        return "cog.yaml" if _is_cog(path) else "environment.yml"
    if path.suffix == ".toml":
        return _kind_of_toml(path)
    return "Dockerfile" if _FIRST.match(_first_line(path)) else None


def _of_devcontainer(path: Path) -> str:
    """Return the next command for a dev container: with the Dockerfile that it is built from, if it names one."""
    named = _BUILT.search(_text(path))
    built = path.parent / named[1] if named else None
    if built is None or not foreign.is_file(built):
        return "envkit init FILE reads a Dockerfile or a requirements file"
    return f"envkit init {shlex.quote(str(built))}, the Dockerfile that it is built from"


def has_name_of_dockerfile(name: str) -> bool:
    """Return whether a file is a Dockerfile by its name: `Dockerfile.gpu`, `Containerfile`, `app.dockerfile`."""
    return name.startswith(("Dockerfile", "Containerfile")) or name.lower().endswith(".dockerfile")


def _is_cog(path: Path) -> bool:
    try:
        tree = strictyaml.read_file(path, root=path.parent)
    except UsageError:
        return False
    return isinstance(tree, dict) and isinstance(tree.get("build"), dict) and "dependencies" not in tree


def _kind_of_toml(path: Path) -> str | None:
    try:
        tree = trees.from_toml(_text(path), str(path))
    except UsageError:
        return "pyproject.toml"  # whose reader says what is wrong
    project = tree.get("project")
    if "workspace" in tree or (isinstance(project, dict) and "channels" in project):
        return "pixi.toml"
    if "packages" in tree and "source" in tree:
        return "Pipfile"
    return "pyproject.toml" if _PYPROJECT & tree.keys() else None


def _first_line(path: Path) -> str:
    lines = (line.strip() for line in _text(path).splitlines())
    return next((line for line in lines if line and not line.startswith("#")), "")


def _text(path: Path) -> str:
    try:
        return strictyaml.text_of(path, root=path.parent)
    except UsageError:
        return ""
