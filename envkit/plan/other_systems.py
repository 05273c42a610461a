"""Packages for Windows or macOS only, which lists of what a computer has installed contain without a marker.

Those of the Python index have no wheel for Linux, or one whose module cannot be imported there because it needs
libraries of its system. Those of conda have builds for `win-64`, `osx-64` or `osx-arm64` only.
"""

from __future__ import annotations

import re

from packaging.utils import canonicalize_name

_WINDOWS = "Windows"
_MACOS = "macOS"
# Tried on Linux: pip finds no wheel, or the import fails.
_OF_PIP = {
    _WINDOWS: re.compile(
        r"pywin32|pypiwin32|pywinpty|wincertstore|comtypes|wmi|winshell|pyreadline3?|onnxruntime-directml"
        r"|tensorflow-intel|tensorflow-directml-plugin|triton-windows|windows-curses|winrt-[a-z-]+|winsdk"
    ),
    _MACOS: re.compile(r"pyobjc(?:-[a-z0-9-]+)?|tensorflow-macos|tensorflow-metal|rumps"),
}
# conda packages: the C runtime and tools of one system, and what only its Python needs.
_OF_CONDA = {
    _WINDOWS: re.compile(
        r"vc|vc14_runtime|vcomp14|vs20\d\d_runtime|vs20\d\d_win-64|ucrt|m2-.+|m2w64-.+|msys2-conda-epoch|libwinpthread|icc_rt"
        r"|console_shortcut|powershell_shortcut|menuinst|winpty|pywinpty|pywin32|pywin32-on-windows|wincertstore"
        r"|win_inet_pton|win_unicode_console|win32_setctime|.+_win-64|.+-win-64"
    ),
    _MACOS: re.compile(r"appnope|pyobjc-.+|python\.app|cctools|ld64|.+_osx-(?:64|arm64)|cctools_.+|ld64_.+"),
}


def of_pip(name: str) -> str | None:
    """Return why a distribution of the Python index is not for Linux; None if it may be."""
    return _why(canonicalize_name(name), _OF_PIP)


def of_conda(name: str) -> str | None:
    """Return why a conda package is not for Linux; None if it may be."""
    return _why(name.lower(), _OF_CONDA)


def of_wheel(file: str) -> str | None:
    """Return why a wheel file is not for Linux, by the platform in its name; None if it may be."""
    platform = file.removesuffix(".whl").rpartition("-")[2]
    if platform.startswith("win"):
        return _for(_WINDOWS)
    return _for(_MACOS) if platform.startswith("macosx") else None


def _why(name: str, table: dict[str, re.Pattern[str]]) -> str | None:
    return next((_for(system) for system, names in table.items() if names.fullmatch(name)), None)


def _for(system: str) -> str:
    return f"it is for {system}"
