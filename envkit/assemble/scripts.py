"""The scripts of a package: launchers of its entry points, and files with `#!python` as their first line.

Rules: PyPA specifications "Entry points" and "Binary distribution format", section "Recommended installer features".
"""

from __future__ import annotations

import configparser
import re
from dataclasses import dataclass

from envkit.ground import imagepaths

_SECTIONS = ("console_scripts", "gui_scripts")
_NAME = re.compile(r"[\w.+][\w.+-]*", re.ASCII)
_DOTTED = r"[^\W\d]\w*(?:\.[^\W\d]\w*)*"
_TARGET = re.compile(rf"(?P<module>{_DOTTED})\s*:\s*(?P<attribute>{_DOTTED})\s*(?:\[[^\]\n]*\])?")
_SHEBANG = re.compile(rb"#!pythonw?(?=[ \t\r\n]|$)")
_MOST = 4096  # launchers; the packages that have most bring some hundred
_MOST_LINES = 5000  # configparser takes a time that grows with the square of the lines at fault
PEEK = 10  # bytes that tell whether a script's first line has to be rewritten


class _CaseSensitive(configparser.ConfigParser):
    def optionxform(self, optionstr: str) -> str:
        return optionstr


@dataclass(frozen=True, slots=True)
class Launcher:
    """A script that calls a function."""

    name: str
    module: str
    attribute: str


def launchers(entry_points: str) -> tuple[Launcher, ...]:
    """The launchers that an `entry_points.txt` asks for, sorted by name.

    Raises:
        ValueError: the file is not INI text, a name is not that of a file, or a target is not `module:function`.
    """
    if entry_points.count("\n") > _MOST_LINES:
        raise ValueError(f"it has more than {_MOST_LINES} lines")
    parser = _CaseSensitive(delimiters=("=",), interpolation=None, strict=True)
    try:
        parser.read_string(entry_points)
    except configparser.Error as error:
        raise ValueError(" ".join(str(error).split())) from error
    found: dict[str, Launcher] = {}
    for section in _SECTIONS:
        for name, value in parser.items(section) if parser.has_section(section) else ():
            target = _TARGET.fullmatch(value.strip())
            if not _NAME.fullmatch(name) or imagepaths.fault(name):
                raise ValueError(f"{name!r:.100} is no name for a script")
            if target is None:
                raise ValueError(f"{name} = {value!r:.100} is not module:function")
            if name in found:
                raise ValueError(f"{name!r} is a script twice")
            if len(found) == _MOST:
                raise ValueError(f"it asks for more than {_MOST} scripts")
            found[name] = Launcher(name, target["module"], target["attribute"])
    return tuple(found[name] for name in sorted(found))


def text(launcher: Launcher, interpreter: str) -> bytes:
    """The launcher's file."""
    top = launcher.attribute.partition(".")[0]
    return (
        f"#!{interpreter}\n"
        "import sys\n"
        f"from {launcher.module} import {top}\n"
        'if __name__ == "__main__":\n'
        '    sys.argv[0] = sys.argv[0].removesuffix(".exe")\n'
        f"    sys.exit({launcher.attribute}())\n"
    ).encode()


def needs_interpreter(start: bytes) -> bool:
    """Whether a script that begins like this names `python` without a place."""
    return _SHEBANG.match(start) is not None


def with_interpreter(script: bytes, interpreter: str) -> bytes:
    """The script with the interpreter's place in its first line; what else that line says stays."""
    return _SHEBANG.sub(b"#!" + interpreter.encode(), script, count=1)
