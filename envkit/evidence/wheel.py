"""A wheel's directory and single members, without the rest of the file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from envkit.evidence.ranges import pieces
from envkit.ground.errors import IntegrityError
from envkit.image.deflate import DamagedError, Inflater, check_crc, crc32
from envkit.image.zip_entries import Listed, Source, listed, located

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_MEMBER_MAX = 1 << 20  # bytes of a text that is read whole; METADATA of torch has 30 kB


@dataclass(frozen=True, slots=True)
class Wheel:
    """An open wheel."""

    name: str  # of the file
    source: Source
    members: Mapping[str, Listed]

    def text(self, member: str, limit: int = _MEMBER_MAX) -> bytes:
        """The contents of a small member, checked against its CRC-32.

        Raises:
            IntegrityError: it is missing, damaged or larger than `limit` bytes.
            EnvironmentProblem: the file cannot be read.
        """
        row = self.members.get(member)
        if row is None:
            self._refuse(f"it has no {member}")
        if row.entry.size > limit:
            self._refuse(f"{member} has {row.entry.size} bytes")
        return b"".join(self.inflated(member))

    def inflated(self, member: str) -> Iterator[bytes]:
        """The contents of a member from its beginning, in pieces of at most 1 MiB; stop where enough is seen.

        Raises:
            IntegrityError: it is missing or damaged, or inflates past its size.
            EnvironmentProblem: the file cannot be read.
        """
        row = self.members.get(member)
        if row is None:
            self._refuse(f"it has no {member}")
        entry = located(self.source, self.name, row)
        stretch = pieces(self.source, entry.offset, entry.packed)
        try:
            if not entry.deflated:
                seen = 0
                for piece in stretch:
                    seen = crc32(piece, seen)
                    yield piece
                check_crc(seen, entry.crc)
                return
            inflater = Inflater(entry.size)
            for piece in stretch:
                yield from inflater.feed(piece)
            inflater.finish(entry.crc)
        except DamagedError as error:
            self._refuse(f"{member} is damaged: {error}", error)

    def metadata(self) -> tuple[str, bytes]:
        """The name and the contents of METADATA. Raises as `text`."""
        names = [name for name in self.members if name.endswith(".dist-info/METADATA") and name.count("/") == 1]
        if len(names) != 1:
            self._refuse(f"it has {len(names)} METADATA files, not one")
        return names[0], self.text(names[0])

    def _refuse(self, why: str, cause: Exception | None = None) -> NoReturn:
        raise IntegrityError(
            f"{self.name} is refused: {why}", hint="it is not a sound wheel; use the file of another index"
        ) from cause


def open_wheel(name: str, source: Source) -> Wheel:
    """Read the directory of a wheel.

    Raises:
        IntegrityError: it is cut, no zip file, or has names that no package may have.
        EnvironmentProblem: the file cannot be read.
    """
    rows = listed(source, name)
    return Wheel(name, source, {row.entry.name: row for row in rows})
