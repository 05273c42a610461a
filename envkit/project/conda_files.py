"""Read environment.yml and pixi.toml: conda specs, channels, and the packages of their pip sections."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from envkit.ground import strictyaml
from envkit.ground.errors import UsageError
from envkit.ground.versions import parse_constraint
from envkit.plan import conda_specs, names, other_systems
from envkit.plan.requirements import Contents, Line, Setting, included, not_for, skip, sort, take
from envkit.project import conda_exports
from envkit.project.choice import DEFAULT, Choice
from envkit.project.toml_files import lines_of, parsed, requirement_lines, table, texts

_FILE = re.compile(r"(?:-r|--requirement|(-c|--constraint))[\s=]*(\S.*)")  # in a section `pip`
_FIELDS = {
    "python": "python",
    "pytorch": "torch",
    "pytorch-gpu": "torch",
    "torchvision": "torchvision",
    "torchaudio": "torchaudio",
    "pytorch-cuda": "cuda",
    "cudatoolkit": "cuda",
    "cuda-version": "cuda",
}
_CPU, _CPU_TORCH = ("cpuonly", "pytorch-cpu"), ("pytorch-cpu",)
_TOOLKIT = frozenset(["cuda", "cuda-toolkit", "cuda-nvcc", "cuda-compiler", "cudatoolkit-dev", "cuda-libraries-dev"])
# `nvidia/label/cuda-12.4.1`: a channel with the packages of one toolkit
_OF_CUDA = re.compile(r"\bnvidia/label/cuda-(\d+\.\d+)")
_FOR_TORCH = frozenset(["pytorch", "nvidia"])
_DEFAULTS = frozenset(["defaults", "anaconda", "main", "r"])


def environment(name: str, folder: Path) -> Contents:
    """Read an environment.yml.

    Raises:
        UsageError: the file is not an environment.
    """
    tree, places = strictyaml.read_with_places(strictyaml.text_of(folder / name, root=folder), name)
    if not isinstance(tree, dict):
        why = "is empty" if tree is None else "is not an environment: it has no keys"
        raise UsageError(f"{name} {why}", hint="envkit init FILE to read another file")

    def line(text: str, *keys: str | int) -> Line:
        return Line(where=f"{name}:{places.get(keys, (1, 1))[0]}", text=text)

    if not _ENVIRONMENT & tree.keys():
        is_compose = "services" in tree
        raise UsageError(
            f"{name} is not an environment: it has no dependencies",
            hint=f"envkit doctor --file {name}" if is_compose else "envkit init FILE to read another file",
        )
    requirements = Contents()
    for key in tree.keys() - {"name", "prefix", *_ENVIRONMENT}:
        requirements += skip(line(key, key), "unknown key")
    channels = [(channel, line(channel, "channels", at)) for at, channel in enumerate(texts(tree.get("channels")))]
    requirements += of_channels(channels)
    variables = tree.get("variables")
    for key, value in (variables if isinstance(variables, dict) else {}).items():
        requirements += variable(line(f"{key}={value}", "variables", key), key, str(value))
    listed = _list(tree.get("dependencies"))
    specs = [spec for spec in (conda_specs.parse(entry) for entry in listed if isinstance(entry, str)) if spec]
    is_export = conda_exports.is_export(specs)
    for at, entry in enumerate(listed):
        if isinstance(entry, str):
            requirements += conda(line(entry, "dependencies", at), entry, export=is_export)
        elif isinstance(entry, dict):
            pip = texts(entry.get("pip"))
            lines = [line(text, "dependencies", at, "pip", position) for position, text in enumerate(pip)]
            requirements += sort(text for text in lines if not _FILE.fullmatch(text.text))
            for text in lines:
                if file := _FILE.fullmatch(text.text):
                    requirements += included(text, file[2].strip("\"'"), folder, constraint=file[1] is not None)
    return with_source(requirements, {channel_name(channel) for channel, _ in channels})


_ENVIRONMENT = frozenset(["dependencies", "channels", "variables"])


def is_environment(path: Path) -> bool:
    """Return whether a YAML file is an environment, not an image definition; False if it cannot be read."""
    try:
        tree, _ = strictyaml.read_with_places(strictyaml.text_of(path, root=path.parent), path.name)
    except UsageError:
        return False
    return isinstance(tree, dict) and "dependencies" in tree and "schema" not in tree


def pixi(name: str, folder: Path, choice: Choice = DEFAULT) -> Contents:
    """Read a pixi.toml, or the table `tool.pixi` of a pyproject.toml: one of its environments.

    Raises:
        UsageError: the file is not TOML.
    """
    text = strictyaml.text_of(folder / name, root=folder)
    tree = parsed(name, text)
    tree = table(tree, "tool", "pixi") or tree
    where = lines_of(name, text)
    workspace = table(tree, "workspace") or table(tree, "project")
    channels = [
        channel if isinstance(channel, str) else str(channel.get("channel", ""))
        for channel in _list(workspace.get("channels"))
        if isinstance(channel, str | Mapping)
    ]
    requirements = of_channels([(channel, where(f"the channel {channel}", channel)) for channel in channels])
    own, features = _pixi_part(tree, where, choice), table(tree, "feature")
    parts = {label: _pixi_part(table(features, label), where, choice) for label in features}
    chosen = _environment_of(table(tree, "environments"), own, parts, choice, name)
    requirements += own if chosen.with_default else Contents()
    for label, part in parts.items():
        if label in chosen.features:
            requirements += part
        elif part != Contents():
            line = where(f"feature.{label}", f"feature.{label}")
            requirements += skip(line, f"the environment {chosen.name} does not have it{chosen.others}")
    for whole in (tree, *(table(features, label) for label in chosen.features)):
        activation = table(whole, "activation")
        for key, value in table(activation, "env").items():
            requirements += variable(where(f"{key}={value}", f"{key} ="), key, str(value))
        if activation.keys() - {"env"}:
            requirements += skip(where("[activation]", "activation"), _PIXI_REASONS["activation"])
    if tree.get("tasks"):
        requirements += skip(where("[tasks]", "tasks"), _PIXI_REASONS["tasks"], harmless=True)
    return with_source(requirements, {channel_name(channel) for channel in channels})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Environment:
    """An environment of a pixi project."""

    name: str
    features: tuple[str, ...]
    with_default: bool = True
    others: str = ""  # for messages: how another one is chosen


def _environment_of(
    tree: Mapping[str, Any], own: Contents, parts: Mapping[str, Contents], choice: Choice, file: str
) -> _Environment:
    """Return the environment to read: the one named, else `default`, if torch is not only in another one.

    Raises:
        UsageError: the project has no environment of this name.
    """
    known = {
        name: _Environment(
            name=name,
            features=tuple(texts(row if isinstance(row, list) else table(tree, name).get("features"))),
            with_default=table(tree, name).get("no-default-feature") is not True,
        )
        for name, row in {"default": [], **tree}.items()
    }
    if choice.environment is not None and choice.environment not in known:
        raise UsageError(
            f"{file} has no environment {choice.environment!r:.80}", hint=f"--environment {', '.join(known)}"
        )

    def whole(one: _Environment) -> Contents:
        return sum(
            (parts[label] for label in one.features if label in parts), start=own if one.with_default else Contents()
        )

    # `max` takes the first of equal ones, and `default` is the first.
    named = known.get(choice.environment or "")
    chosen = named or max(known.values(), key=lambda one: _fits(whole(one), cpu=choice.cpu))
    if len(known) == 1 and not tree:  # without environments, features are a way to sort packages
        return replace(chosen, features=tuple(label for label, part in parts.items() if _fits(part, cpu=choice.cpu)))
    others = ", ".join(name for name in known if name != chosen.name)
    return replace(chosen, others=f"; envkit init --environment takes another one: {others}" if others else "")


def _fits(contents: Contents, *, cpu: bool) -> int:
    """Return how well an environment fits an image for torch: with torch, and for the wanted device."""
    if not contents.of("torch") and not contents.of("cuda"):
        return 0
    is_cpu = bool(contents.of("cpu"))
    has_device = bool(contents.of("cpu" if cpu else "cuda"))
    return 2 if is_cpu == cpu and has_device else 1


def has_pixi(path: Path) -> bool:
    """Return whether a pyproject.toml, known to be valid TOML, has the table `tool.pixi`."""
    return bool(table(parsed(path.name, strictyaml.text_of(path, root=path.parent)), "tool", "pixi"))


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


_PIXI_REASONS = {
    "tasks": "tasks run with pixi; put one of them under command",
    "activation": "activation scripts are shell code, which definitions cannot contain; put variables under env",
}


def _pixi_part(tree: Mapping[str, Any], where: Any, choice: Choice) -> Contents:
    requirements = Contents()
    system = table(tree, "system-requirements")
    if "cuda" in system:
        line = where(f"cuda = {system['cuda']}", "cuda")
        requirements += skip(line, "a minimum for the driver; the CUDA version of torch decides", harmless=True)
    for kind in ("dependencies", "host-dependencies", "build-dependencies"):
        for key, wanted in table(tree, kind).items():
            requirements += _pixi_conda(key, wanted if isinstance(wanted, Mapping) else {"version": str(wanted)}, where)
    lines, elsewhere = requirement_lines(table(tree, "pypi-dependencies"), where)
    options = table(tree, "pypi-options")
    urls = [str(options["index-url"])] if "index-url" in options else []
    for url in (*urls, *texts(options.get("extra-index-urls"))):
        lines.append(where(f"--extra-index-url {url}", url))
    pages = options.get("find-links")
    for row in pages if isinstance(pages, list) else []:
        if isinstance(row, Mapping):
            page = str(row.get("url") or row.get("path"))
            lines.append(where(f"--find-links {page}", page))
    requirements += sort(lines) + elsewhere
    for platform in table(tree, "target"):
        if platform in (choice.platform, "linux", "unix"):
            requirements += _pixi_part(table(table(tree, "target"), platform), where, choice)
        else:
            line = where(f"target.{platform}", f"target.{platform}")
            requirements += not_for(line, "it is not for this system")
    return requirements


def _pixi_conda(name: str, row: Mapping[str, Any], where: Any) -> Contents:
    for kind in ("git", "url", "path"):
        if kind in row:
            return skip(
                where(f"{name} from {kind} {row[kind]}", f"{name} ="), "only packages of a channel can be locked"
            )
    version, build = row.get("version", "*"), row.get("build", "")
    prefix = f"{row['channel']}::" if "channel" in row else ""
    spec = f"{prefix}{name} {'' if version == '*' else version} {build}".strip()
    return conda(where(spec, f"{name} ="), spec)


def conda(line: Line, spec: str, *, export: bool = False) -> Contents:
    """Classify a conda spec; `export` is whether `conda env export` wrote it."""
    parts = conda_specs.parse(spec)
    if parts is None:
        return skip(line, "is not a conda spec with a name, a version and a build")
    name, version = parts.name.lower(), parts.version
    if name in _FIELDS:
        found = conda_specs.device(parts.build)
        own = _versioned(line, _FIELDS[name], version) + _source(line, parts)
        return own + (_versioned(line, *found) if found else Contents())
    if name in _CPU:
        return take(line, "cpu", "true") + (_versioned(line, "torch", version) if name in _CPU_TORCH else Contents())
    # In an export, `cuda-libraries-dev` is what pytorch-cuda requires.
    if name in _TOOLKIT and not (export and name == "cuda-libraries-dev"):
        return take(line, "flavor", "devel")
    if system := other_systems.of_conda(name):
        return not_for(line, system)
    why = conda_exports.unneeded(parts, export=export)
    return skip(line, why, harmless=version in ("", "*")) if why else _package(line, parts)


def _source(line: Line, parts: conda_specs.CondaSpec) -> Contents:
    """Return the source of torch that a spec with a channel names: `pytorch::pytorch`."""
    sources = {"pytorch": "conda-pytorch", conda_specs.FORGE: "conda-forge"}
    source = sources.get(channel_name(parts.channel)) if parts.channel else None
    is_torch = _FIELDS.get(parts.name.lower()) == "torch"
    return take(line, "source", source) if source and is_torch else Contents()


def _package(line: Line, parts: conda_specs.CondaSpec) -> Contents:
    spec, note = conda_exports.without_build(parts)
    plain = spec.text
    why = names.conda_spec(plain)
    if parts.channel and channel_name(parts.channel) != conda_specs.FORGE:
        why = f"packages from the channel {parts.channel} cannot be installed; only {conda_specs.FORGE} is used"
    if why:
        return skip(line, why)
    return Contents(settings=(Setting(field="conda", value=plain, line=line, note=note),))


def _versioned(line: Line, key: str, version: str) -> Contents:
    if version in ("", "*"):
        return take(line, key, "")
    if key == "cpu":
        return take(line, key, version)
    value = version.removesuffix(".*") if key == "cuda" and version.count(".") > 1 else version
    try:
        parse_constraint(value, key)
    except UsageError:
        return skip(line, f"{version} is not a version of {key}")
    return take(line, key, value)


def of_channels(channels: Iterable[tuple[str, Line]]) -> Contents:
    """Classify channels: envkit uses conda-forge, and the pytorch channel only for the torch of that channel."""
    requirements = Contents()
    for text, line in channels:
        name = channel_name(text)
        if name in _DEFAULTS:
            requirements += skip(
                line, f"Anaconda's default channels are never used; packages come from {conda_specs.FORGE}"
            )
        elif label := _OF_CUDA.search(text):
            requirements += take(line, "cuda", label[1])
        elif name in _FOR_TORCH:
            requirements += skip(line, "added automatically if the source of torch needs it", harmless=True)
        elif name not in (conda_specs.FORGE, "nodefaults"):
            requirements += skip(
                line, f"only {conda_specs.FORGE} is used; packages that only this channel has will be missing"
            )
    return requirements


def channel_name(text: str) -> str:
    """Return the name of a channel without its server and label: `https://HOST/conda-forge/label/x` is conda-forge."""
    parts = text.partition("://")[2].split("/")[1:] if "://" in text else text.split("/")
    plain = [part for part in parts if part] or [text]
    return plain[plain.index("label") - 1] if "label" in plain[1:] else plain[-1]


def with_source(contents: Contents, channels: set[str]) -> Contents:
    """Add the source of torch if it is a conda package: the channels decide. For pip it stays PyTorch's own index."""
    # A line with `torch` is a pip requirement; the conda package is called `pytorch`.
    by_conda = [setting for setting in contents.of("torch") if not re.match(r"torch\b", setting.line.text)]
    if not by_conda or contents.of("source"):
        return contents
    source = "conda-pytorch" if "pytorch" in channels else "conda-forge"
    return contents + take(by_conda[0].line, "source", source)


def variable(line: Line, name: str, value: str) -> Contents:
    """Classify an environment variable."""
    why = names.variable(name, value)
    if why:  # the value may be a secret
        return skip(Line(where=line.where, text=f"the variable {name}"), why)
    return take(line, "env", f"{name}={value}")
