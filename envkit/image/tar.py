"""Write tar headers: POSIX ustar, with PAX records only for values that ustar cannot represent.

Source: POSIX.1-2017, pax, 4.13.
"""

from __future__ import annotations

BLOCK = 512
_RECORD = 20 * BLOCK
_NAME, _PREFIX = 100, 155
_MAX_SIZE = 0o77777777777  # bytes: 11 octal digits
_MAX_ID = 0o7777777  # 7 octal digits
FILE, SYMLINK, FOLDER = b"0", b"2", b"5"
_EXTENDED = b"x"


def header(
    path: str,
    *,
    kind: bytes,
    mode: int,
    mtime: int,
    size: int = 0,
    target: str = "",
    owner: tuple[int, int] = (0, 0),
) -> bytes:
    """Return the blocks before an entry's contents. Owner and group have no names.

    `path` and `target` are text without surrogates; `mtime` is in seconds since 1970, `size` in bytes, and `owner` is
    the user ID and group ID.
    """
    name, link = (path + "/" if kind == FOLDER else path).encode(), target.encode()
    records = b""
    # POSIX leaves the encoding of non-ASCII names in headers to the reader; PAX records are UTF-8.
    split = _split(name) if path.isascii() else None
    if split is None:
        records += _record(b"path", name)
        # Only for readers without PAX support; all others use the record.
        split = (b"", name.decode().encode("ascii", "replace")[:_NAME])
    if len(link) > _NAME or not target.isascii():
        records += _record(b"linkpath", link)
        link = target.encode("ascii", "replace")[:_NAME]
    for key, ident in zip((b"uid", b"gid"), owner, strict=True):
        records += _record(key, b"%d" % ident) if ident > _MAX_ID else b""
    ids = tuple(ident if ident <= _MAX_ID else 0 for ident in owner)
    short = size
    if size > _MAX_SIZE:
        records += _record(b"size", b"%d" % size)
        short = 0
    block = _block(split, kind, mode, mtime, short, link, ids)
    if not records:
        return block
    # The name that star and Python's tarfile write; readers of pax headers ignore it.
    extended = _block((b"", b"././@PaxHeader"), _EXTENDED, 0o644, mtime, len(records), b"", (0, 0))
    return b"".join((extended, records, padding(len(records)), block))


def padding(size: int) -> bytes:
    """Return the zero bytes that fill the last block of `size` bytes of contents."""
    return bytes(-size % BLOCK)


def end(size: int) -> bytes:
    """Return the end of an archive of `size` bytes: two empty blocks, then zeros up to a full record of 20 blocks."""
    return bytes(2 * BLOCK + -(size + 2 * BLOCK) % _RECORD)


def _split(name: bytes) -> tuple[bytes, bytes] | None:
    """Split a path into prefix and name of at most 155 and 100 bytes; None if no slash allows it."""
    if len(name) <= _NAME:
        return b"", name
    # The leftmost slash that leaves at most 100 bytes for the name. The last byte of a folder's path is its own slash.
    at = name.find(b"/", len(name) - _NAME - 1, len(name) - 1)
    if at <= 0 or at > _PREFIX:
        return None
    return name[:at], name[at + 1 :]


def _record(key: bytes, value: bytes) -> bytes:
    """Return a PAX record. Its length field includes its own digits."""
    rest = len(key) + len(value) + 3
    length = rest + len(str(rest))
    # The added digits can carry the length over a power of ten: 98 + 2 = 100 has three digits.
    if len(str(length)) != len(str(rest)):
        length += 1
    return b"%d %s=%s\n" % (length, key, value)


def _block(  # noqa: PLR0917 - in the order of the fields
    split_path: tuple[bytes, bytes], kind: bytes, mode: int, mtime: int, size: int, link: bytes, owner: tuple[int, ...]
) -> bytes:
    prefix, name = split_path
    numbers = b"%07o\x00%07o\x00%07o\x00%011o\x00%011o\x00" % (mode, *owner, size, mtime)
    front = name.ljust(_NAME, b"\0") + numbers
    back = b"%s%sustar\x0000%s%s" % (
        kind,
        link.ljust(_NAME, b"\0"),
        bytes(80),  # no names of user and group, no device numbers
        prefix.ljust(167, b"\0"),  # 155 bytes, and 12 to fill the block
    )
    # The checksum is computed with its own eight bytes as blanks.
    checksum = sum(front) + sum(back) + 8 * 0x20
    # Six digits, a zero byte and a blank, as tar has always written it.
    return b"%s%06o\x00 %s" % (front, checksum, back)
