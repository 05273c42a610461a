"""Look up the user of a container: the image's USER, with names from the image's passwd and group files.

Source: OCI image specification 1.1, "Image Configuration" (User); passwd(5), group(5).
"""

from __future__ import annotations

from dataclasses import dataclass

from envkit.ground.errors import EngineError
from envkit.run.rootless.layered_tree import LayeredTree
from envkit.run.rootless.owners import MOST_ID

_MOST_DIGITS = 20  # Python refuses to convert thousands of digits


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """A user of an image: its IDs and home folder."""

    uid: int
    gid: int
    home: str


def find_user(text: str, stack: LayeredTree) -> User:
    """Return the user of `uid`, `name`, `uid:gid` or `name:group`; an empty text means root.

    Raises:
        EngineError: the image has no such user or group.
    """
    name, sign, group = text.partition(":")
    name = name or "0"
    rows = [line.split(":") for line in stack.text("etc/passwd").splitlines() if line.count(":") >= 6]  # noqa: PLR2004
    row = next((fields for fields in rows if name in (fields[0], fields[2])), None)
    uid = _number(name if row is None else row[2], text)
    # HOME cannot contain a zero byte.
    home = row[5] if row is not None and row[5].startswith("/") and "\0" not in row[5] else "/"
    if sign and group:
        groups = [line.split(":") for line in stack.text("etc/group").splitlines() if line.count(":") >= 3]  # noqa: PLR2004
        group_id = next((fields[2] for fields in groups if fields[0] == group), group)
        return User(uid=uid, gid=_number(group_id, text), home=home)
    # As in Docker, a user ID that is not in the image's passwd file gets group 0.
    return User(uid=uid, gid=0 if row is None else _number(row[3], text), home=home)


def _number(text: str, requested: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > _MOST_DIGITS or int(text) > MOST_ID:
        raise EngineError(f"the image has no user {requested[:80]!r}", hint="set the image's USER to UID:GID")
    return int(text)
