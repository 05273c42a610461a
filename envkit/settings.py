"""Settings and where each came from: flag > ENVKIT_* > envkit.toml or [tool.envkit] > default."""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from urllib.parse import urlsplit

from envkit.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Mirrors:
    """Every outside source, replaceable. None = the public one, or the client's own configuration."""

    registry: str | None = None  # host[:port] that serves docker.io's images
    conda_channel_alias: str | None = None  # URL: conda-forge is <alias>/conda-forge
    miniconda: str | None = None  # URL of the folder that holds the Miniconda installers
    miniconda_image: str | None = None  # image with conda in /opt/conda, instead of the installer
    pytorch_index: str | None = None  # URL whose sub-folders are cu126, cpu, ...
    python_index: str | None = None  # simple index URL for pip inside the build
    debian_mirror: str | None = None  # URL for the bootstrap base; None = the host's own apt configuration
    ca_bundle: str | None = None  # PEM file of authorities to trust: in builds, for downloads, for registries


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One known setting: its key in envkit.toml, its meaning and its default."""

    key: str
    meaning: str
    default: str | None = None

    @property
    def variable(self) -> str:
        """Name of the environment variable."""
        return "ENVKIT_" + self.key.upper()


SETTINGS = (
    Setting(key="engine", meaning="engine that builds: auto, docker, buildkit, podman or embedded", default="auto"),
    Setting(
        key="runner", meaning="runner that verifies: auto, docker, podman, bubblewrap, proot or host", default="auto"
    ),
    Setting(key="registry", meaning="host[:port] that serves docker.io images"),
    Setting(key="conda_channel_alias", meaning="URL below which conda-forge is served"),
    Setting(key="miniconda", meaning="URL of the folder with Miniconda installers"),
    Setting(key="miniconda_image", meaning="image that has conda in /opt/conda, used instead of the installer"),
    Setting(key="pytorch_index", meaning="URL of the PyTorch wheel indexes"),
    Setting(key="python_index", meaning="URL of the Python index for pip inside builds"),
    Setting(key="debian_mirror", meaning="Debian mirror for bootstrapped base images"),
    Setting(key="ca_bundle", meaning="PEM file of authorities to trust, in builds, for downloads and for registries"),
    Setting(key="build_network", meaning="network of build steps: auto, default, host or none", default="auto"),
    Setting(key="docker_cli", meaning="docker client used for BuildKit", default="docker"),
    Setting(key="facts", meaning="YAML file with your own rows laid over the facts"),
    Setting(key="templates", meaning="folder whose templates override the built-in ones"),
    Setting(key="wheel_dir", meaning="folder of wheels that the embedded engine looks into before it downloads"),
    Setting(key="cache_limit", meaning="size that the cache is pruned to after a build, e.g. 20GB; unset = never"),
    Setting(key="log_dir", meaning="folder of the full engine logs"),
)
NO_BUNDLE = "none"  # as `ca_bundle`: trust what the system trusts, and no file that other variables name
_BY_KEY = {setting.key: setting for setting in SETTINGS}


@dataclass(frozen=True, slots=True)
class Value:
    """A setting's value and its origin: `flag`, `ENVKIT_X`, a file's path, or `default`."""

    text: str | None
    origin: str


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings, resolved."""

    values: Mapping[str, Value]

    def get(self, key: str) -> str | None:
        """The text of a setting, None when unset."""
        return self.values[key].text

    def mirrors(self) -> Mirrors:
        """The settings that replace outside sources."""
        return Mirrors(**{f.name: self.values[f.name].text for f in fields(Mirrors)})


def load(flags: Mapping[str, str | None], environ: Mapping[str, str], folder: Path) -> Settings:
    """Resolve every setting for a run in `folder`.

    Raises:
        UsageError: a settings file is not TOML, has an unknown key or a value that is not text.
    """
    path, table = _file(folder)
    for name in environ:
        if name.startswith("ENVKIT_") and name[7:].lower() not in _BY_KEY and name not in _OTHER_VARIABLES:
            raise UsageError(f"{name} is not a setting", hint=_near(name[7:].lower()))
    values: dict[str, Value] = {}
    for setting in SETTINGS:
        flag, variable = flags.get(setting.key), environ.get(setting.variable)
        if flag is not None:
            values[setting.key] = Value(flag, "flag")
        elif variable:
            values[setting.key] = Value(variable, setting.variable)
        elif setting.key in table:
            values[setting.key] = Value(table[setting.key], str(path))
        else:
            values[setting.key] = Value(setting.default, "default")
    return Settings(values)


# Read elsewhere or by the test world; they are not settings of a run.
_OTHER_VARIABLES = frozenset({"ENVKIT_WORLD", "ENVKIT_DEBUG"})


def state_dir(environ: Mapping[str, str] | None = None) -> Path:
    """Folder for logs and the note of what was built last: XDG_STATE_HOME/envkit."""
    env = os.environ if environ is None else environ
    base = env.get("XDG_STATE_HOME")
    if base and Path(base).is_absolute():
        return Path(base) / "envkit"
    home = env.get("HOME")
    if home:
        return Path(home) / ".local" / "state" / "envkit"
    return Path(env.get("TMPDIR", "/tmp")) / "envkit"  # noqa: S108 - the last resort of a user without a home


def ca_file(bundle: str | None) -> str | None:
    """The PEM file that the setting `ca_bundle` names; None = those of the system, also where the setting is `none`.

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


def is_loopback(url: str | None) -> bool:
    """Whether a URL or host[:port] points at this machine."""
    if not url:
        return False
    host = urlsplit(url if "//" in url else f"//{url}").hostname or ""
    # A name may begin with the digits, too: 127.example.com is somebody else's.
    return host in ("localhost", "::1") or (host.startswith("127.") and host.replace(".", "").isdigit())


def _file(folder: Path) -> tuple[Path | None, dict[str, str]]:
    places: tuple[tuple[Path, tuple[str, ...]], ...] = (
        (folder / "envkit.toml", ()),
        (folder / "pyproject.toml", ("tool", "envkit")),
    )
    for path, where in places:
        if not path.is_file():
            continue
        try:
            tree = tomllib.loads(path.read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise UsageError(f"{path}: {error}", hint=f"mend {path.name}, or run from another folder") from error
        for name in where:
            tree = _table(path, name, tree.get(name, {}))
        if not tree and where:
            continue
        return path, _checked(path, tree)
    return None, {}


def _table(path: Path, name: str, found: object) -> dict[str, object]:
    if not isinstance(found, dict):
        raise UsageError(f"{path}: {name} is not a table", hint="settings stand below [tool.envkit]")
    return found


def _checked(path: Path, tree: Mapping[str, object]) -> dict[str, str]:
    table: dict[str, str] = {}
    faults: list[str] = []
    for key, value in tree.items():
        if key not in _BY_KEY:
            faults.append(f"{path}: unknown key {key!r}; {_near(key)}")
        elif not isinstance(value, str):
            faults.append(f"{path}: {key} must be text, not {type(value).__name__}")
        else:
            table[key] = value
    if faults:
        raise UsageError(faults[0], details=tuple(faults[1:]), hint="envkit config lists every setting")
    return table


def _near(key: str) -> str:
    close = difflib.get_close_matches(key, _BY_KEY, n=1, cutoff=0.5)
    return f"did you mean {close[0]}?" if close else "envkit config lists every setting"
