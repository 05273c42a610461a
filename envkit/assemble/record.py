"""RECORD, the list of what a wheel installed (Core metadata: Recording installed projects).

Most rows of the wheel's own RECORD hold for the image as they are. Rows of moved or rewritten files are replaced, and
what the installation adds is appended.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
from collections.abc import Iterable, Iterator, Mapping

Row = tuple[str, str, str]  # path relative to site-packages, 'sha256=...' or '', bytes or ''


def parse(text: str) -> Iterator[Row]:
    """Yield the rows of a RECORD, one by one: it can be large.

    Raises:
        ValueError: it is not a table of three columns.
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


def row(path: str, data: bytes) -> Row:
    """The row of a file with these contents."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return path, f"sha256={digest}", str(len(data))


def render(rows: Iterable[Row]) -> bytes:
    """Rows as text, one line each."""
    out = io.StringIO(newline="")
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue().encode()


def leads_out(path: str) -> bool:
    """Whether a row of a wheel names a file beyond site-packages, which an uninstaller would then remove."""
    return path.startswith("/") or ".." in path.replace("\\", "/").split("/")


def installed(
    old: Row, *, moved: Mapping[str, str], replaced: Mapping[str, bytes], dropped: frozenset[str]
) -> Row | None:
    """Return a wheel's row as it is after the installation; None for what is not installed.

    `moved` gives the new path of a wheel's path, `replaced` the new contents, `dropped` what is not installed.
    """
    path, digest, size = old
    if path in dropped:
        return None
    place, data = moved.get(path, path), replaced.get(path)
    return (place, digest, size) if data is None else row(place, data)
