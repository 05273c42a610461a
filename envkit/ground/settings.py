"""Settings with their origin: flag > ENVKIT_* > envkit.toml or [tool.envkit] > the user's own file > default.

A checkout may come from anyone, so each setting declares whether the file of a checkout may set it, and why.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

from envkit.ground import engine_names, foreign, schemas, trees
from envkit.ground.errors import Faults, UsageError, masked
from envkit.ground.sizes import parse_size
from envkit.ground.text import neutral, similar


@dataclass(frozen=True, slots=True, kw_only=True)
class Mirrors:
    """The mirrors of all download sources. None = the public source, or the client's own configuration."""

    registry: str | None = None  # host[:port] that serves docker.io's images
    conda_channel_alias: str | None = None  # URL: conda-forge is <alias>/conda-forge
    miniconda: str | None = None  # URL of the folder that holds the Miniconda installers
    miniconda_image: str | None = None  # image with conda in /opt/conda, instead of the installer
    pytorch_index: str | None = None  # URL whose sub-folders are cu126, cpu, ...
    python_index: str | None = None  # simple index URL for pip inside the build
    debian_mirror: str | None = None  # URL, for apt-get in builds and for bootstrapped bases
    debian_security_mirror: str | None = None  # URL of the security archive, in addition to debian_mirror
    ubuntu_mirror: str | None = None  # URL, for apt-get in builds
    rpm_mirror: str | None = None  # URL of the distribution's tree, for yum and dnf in builds
    ca_bundle: str | None = None  # PEM file of authorities to trust: in builds, for downloads, for registries


ENGINES = (engine_names.AUTO, *engine_names.ENGINES)
RUNNERS = (engine_names.AUTO, *engine_names.RUNNERS)
NETWORKS = ("auto", "default", "host", "none")  # of build steps
PRESETS = ("tuna", "aliyun", "sjtu", "ustc")  # the rows of presets.yaml, which is read only if a preset is set
FLAT = "flat+"
"""Prefix of the URL of a wheel mirror whose pages list files, as for `pip install --find-links`."""


class Use(Enum):
    """What settings are loaded for."""

    BUILDS = "builds"  # to make, verify and run images
    HOST = "host"  # to install into an environment of this machine, whose programs run without isolation


class Checkout(Enum):
    """Whether the file of a checkout may set a setting."""

    YES = "yes"
    BUILDS = "for builds"  # not for `Use.HOST`
    NO = "no"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting: its key in envkit.toml, its meaning, its default and its valid values."""

    key: str
    meaning: str
    checkout: Checkout
    reason: str  # why a checkout's file may set it or not, as the end of "because ..."
    default: str | None = None
    choices: tuple[str, ...] = ()
    kind: str = "text"  # or 'url', 'index', 'host', 'size', 'requirement'
    flag: str | None = None  # the flag that sets it for one run

    @property
    def variable(self) -> str:
        """Name of the environment variable."""
        return "ENVKIT_" + self.key.upper()


def either(words: tuple[str, ...]) -> str:
    """Return "one, two or three"."""
    return f"{', '.join(words[:-1])} or {words[-1]}"


# Reasons that several settings share.
_ON_THE_HOST = "envkit reads or runs it as you, on this machine"
_SOURCE = "a project names where its images come from, and envkit says so; what runs on this machine comes from yours"
_LABEL = "it is only a label of the project's own images"
_LIMIT = "it protects this machine"

SETTINGS = (
    Setting(
        key="engine", meaning=f"engine that builds: {either(ENGINES)}", default="auto", choices=ENGINES,
        flag="--engine", checkout=Checkout.YES, reason="every engine isolates the steps of a build",
    ),
    Setting(
        key="runner", meaning=f"runner that verifies: {either(RUNNERS)}", default="auto", choices=RUNNERS,
        flag="--runner", checkout=Checkout.NO, reason="it decides how an image is isolated from this machine",
    ),
    Setting(
        key="run_memory",
        meaning="memory limit of a run in an image, e.g. 16GB; unset = 3/4 of the machine's memory or limit",
        kind="size", flag="--memory", checkout=Checkout.NO, reason=_LIMIT,
    ),
    Setting(
        key="preset", choices=PRESETS, flag="--preset",
        meaning=f"mirrors to download from, by name: {either(PRESETS)}; settings of the same file override it",
        checkout=Checkout.BUILDS, reason=_SOURCE,
    ),
    Setting(
        key="registry", meaning="host[:port] of a mirror of docker.io", kind="host",
        checkout=Checkout.BUILDS, reason=_SOURCE,
    ),
    Setting(
        key="conda_channel_alias", meaning="base URL of conda channels such as conda-forge", kind="url",
        checkout=Checkout.BUILDS, reason=_SOURCE,
    ),
    Setting(
        key="miniconda", meaning="URL of the folder with Miniconda installers", kind="url",
        checkout=Checkout.BUILDS, reason=_SOURCE,
    ),
    Setting(
        key="miniconda_image", meaning="image that has conda in /opt/conda, used instead of the installer",
        checkout=Checkout.BUILDS, reason=_SOURCE,
    ),
    Setting(
        key="pytorch_index",
        meaning=f"URL of the PyTorch wheel indexes; {FLAT}URL for a mirror whose pages list files (--find-links)",
        kind="index", checkout=Checkout.BUILDS, reason=_SOURCE,
    ),
    Setting(
        key="python_index", meaning="URL of the Python index for pip inside builds", kind="url",
        checkout=Checkout.BUILDS, reason=_SOURCE,
    ),
    Setting(
        key="debian_mirror", meaning="Debian mirror for apt-get in builds and for bootstrapped base images", kind="url",
        checkout=Checkout.BUILDS, reason=_SOURCE,
    ),
    Setting(
        key="debian_security_mirror", meaning="mirror of Debian's security archive, a separate tree", kind="url",
        checkout=Checkout.BUILDS, reason=_SOURCE,
    ),
    Setting(
        key="ubuntu_mirror", meaning="Ubuntu mirror for apt-get in builds", kind="url",
        checkout=Checkout.BUILDS, reason=_SOURCE,
    ),
    Setting(
        key="rpm_mirror", meaning="mirror of the base's RPM distribution, for yum and dnf in builds", kind="url",
        checkout=Checkout.BUILDS, reason=_SOURCE,
    ),
    Setting(
        key="ca_bundle", meaning="PEM file of certificate authorities to trust in builds, downloads and registries",
        checkout=Checkout.NO, reason=_ON_THE_HOST,
    ),
    Setting(
        key="build_network", meaning=f"network of build steps: {either(NETWORKS)}", default="auto", choices=NETWORKS,
        flag="--network", checkout=Checkout.NO, reason="the host's network reaches the servers of this machine",
    ),
    Setting(
        key="docker_cli", meaning="docker client for BuildKit builds", default="docker",
        checkout=Checkout.NO, reason=_ON_THE_HOST,
    ),
    Setting(
        key="facts", meaning="YAML file that adds to or overrides the compatibility data",
        checkout=Checkout.NO, reason=_ON_THE_HOST,
    ),
    Setting(
        key="templates", meaning="folder whose templates override the built-in ones",
        checkout=Checkout.NO, reason=_ON_THE_HOST,
    ),
    Setting(
        key="wheel_dir", meaning="folder of wheels that the embedded engine uses before it downloads",
        checkout=Checkout.NO, reason=_ON_THE_HOST,
    ),
    Setting(
        key="image_source", kind="url",
        meaning="URL of the source code of images, as their label org.opencontainers.image.source",
        checkout=Checkout.YES, reason=_LABEL,
    ),
    Setting(
        key="image_revision", meaning="revision of that source, as the label org.opencontainers.image.revision",
        checkout=Checkout.YES, reason=_LABEL,
    ),
    Setting(
        key="image_licenses",
        meaning="SPDX expression of the licenses of images, as the label org.opencontainers.image.licenses",
        checkout=Checkout.YES, reason=_LABEL,
    ),
    Setting(
        key="cache_limit", meaning="size to prune the cache to after a build, e.g. 20GB; unset = never",
        kind="size", checkout=Checkout.NO, reason="it deletes files from your cache",
    ),
    Setting(
        key="requirement", kind="requirement", flag="--requirement",
        meaning="what exported jobs install as envkit: a file by hash, a commit, a version by hash, an image by digest",
        checkout=Checkout.NO, reason="exported jobs run it with their secrets",
    ),
    Setting(
        key="log_dir", meaning="folder for complete engine logs", checkout=Checkout.NO, reason=_ON_THE_HOST,
    ),
)  # fmt: skip
SCHEMA = "envkit.settings/1"
_HINT = "envkit config lists every setting"
_URL = re.compile(r"(https?://[^/]|file:///)", re.IGNORECASE)
_URL_FORM = "^([Hh][Tt][Tt][Pp][Ss]?://[^/]|[Ff][Ii][Ll][Ee]:///)"  # the same for JSON Schema, which has no flags
_INDEX_FORM = _URL_FORM.replace("^", r"^(flat\+)?", 1)
_HOST = re.compile(r"[A-Za-z0-9.\-]+(:\d{1,5})?|\[[0-9A-Fa-f:.]+\](:\d{1,5})?")
NO_BUNDLE = "none"  # value of `ca_bundle`: only the system's authorities, and no file that other variables name
_BY_KEY = {setting.key: setting for setting in SETTINGS}


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of `envkit.toml` and of `[tool.envkit]`."""
    forms = {setting.key: schemas.described(_form(setting), setting.meaning) for setting in SETTINGS}
    return schemas.document(SCHEMA, "Settings of envkit", schemas.closed(forms))


def _form(setting: Setting) -> dict[str, Any]:
    if setting.choices:
        return {"enum": list(setting.choices)}
    pattern = {"url": _URL_FORM, "index": _INDEX_FORM, "host": f"^({_HOST.pattern})$"}.get(setting.kind)
    return {"type": "string", **({"pattern": pattern} if pattern else {})}


@dataclass(frozen=True, slots=True)
class Value:
    """A setting's value and its origin: `flag`, `ENVKIT_X`, a file's path, or `default`."""

    text: str | None
    origin: str


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings, resolved."""

    values: Mapping[str, Value]
    ignored: Mapping[str, Value] = field(default_factory=dict)  # what a checkout's file may not set
    sources: Mapping[str, Value] = field(default_factory=dict)  # where a checkout's file lets builds download from

    @property
    def notes(self) -> list[str]:
        """Notes for the user about the values in a checkout's file that are ignored."""
        return [
            f"{value.origin}: {key} is ignored, because {_BY_KEY[key].reason}; "
            f"set {_BY_KEY[key].variable}, or {key} in your own ~/.config/envkit/envkit.toml"
            for key, value in self.ignored.items()
        ]

    @property
    def sources_note(self) -> str | None:
        """One note about the download sources that a checkout's file sets, if it sets any."""
        if not self.sources:
            return None
        given = ", ".join(f"{key} = {neutral(masked(str(value.text)))[:200]}" for key, value in self.sources.items())
        return f"{next(iter(self.sources.values())).origin} sets where images come from: {given}"

    def get(self, key: str) -> str | None:
        """Return the value of a setting, None if it is unset."""
        return self.values[key].text

    def mirrors(self) -> Mirrors:
        """Return the settings of download sources."""
        return Mirrors(**{f.name: self.values[f.name].text for f in fields(Mirrors)})


def load(
    flags: Mapping[str, str | None], environ: Mapping[str, str], folder: Path, *, use: Use = Use.BUILDS
) -> Settings:
    """Resolve every setting for a run in `folder`.

    Raises:
        UsageError: a settings file is not TOML, has an unknown key or a value that is not a string, or a value is
            invalid.
    """
    settings = read(flags, environ, folder, use=use)
    faults = Faults()
    hint = None
    for setting in SETTINGS:
        value = settings.values[setting.key]
        if fault := fault_of(setting, value):
            hint = hint or _hint(setting, value)
            faults.say(fault)
    faults.refuse(hint, most=len(SETTINGS))
    return settings


def _hint(setting: Setting, value: Value) -> str:
    """Return the most similar valid value as it is typed, or how to write one."""
    near = similar(value.text or "", setting.choices) or list(setting.choices[:1])
    if near and value.origin in ("flag", setting.variable):
        return f"{setting.flag} {near[0]}" if value.origin == "flag" else f"{setting.variable}={near[0]}"
    if setting.kind == "requirement":
        from envkit.ground.requirement import WAYS  # noqa: PLC0415 - as in `fault_of`

        return WAYS[0]
    if setting.kind == "size":
        return "write a number and a unit: 20GB, 512MiB"
    return "envkit config shows every setting with its value"


def fault_of(setting: Setting, value: Value) -> str | None:
    """Return why a value is invalid for its setting, with its origin; None if it is valid."""
    text = value.text
    if text is None or value.origin == "default":
        return None
    what = {"flag": setting.flag or setting.key, setting.variable: setting.variable}.get(
        value.origin, f"{value.origin}: {setting.key}"
    )
    if setting.choices and text not in setting.choices:
        return f"{what} {text!r:.80} is not one of {', '.join(setting.choices)}"
    if setting.kind == "index":
        text = text.removeprefix(FLAT)
    if setting.kind in ("url", "index") and not _URL.match(text):
        return f"{what} {text!r:.80} is not a URL (https://HOST/...)"
    if setting.kind == "host" and not _HOST.fullmatch(text):
        return f"{what} {text!r:.80} is not HOST or HOST:PORT"
    try:
        if setting.kind == "size":
            parse_size(text, what)
        elif setting.kind == "requirement":
            from envkit.ground.requirement import parse  # noqa: PLC0415 - few commands have one

            parse(text, what)
    except UsageError as error:
        return error.message
    return None


def read(
    flags: Mapping[str, str | None], environ: Mapping[str, str], folder: Path, *, use: Use = Use.BUILDS
) -> Settings:
    """Resolve every setting for a run in `folder` without checking the values.

    Raises:
        UsageError: a settings file is not TOML, has an unknown key or a value that is not a string.
    """
    for name in environ:
        if name.startswith("ENVKIT_") and name[7:].lower() not in _BY_KEY and name not in _OTHER_VARIABLES:
            raise UsageError(f"unknown setting {name}", hint=_near(name[7:].lower()))
    own, own_table = _own(environ)
    path, table = _file(folder)
    # In ~/.config/envkit, the file of the folder is the user's own.
    foreign = path is not None and (own is None or path.resolve() != own.resolve())
    ignored = {
        setting.key: Value(table.pop(setting.key), str(path))
        for setting in SETTINGS
        if foreign and setting.key in table and not _may_set(setting, use)
    }
    levels = (
        _Level({key: text for key, text in flags.items() if text is not None}, "flag"),
        # An empty variable counts as not set: CI systems pass an input that is not set as an empty one.
        _Level({setting.key: environ[setting.variable] for setting in SETTINGS if environ.get(setting.variable)}),
        _Level(table, str(path)),
        _Level(own_table, str(own)),
    )
    values = {setting.key: _value(setting, levels) for setting in SETTINGS}
    sources = {
        setting.key: values[setting.key]
        for setting in SETTINGS
        if foreign and setting.checkout is Checkout.BUILDS and values[setting.key].origin == str(path)
    }
    return Settings(values, ignored, sources)


def _may_set(setting: Setting, use: Use) -> bool:
    """Return whether the file of a checkout may set a setting."""
    return setting.checkout is Checkout.YES or (setting.checkout is Checkout.BUILDS and use is Use.BUILDS)


@dataclass(frozen=True, slots=True)
class _Level:
    """The settings of one origin. A preset provides all of its settings that the same origin does not set itself."""

    texts: Mapping[str, str]
    origin: str | None = None  # None = the name of each setting's variable

    def find(self, setting: Setting) -> Value | None:
        if setting.key in self.texts:
            return Value(self.texts[setting.key], self.origin or setting.variable)
        name = self.texts.get("preset")
        # An unknown preset is no error here: `fault_of` reports it with its origin.
        row = presets()[name]["settings"].get(setting.key) if name in PRESETS else None
        return Value(row["value"], f"preset {name}") if row else None


def _value(setting: Setting, levels: Sequence[_Level]) -> Value:
    values = (level.find(setting) for level in levels)
    return next((value for value in values if value is not None), Value(setting.default, "default"))


@cache
def presets() -> Mapping[str, Any]:
    """Return the rows of `presets.yaml` by name: the name of the mirror, and its settings with their sources."""
    from envkit.ground.strictyaml import read_file  # noqa: PLC0415 - only needed with a preset

    tree: Any = read_file(Path(__file__).with_name("presets.yaml"))
    rows: Mapping[str, Any] = tree["presets"]
    return rows


# Read elsewhere or by the test world; they are not settings of a run.
_OTHER_VARIABLES = frozenset({"ENVKIT_WORLD", "ENVKIT_DEBUG"})


def check_file(path: Path) -> None:
    """Check the settings in one file: `envkit.toml`, or the table `[tool.envkit]` of `pyproject.toml`.

    Raises:
        UsageError: the file is not TOML, has an unknown key or an invalid value.
    """
    table = _checked(path, _tree(path))
    faults = Faults()
    for key, text in table.items():
        if fault := fault_of(_BY_KEY[key], Value(text, str(path))):
            faults.say(fault)
    faults.refuse(_HINT)


def ca_file(bundle: str | None) -> str | None:
    """Return the PEM file of the setting `ca_bundle`; None = the system's, also if the setting is `none`.

    Raises:
        UsageError: the file cannot be read.
    """
    if bundle in (None, NO_BUNDLE):
        return None
    try:
        with Path(bundle).open("rb"):
            return bundle
    except OSError as error:
        raise UsageError(
            f"ca_bundle: {bundle}: {error.strerror or error}", hint="envkit config shows where it is set"
        ) from error


def own_file(environ: Mapping[str, str]) -> Path | None:
    """Return the path of the user's own settings, XDG_CONFIG_HOME/envkit/envkit.toml; None without a home folder."""
    base, home = environ.get("XDG_CONFIG_HOME"), environ.get("HOME")
    if base and Path(base).is_absolute():
        return Path(base) / "envkit" / "envkit.toml"
    return Path(home) / ".config" / "envkit" / "envkit.toml" if home else None


def _own(environ: Mapping[str, str]) -> tuple[Path | None, dict[str, str]]:
    path = own_file(environ)
    return path, _checked(path, _toml(path)) if path is not None and _is_there(path) else {}


def _is_there(path: Path) -> bool:
    return path.exists() or path.is_symlink()


FILES = ("envkit.toml", "pyproject.toml")
"""Names of the settings files in a folder; the first that contains settings is used."""


def _file(folder: Path) -> tuple[Path | None, dict[str, str]]:
    for path in (folder / name for name in FILES):
        # A pyproject.toml may have no settings at all. An empty envkit.toml is still the settings file.
        # A pipe or a broken link is refused when it is read: to skip it would drop what it might set.
        if _is_there(path) and ((tree := _tree(path)) or path.name == FILES[0]):
            return path, _checked(path, tree)
    return None, {}


def _tree(path: Path) -> dict[str, object]:
    """Return the settings of a file; in `pyproject.toml` they are the table `[tool.envkit]`."""
    tree: dict[str, object] = _toml(path, path.parent)
    for name in ("tool", "envkit") if path.name == FILES[1] else ():
        tree = _table(path, name, tree.get(name, {}))
    return tree


def _toml(path: Path, root: Path | None = None) -> dict[str, Any]:
    return trees.from_toml(
        foreign.text(path, root=root), str(path), hint=f"fix {path.name}, or run from another folder"
    )


def _table(path: Path, name: str, value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        raise UsageError(f"{path}: {name} is not a table", hint="put settings below [tool.envkit]")
    return value


def _checked(path: Path, tree: Mapping[str, object]) -> dict[str, str]:
    table: dict[str, str] = {}
    faults = Faults()
    for key, value in tree.items():
        if key not in _BY_KEY:
            faults.add(str(path), f"unknown key {key!r}; {_near(key)}")
        elif not isinstance(value, str):
            faults.add(str(path), f"{key} must be a string, not {type(value).__name__}")
        else:
            table[key] = value
    faults.refuse(_HINT)
    return table


def _near(key: str) -> str:
    close = similar(key, _BY_KEY, cutoff=0.5)
    return f"did you mean {close[0]}?" if close else _HINT
