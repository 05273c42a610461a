"""Who a container runs as: the image's USER, names looked up in the image's own files.

Source: OCI image specification 1.1, "Image Configuration" (User); passwd(5), group(5).
"""

from __future__ import annotations

from dataclasses import dataclass

from envkit.ground.errors import EngineError
from envkit.run.rootless.owners import MOST_ID
from envkit.run.rootless.stack import Stack

_MOST_DIGITS = 20  # Python refuses to read a number of thousands


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """Numbers, and the home folder."""

    uid: int
    gid: int
    home: str


def find_user(text: str, stack: Stack) -> User:
    """The user of `uid`, `name`, `uid:gid` or `name:group`; nothing at all means root.

    Raises:
        EngineError: the image has no such user or group.
    """
    name, sign, group = text.partition(":")
    name = name or "0"
    rows = [line.split(":") for line in stack.text("etc/passwd").splitlines() if line.count(":") >= 6]  # noqa: PLR2004
    row = next((fields for fields in rows if name in (fields[0], fields[2])), None)
    uid = _number(name if row is None else row[2], text)
    # No variable has a zero byte.
    home = row[5] if row is not None and row[5].startswith("/") and "\0" not in row[5] else "/"
    if sign and group:
        groups = [line.split(":") for line in stack.text("etc/group").splitlines() if line.count(":") >= 3]  # noqa: PLR2004
        group_id = next((fields[2] for fields in groups if fields[0] == group), group)
        return User(uid=uid, gid=_number(group_id, text), home=home)
    # A number that the image's list does not have gets group 0, as with engines.
    return User(uid=uid, gid=0 if row is None else _number(row[3], text), home=home)


def _number(text: str, asked: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > _MOST_DIGITS or int(text) > MOST_ID:
        raise EngineError(f"the image has no user {asked[:80]!r}", hint="set the image's USER to UID:GID")
    return int(text)
