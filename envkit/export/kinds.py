"""The kinds of `envkit export`: a table with one module for each, and those of plug-ins."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass

from envkit.export.model import Exporter, Option, Order
from envkit.ground import plugins
from envkit.ground.errors import EnvkitError, UsageError
from envkit.ground.plugins import Plugin
from envkit.ground.text import similar


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of export. Its module has `export`, an `Exporter`, and OPTIONS, a mapping of names to `Option`."""

    module: str
    about: str
    file: str  # path of its main file below --out
    plugin: Plugin | None = None  # the plug-in that adds it

    def exporter(self) -> Exporter:
        """Return the function that makes its files."""
        function: Exporter = importlib.import_module(self.module).export
        return function if self.plugin is None else _guarded(function, self.plugin)

    def options(self) -> Mapping[str, Option]:
        """Return its options for `--set`."""
        declared: Mapping[str, Option] = importlib.import_module(self.module).OPTIONS
        return declared


KINDS = {
    "bake": Kind(
        module="envkit.export.bake",
        about="a BuildKit bake file and the build context of every image",
        file="docker-bake.hcl",
    ),
    "github": Kind(
        module="envkit.export.github",
        about="a GitHub Actions workflow that builds, and verifies on GPU runners",
        file=".github/workflows/envkit.yml",
    ),
    "gitlab": Kind(
        module="envkit.export.gitlab",
        about="a GitLab pipeline that builds without a daemon, and verifies on GPU runners",
        file=".gitlab-ci.yml",
    ),
    "devcontainer": Kind(
        module="envkit.export.devcontainer",
        about="dev containers for editors, from an image in a registry or from its build context",
        file=".devcontainer/devcontainer.json",
    ),
    "kubernetes": Kind(
        module="envkit.export.kubernetes",
        about="an unprivileged Job that builds, Jobs and DaemonSets that verify on nodes with GPUs",
        file="verify.yaml",
    ),
    "slurm": Kind(
        module="envkit.export.slurm",
        about="Slurm job arrays that build and verify every image, and a script that prints the verdicts",
        file="verify.sbatch",
    ),
}


def known() -> dict[str, Kind]:
    """Return every kind by its name.

    Raises:
        EnvironmentProblem: a plug-in cannot be loaded, or has the name of another kind.
    """
    kinds = dict(KINDS)
    for plugin in plugins.of(plugins.EXPORTS):
        if plugin.name in kinds:
            raise plugin.fault(f"{plugin.name!r} is the name of another export kind")
        kinds[plugin.name] = _added(plugin)
    return kinds


def _added(plugin: Plugin) -> Kind:
    module = plugin.load()
    about, file = getattr(module, "ABOUT", None), getattr(module, "FILE", None)
    options = getattr(module, "OPTIONS", None)
    if not isinstance(about, str) or not isinstance(file, str) or not callable(getattr(module, "export", None)):
        raise plugin.fault(f"{plugin.value} must define the strings ABOUT and FILE and the function export")
    if not isinstance(options, Mapping) or not all(isinstance(option, Option) for option in options.values()):
        raise plugin.fault(f"{plugin.value}: OPTIONS is not a mapping of names to envkit.export.model.Option")
    if ":" in plugin.value:
        raise plugin.fault(f"{plugin.value} names an object, not a module")
    return Kind(module=plugin.value, about=about, file=file, plugin=plugin)


def _guarded(export: Exporter, plugin: Plugin) -> Exporter:
    """Return the exporter of a plug-in, with its failures translated to errors that name the plug-in."""

    def guarded(order: Order) -> Mapping[str, str]:
        try:
            files = dict(export(order))
        except EnvkitError:
            raise
        except Exception as error:
            raise plugin.fault(f"{plugin.value}.export: {type(error).__name__}: {error}") from error
        if not files or not all(isinstance(text, str) for pair in files.items() for text in pair):
            raise plugin.fault(f"{plugin.value}.export did not return a mapping of file names to texts")
        return files

    return guarded


def kind(name: str) -> Kind:
    """Return the kind with a name.

    Raises:
        EnvironmentProblem: the name is not built in, and a plug-in cannot be loaded.
        UsageError: the name is unknown.
    """
    if name in KINDS:
        return KINDS[name]
    kinds = known()
    if name not in kinds:
        close = similar(name, kinds)
        hint = f"did you mean `envkit export {close[0]}`?" if close else "envkit export --list"
        raise UsageError(f"unknown export kind {name!r:.80}", hint=hint)
    return kinds[name]


def options(name: str, given: Mapping[str, str]) -> dict[str, str]:
    """Return the options of a kind: the given values, and defaults for the others.

    Raises:
        UsageError: an option is unknown or its value is invalid.
    """
    known = kind(name).options()
    for key in given:
        if key not in known:
            close = similar(key, known)
            hint = f"did you mean --set {close[0]}={known[close[0]].default}?" if close else "envkit export --list"
            raise UsageError(f"--set {key!r:.80}: unknown option of {name}", hint=hint)
    return {key: option.check(key, given.get(key, option.default)) for key, option in known.items()}
