"""Plug-ins of installed distributions, declared as entry points of the groups in `GROUPS`.

A plug-in is imported only when it is used. To find plug-ins, the folders of `sys.path` are listed and the
`entry_points.txt` of each distribution is searched for the name of a group. That takes 1.4 ms with 158 distributions;
`importlib.metadata` takes 30 ms, and as long again to import, so it is imported only if there is a plug-in.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from envkit.ground.errors import EnvironmentProblem

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

FACTS, TEMPLATES, CHECKS, EXPORTS = "envkit.facts", "envkit.templates", "envkit.checks", "envkit.exports"
GROUPS = {
    FACTS: "rows that add to or override the compatibility data",
    TEMPLATES: "templates of Dockerfiles",
    CHECKS: "checks of a verification",
    EXPORTS: "kinds of `envkit export`",
}
_MARK = b"[envkit."  # how the header of each group begins in entry_points.txt
_FILE = "entry_points.txt"
_SHOWN = 300  # characters of a plug-in's error message


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    """One entry point of an installed distribution."""

    group: str
    name: str
    value: str  # 'package.module:ATTRIBUTE'
    distribution: str  # 'acme-envkit 1.0'
    entry: EntryPoint

    def __str__(self) -> str:
        return f"{self.distribution}: {self.name} = {self.value} ({self.group})"

    def to_json(self) -> dict[str, str]:
        """Return the declaration as data."""
        return {key: getattr(self, key) for key in ("distribution", "group", "name", "value")}

    def fault(self, why: object) -> EnvironmentProblem:
        """Return an error that names the plug-in; its own message is cut to one line."""
        text = " ".join(str(why).split())[:_SHOWN]
        return EnvironmentProblem(
            f"plug-in {self.distribution} ({self.group}: {self.name}): {text}",
            hint=f"install another version, or pip uninstall {self.distribution.partition(' ')[0]}",
        )

    def load(self) -> object:
        """Import the object of the entry point, which runs the plug-in's code.

        Raises:
            EnvironmentProblem: it cannot be imported.
        """
        try:
            return self.entry.load()
        # Whatever the plug-in's own code raises while it is imported.
        except (Exception, SystemExit) as error:
            raise self.fault(f"{self.value}: {type(error).__name__}: {error}") from error

    def path(self, *, folder: bool) -> Path:
        """Return the file or folder that the entry point names.

        Raises:
            EnvironmentProblem: it cannot be imported, or is not the path of a file or folder.
        """
        loaded = self.load()
        if not isinstance(loaded, str | os.PathLike):
            raise self.fault(f"{self.value} is of type {type(loaded).__name__}, not a path")
        path = Path(os.fspath(loaded))
        if not (path.is_dir() if folder else path.is_file()):
            raise self.fault(f"{path} is not a {'folder' if folder else 'file'}")
        return path


def fault_of(plugin: Plugin) -> str | None:
    """Return why a plug-in cannot be loaded, None if it can."""
    try:
        if plugin.group == EXPORTS:
            plugin.load()
        else:
            plugin.path(folder=plugin.group != FACTS)
    except EnvironmentProblem as error:
        return error.message
    return None


def of(group: str) -> tuple[Plugin, ...]:
    """Return the plug-ins of a group, sorted by distribution and name.

    Raises:
        EnvironmentProblem: the metadata of a plug-in cannot be read.
    """
    return tuple(plugin for plugin in installed() if plugin.group == group)


@cache
def installed() -> tuple[Plugin, ...]:
    """Return every plug-in of this installation.

    The current folder is not searched, because a checkout may come from anyone.

    Raises:
        EnvironmentProblem: the metadata of a plug-in cannot be read.
    """
    by_distribution: dict[str, list[Plugin]] = {}
    for folder in _declaring(tuple(sys.path)):
        name, plugins = _read(Path(folder))
        by_distribution.setdefault(name, plugins)  # the first on the path, which is the one that Python imports
    rows = [plugin for plugins in by_distribution.values() for plugin in plugins]
    return tuple(sorted(rows, key=lambda plugin: (plugin.group, plugin.distribution, plugin.name)))


def _declaring(folders: tuple[str, ...]) -> Iterator[str]:
    """Yield the metadata folders of distributions that declare an entry point of envkit."""
    here = os.path.realpath(os.curdir)
    for folder in dict.fromkeys(folders):
        if not folder or os.path.realpath(folder) == here:
            continue
        try:
            names = os.listdir(folder)  # noqa: PTH208 - a hundred Path objects cost more than the search
        except OSError:
            continue
        for name in names:
            if name.endswith((".dist-info", ".egg-info")) and _declares(f"{folder}/{name}/{_FILE}"):
                yield f"{folder}/{name}"


def _declares(file: str) -> bool:
    try:
        with open(file, "rb", buffering=0) as stream:  # noqa: PTH123 - as above
            return _MARK in stream.read()
    except OSError:  # most distributions have no entry points
        return False


def _read(folder: Path) -> tuple[str, list[Plugin]]:
    from importlib.metadata import PathDistribution  # noqa: PLC0415 - only if there is a plug-in

    try:
        distribution = PathDistribution(folder)
        # One spelling, so that two copies of a distribution on the path are seen as the same one.
        name = distribution.metadata["Name"].lower().replace("_", "-")
        label = f"{name} {distribution.version}"
        entries = [entry for entry in distribution.entry_points if entry.group in GROUPS]
    # Damaged metadata raises errors of many classes: KeyError, UnicodeDecodeError, those of the email parser.
    except Exception as error:
        raise EnvironmentProblem(
            f"plug-in {folder.name}: its metadata cannot be read: {type(error).__name__}",
            hint=f"pip uninstall {folder.name.partition('-')[0]}",
        ) from error
    return name, [
        Plugin(group=entry.group, name=entry.name, value=entry.value, distribution=label, entry=entry)
        for entry in entries
    ]
