"""The Python index in the configuration of pip or uv on this machine, so that a lock uses the same one."""

from __future__ import annotations

import configparser
import os
import sys
from collections.abc import Mapping
from pathlib import Path

_VARIABLES = ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL")


def python_index(environ: Mapping[str, str], *, system: Path = Path("/etc/pip.conf")) -> str | None:
    """The one index of uv's or pip's variables, else of pip's configuration files; None = the client's default.

    Further indexes and folders of wheels (`extra-index-url`, `find-links`) are left out: with more than one place to
    look, anyone who registers a name in the second place decides what is installed.
    """
    for name in _VARIABLES:
        if environ.get(name):
            return environ[name]
    for path in _files(environ, system):
        parser = configparser.RawConfigParser()
        try:
            parser.read_string(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, configparser.Error):
            continue  # pip says what is wrong with it; here the next file counts
        for section in ("install", "global"):
            value = parser.get(section, "index-url", fallback=None)
            if value:
                return value.strip()
    return None


def _files(environ: Mapping[str, str], system: Path) -> list[Path]:
    """The configuration files of pip, the one that wins first."""
    named = environ.get("PIP_CONFIG_FILE")
    if named == os.devnull:
        return []
    home = environ.get("HOME")
    config = environ.get("XDG_CONFIG_HOME") or (f"{home}/.config" if home else None)
    found = [Path(named)] if named else []
    found += [Path(sys.prefix) / "pip.conf"]
    found += [Path(config) / "pip" / "pip.conf"] if config else []
    found += [Path(home) / ".pip" / "pip.conf"] if home else []
    shared = [Path(folder) / "pip" / "pip.conf" for folder in environ.get("XDG_CONFIG_DIRS", "").split(":") if folder]
    return [*found, *shared, system]
