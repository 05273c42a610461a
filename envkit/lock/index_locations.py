"""Where the artifacts of a lock are downloaded from, and their public URLs in the lock."""

from __future__ import annotations

import base64
import configparser
import netrc
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

from envkit.lock.model import CONDA_PUBLIC

# UV_INDEX_URL is uv's former name of UV_DEFAULT_INDEX.
_INDEX_VARIABLES = ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL")


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexLocations:
    """The download sources of one run: public ones, or mirrors from the settings. None of them is written to a lock."""

    conda_alias: str = CONDA_PUBLIC  # URL; conda-forge is <alias>/conda-forge
    torch_index: str | None = None  # simple index of the torch family; None = the Python index
    torch_pages: str | None = None  # flat page with the torch family's wheels; torch_index has their dependencies
    torch_public: str | None = None  # the public URL of the same index
    python_index: str | None = None  # None = the index of the client's own configuration
    debian_mirror: str | None = None  # None = the host's own apt configuration
    ca_bundle: str | None = None  # PEM file

    def public(self, url: str) -> str:
        """Return a URL as it is written to a lock: without login and query, and on the public host if that is known."""
        clean = without_login(url)
        for mirror, public in self._pairs():
            # With the slash, https://mirror.example does not match a URL of https://mirror.example.com.
            if clean.startswith(f"{mirror}/"):
                return public + clean.removeprefix(mirror)
        return clean

    def fetch_url(self, url: str) -> str:
        """Return the URL to download from for a URL of the lock."""
        for mirror, public in self._pairs(logins=True):
            if url.startswith(f"{public}/"):
                return mirror + url.removeprefix(public)
        return url

    def _pairs(self, *, logins: bool = False) -> list[tuple[str, str]]:
        pairs = [(self.conda_alias, CONDA_PUBLIC)]
        own = self.torch_pages or self.torch_index
        if own and self.torch_public:
            # The indexes of all CUDA versions are in one folder, and the pages of one link to files of others.
            pairs.append((_above(own), _above(self.torch_public)))
        return [
            ((mirror if logins else without_login(mirror)).rstrip("/"), public.rstrip("/")) for mirror, public in pairs
        ]


def without_login(url: str) -> str:
    """Return a URL without login, query and fragment, each of which may contain a credential."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, "", ""))


def login_of(url: str) -> tuple[str, str] | None:
    """Return the user and password of a URL, None without them."""
    parts = urlsplit(url)
    return (unquote(parts.username), unquote(parts.password or "")) if parts.username else None


def _above(index: str) -> str:
    return index.rstrip("/").rpartition("/")[0]


def python_index(environ: Mapping[str, str], *, system: Path = Path("/etc/pip.conf")) -> str | None:
    """Return the index of uv's or pip's variables, else of pip's configuration files; None = the client's default.

    Additional indexes and folders (`extra-index-url`, `find-links`) are ignored: with more than one index, anyone who
    registers a package's name in the second one decides what is installed.
    """
    for name in _INDEX_VARIABLES:
        if environ.get(name):
            return environ[name]
    for path in _pip_files(environ, system):
        try:
            value = pip_settings(path.read_text(encoding="utf-8")).get("index-url")
        except (OSError, UnicodeDecodeError, configparser.Error):
            continue  # pip reports the error itself; here the next file is used
        if value:
            return value
    return None


def pip_settings(text: str) -> dict[str, str]:
    """Return what a configuration file of pip sets for `pip install`, by the names of the options.

    Raises:
        configparser.Error: the text is no such file.
    """
    # Raw, as in pip: a `%` in a URL is no interpolation.
    parser = configparser.RawConfigParser()
    parser.read_string(text)
    found: dict[str, str] = {}
    for section in ("global", "install"):  # in pip, the section of a command overrides [global]
        if parser.has_section(section):
            found |= {key.replace("_", "-"): value.strip() for key, value in parser.items(section) if value}
    return found


def _pip_files(environ: Mapping[str, str], system: Path) -> list[Path]:
    """Return pip's configuration files in order of precedence."""
    named = environ.get("PIP_CONFIG_FILE")
    # pip's way to read no configuration file at all.
    if named == os.devnull:
        return []
    home = environ.get("HOME")
    config = environ.get("XDG_CONFIG_HOME") or (f"{home}/.config" if home else None)
    files = [Path(named)] if named else []
    files += [Path(sys.prefix) / "pip.conf"]
    files += [Path(config) / "pip" / "pip.conf"] if config else []
    files += [Path(home) / ".pip" / "pip.conf"] if home else []
    shared = [Path(folder) / "pip" / "pip.conf" for folder in environ.get("XDG_CONFIG_DIRS", "").split(":") if folder]
    return [*files, *shared, system]


def authorization(url: str, index: str | None) -> str | None:
    """Return the Authorization header for a file, None if there is no login.

    Args:
        url: the file, without a login.
        index: the index that lists it, whose login is sent only to its own host.
    """
    host = urlsplit(url).hostname or ""
    login = login_of(index) if index and urlsplit(index).hostname == host else None
    login = login or _netrc(host)
    return "Basic " + base64.b64encode(":".join(login).encode()).decode() if login else None


def _netrc(host: str) -> tuple[str, str] | None:
    path = Path(os.environ.get("NETRC") or Path(os.environ.get("HOME") or "/") / ".netrc")
    try:
        login = netrc.netrc(path).authenticators(host)
    # As in pip, a file that is missing or invalid means no login.
    except (OSError, netrc.NetrcParseError):
        return None
    return (login[0], login[2]) if login else None
