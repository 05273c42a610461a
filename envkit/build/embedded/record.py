"""RECORD, the list of what a wheel installed (Core metadata: Recording installed projects).

Most rows of the wheel's own RECORD hold for the image as they are. Rows of moved or rewritten files are replaced, and
what the installation adds is appended.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
from collections.abc import Mapping, Sequence

Row = tuple[str, str, str]  # path relative to site-packages, 'sha256=...' or '', bytes or ''


def parse(text: str) -> tuple[Row, ...]:
    """The rows of a RECORD.

    Raises:
        ValueError: it is not a table of three columns.
    """
    rows: list[Row] = []
    try:
        for number, row in enumerate(csv.reader(io.StringIO(text, newline="")), 1):
            if not row:
                continue
            if len(row) != 3:  # noqa: PLR2004 - path, hash and size
                raise ValueError(f"row {number} has {len(row)} columns, not 3")
            rows.append((row[0], row[1], row[2]))
    except csv.Error as error:
        raise ValueError(str(error)) from error
    return tuple(rows)


def row(path: str, data: bytes) -> Row:
    """The row of a file with these contents."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return path, f"sha256={digest}", str(len(data))


def render(rows: Sequence[Row]) -> bytes:
    """Rows as text, one line each."""
    out = io.StringIO(newline="")
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue().encode()


def changed(
    rows: Sequence[Row], *, moved: Mapping[str, str], replaced: Mapping[str, bytes], dropped: frozenset[str]
) -> tuple[Row, ...] | None:
    """The rows after the installation, None when they are the wheel's own.

    `moved` gives the new path of a wheel's path, `replaced` the new contents, `dropped` what is not installed.
    """
    new: list[Row] = []
    for path, digest, size in rows:
        if path in dropped:
            continue
        place = moved.get(path, path)
        data = replaced.get(path)
        new.append((place, digest, size) if data is None else row(place, data))
    return None if tuple(new) == tuple(rows) else tuple(new)
