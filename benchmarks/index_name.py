"""Who owns the name of envkit's distribution on the Python index, and names that an index takes for the same.

    python -m benchmarks.index_name

It asks the index that pip, uv or the settings of envkit are configured with for the file list of each name. A name is
free if the index has no such project, and ours if every file is one that was published. Everything else is someone
else's: also a project without files, because its owner can upload some at any time. Controls must be seen to exist: an
index that has nothing would otherwise make every name look free.
"""

from __future__ import annotations

import json
import os
import re
import sys
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks._report import Figure, finish, tell
from envkit.ground import settings
from envkit.ground.errors import EnvironmentProblem
from envkit.ground.naming import DISTRIBUTION
from envkit.ground.progress import Silent
from envkit.pipeline.proving import open_index

if TYPE_CHECKING:
    from collections.abc import Collection

    from envkit.evidence.index import Index

PUBLISHED: frozenset[str] = frozenset()
"""SHA-256 of the files that were published. Nothing is published yet."""
# An index compares names without separators (PEP 503 and its own rule against names that look alike).
NAMES = (DISTRIBUTION, DISTRIBUTION.replace("-", ""))
CONTROLS = ("click", "envkit")  # a dependency, and the project that owns the name of the command
_ACCEPT = "application/vnd.pypi.simple.v1+json, text/html;q=0.1"
_OK, _MISSING = 200, 404
_MOST = 4 << 20  # bytes of one list
_LINK = re.compile(
    r"<a\s[^>]*href=[\"'][^\"'#]*(?:#sha256=([0-9a-f]{64}))?[^\"']*[\"'][^>]*>([^<]+)</a>", re.IGNORECASE
)


class Owner(Enum):
    """Whose a name is."""

    FREE = "free"
    OURS = "ours"
    OTHERS = "another project's"


@dataclass(frozen=True, slots=True)
class File:
    """A file of a project."""

    name: str
    sha256: str | None


def owner(status: int, files: Collection[File], published: Collection[str] = PUBLISHED) -> Owner:
    """Return whose a name is, from the answer of an index for its file list.

    Raises:
        EnvironmentProblem: the answer says neither that the project exists nor that it does not.
    """
    if status == _MISSING:
        return Owner.FREE
    if status != _OK:
        raise EnvironmentProblem(f"the index answers {status}", hint="try again later")
    # By the hash alone: a name of a file, or metadata in it, is what its owner writes.
    ours = bool(files) and all(file.sha256 in published for file in files)
    return Owner.OURS if ours else Owner.OTHERS


def files_of(data: bytes, kind: str) -> tuple[File, ...]:
    """Return the files in a list.

    Raises:
        EnvironmentProblem: it is not a list.
    """
    try:
        text = data.decode()
        if kind.endswith("json"):
            rows: list[dict[str, Any]] = json.loads(text)["files"]
            return tuple(File(str(row["filename"]), (row.get("hashes") or {}).get("sha256")) for row in rows)
    except (ValueError, RecursionError, TypeError, KeyError, AttributeError) as error:
        raise EnvironmentProblem("the index sends no list of files", hint="try again later") from error
    return tuple(File(match[2].strip(), match[1]) for match in _LINK.finditer(text))


def ask(index: Index, name: str) -> tuple[Owner, tuple[File, ...]]:
    """Return whose a name is, and the files that the index lists for it."""
    url = f"{index.url.rstrip('/')}/{name}/"
    with index.transport.send("GET", url, headers={"Accept": _ACCEPT}) as answer:
        kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
        files = files_of(answer.read(_MOST), kind) if answer.status == _OK else ()
        return owner(answer.status, files), files


def main() -> int:
    """Ask for every name and every control; return 0 if no name is someone else's."""
    chosen = settings.load({}, os.environ, Path.cwd(), use=settings.Use.HOST)
    with open_index(chosen, Silent()) as index:
        answers = {name: ask(index, name) for name in (*NAMES, *CONTROLS)}
    for name, (found, files) in answers.items():
        tell(f"{name}: {found.value}" + (f", {len(files)} files, the newest {files[-1].name}" if files else ""))
    taken = sum(answers[name][0] is Owner.OTHERS for name in NAMES)
    seen = sum(answers[name][0] is Owner.OTHERS for name in CONTROLS)
    figures = [
        Figure(
            name="names of another project", figure=taken, unit="", better="lower", goal=0,
            against=f"{', '.join(NAMES)}",
        ),
        Figure(
            name="controls that exist", figure=seen, unit="", better="higher", goal=len(CONTROLS),
            against=f"{', '.join(CONTROLS)}",
        ),
    ]  # fmt: skip
    return finish("index_name", figures)


if __name__ == "__main__":
    sys.exit(main())
