"""The files of a wheel that an installation generates or changes: RECORD, launchers, and first lines of scripts.

Most rows of the wheel's own RECORD stay as they are. Rows of moved or rewritten files are replaced, and rows of
generated files are appended.
Source: the PyPA specifications "Recording installed projects", "Entry points" and "Binary distribution format", section
"Recommended installer features".
"""

from __future__ import annotations

import base64
import configparser
import csv
import hashlib
import io
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from envkit.ground import imagepaths

Row = tuple[str, str, str]  # path relative to site-packages, 'sha256=...' or '', bytes or ''
_SECTIONS = ("console_scripts", "gui_scripts")
_NAME = re.compile(r"[\w.+][\w.+-]*", re.ASCII)
_DOTTED = r"[^\W\d]\w*(?:\.[^\W\d]\w*)*"
# `module:function [extra]`: extras are valid but no longer recommended, and readers may ignore them ("Entry points").
_TARGET = re.compile(rf"(?P<module>{_DOTTED})\s*:\s*(?P<attribute>{_DOTTED})\s*(?:\[[^\]\n]*\])?")
_SHEBANG = re.compile(rb"#!pythonw?(?=[ \t\r\n]|$)")
# "The hash algorithm must be sha256 or better"; the bytes of each.
_DIGESTS = {"sha256": 32, "sha384": 48, "sha512": 64}
_MOST = 4096  # launchers; the largest packages have a few hundred
_MOST_LINES = 5000  # configparser's time grows with the square of the number of invalid lines
PEEK = 10  # bytes that show whether the first line of a script has to be rewritten


def parse_record(text: str) -> Iterator[Row]:
    """Yield the rows of a RECORD, which can be large.

    Raises:
        ValueError: a row does not have three columns.
    """
    try:
        for number, row in enumerate(csv.reader(io.StringIO(text, newline="")), 1):
            if not row:
                continue
            if len(row) != 3:  # noqa: PLR2004 - path, hash and size
                raise ValueError(f"row {number} has {len(row)} columns, not 3")
            yield row[0], row[1], row[2]
    except csv.Error as error:
        raise ValueError(str(error)) from error


def recorded(digest: str) -> tuple[str, bytes] | None:
    """Return the algorithm and the digest of a row, `sha256=...`; None if the row has none.

    Raises:
        ValueError: it is not a digest of one of the algorithms that the specification allows.
    """
    if not digest:
        return None
    name, _, text = digest.partition("=")
    if name not in _DIGESTS:
        raise ValueError(f"{digest!r:.100} is not a digest of {', '.join(_DIGESTS)}")
    try:
        data = base64.b64decode(text.rstrip("=") + "=" * (-len(text.rstrip("=")) % 4), altchars=b"-_", validate=True)
    except ValueError:
        data = b""
    if len(data) != _DIGESTS[name]:
        raise ValueError(f"{digest!r:.100} is not a {name}")
    return name, data


def record_row(path: str, data: bytes) -> Row:
    """Return the row of a file with these contents."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return path, f"sha256={digest}", str(len(data))


def render_record(rows: Iterable[Row]) -> bytes:
    """Return rows as text, one line each."""
    out = io.StringIO(newline="")
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue().encode()


def leads_out(path: str) -> bool:
    """Return whether a path of RECORD points out of site-packages: uninstallers remove every file that RECORD lists."""
    return path.startswith("/") or ".." in path.replace("\\", "/").split("/")


def installed_row(
    old: Row, *, moved: Mapping[str, str], replaced: Mapping[str, bytes], dropped: frozenset[str]
) -> Row | None:
    """Return the installed form of a row of a wheel's RECORD; None if the file is not installed.

    `moved` maps paths of the wheel to new paths, `replaced` to new contents; `dropped` are not installed.
    """
    path, digest, size = old
    if path in dropped:
        return None
    new_path, data = moved.get(path, path), replaced.get(path)
    return (new_path, digest, size) if data is None else record_row(new_path, data)


class _CaseSensitive(configparser.ConfigParser):
    # Keep the case of command names; configparser converts them to lower case by default.
    def optionxform(self, optionstr: str) -> str:
        return optionstr


@dataclass(frozen=True, slots=True)
class Launcher:
    """A script that calls a function."""

    name: str
    module: str
    attribute: str


def launchers(entry_points: str) -> tuple[Launcher, ...]:
    """Return the launchers of an `entry_points.txt`, sorted by name.

    Raises:
        ValueError: the file is not INI text, a name is not a valid file name, or a target is not `module:function`.
    """
    if entry_points.count("\n") > _MOST_LINES:
        raise ValueError(f"it has more than {_MOST_LINES} lines")
    # Delimiters and case as in "Entry points", section "File format"; with interpolation, a % in a value is an error.
    parser = _CaseSensitive(delimiters=("=",), interpolation=None, strict=True)
    try:
        parser.read_string(entry_points)
    except configparser.Error as error:
        raise ValueError(" ".join(str(error).split())) from error
    scripts: dict[str, Launcher] = {}
    for section in _SECTIONS:
        for name, value in parser.items(section) if parser.has_section(section) else ():
            target = _TARGET.fullmatch(value.strip())
            if not _NAME.fullmatch(name) or imagepaths.fault(name):
                raise ValueError(f"{name!r:.100} is not a valid name of a script")
            if target is None:
                raise ValueError(f"{name} = {value!r:.100} is not module:function")
            if name in scripts:
                raise ValueError(f"it lists the script {name!r} twice")
            if len(scripts) == _MOST:
                raise ValueError(f"it lists more than {_MOST} scripts")
            scripts[name] = Launcher(name, target["module"], target["attribute"])
    return tuple(scripts[name] for name in sorted(scripts))


def launcher_text(launcher: Launcher, interpreter: str) -> bytes:
    """Return the contents of a launcher."""
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
    """Return whether the first line of a script is the placeholder `#!python` or `#!pythonw`."""
    return _SHEBANG.match(start) is not None


def with_interpreter(script: bytes, interpreter: str) -> bytes:
    """Return the script with the interpreter's path in its first line, keeping the arguments."""
    return _SHEBANG.sub(b"#!" + interpreter.encode(), script, count=1)
