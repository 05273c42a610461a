"""The lines of a log that look like failures and match no row of the knowledge base, kept in their order.

Of a traceback, its exception is kept, and the line of the user's code that it comes from. Memory is bounded: of sure
and of weak signs the first and the last lines are kept, and the others are counted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from envkit.doctor import tracebacks
from envkit.doctor.logtext import unprefixed
from envkit.doctor.model import Evidence
from envkit.doctor.shapes import Sign
from envkit.doctor.tracebacks import Traceback
from envkit.knowledge.signatures import NEAR

_KEPT = 4  # of each kind, this many first lines and as many last ones
_MOST_ORIGINS = 8 * _KEPT
RawLine = tuple[int, str]  # number and text


@dataclass(slots=True)
class _Kept:
    first: list[RawLine] = field(default_factory=list)
    last: deque[RawLine] = field(default_factory=lambda: deque(maxlen=_KEPT))
    count: int = 0

    def add(self, line: RawLine) -> None:
        self.count += 1
        (self.first if len(self.first) < _KEPT else self.last).append(line)

    def lines(self) -> list[RawLine]:
        return [*self.first, *self.last]


@dataclass(slots=True)
class Faults:
    """Collects the lines while a log is read from its start."""

    _sure: _Kept = field(default_factory=_Kept)
    _weak: _Kept = field(default_factory=_Kept)
    heads: list[RawLine] = field(default_factory=list)
    """Of tracebacks whose exception was not yet read."""
    origins: dict[int, str] = field(default_factory=dict)
    """Where exceptions come from, by their line in the log; of those that are kept."""
    _frames: Traceback | None = None  # of the only open traceback
    _without_origin: list[int] = field(default_factory=list)  # exceptions that led to the next one
    _is_joined: bool = False  # whether the next traceback belongs to them

    def _is_in_traceback(self, number: int) -> bool:
        """Return whether a line may belong to a traceback; the heads of older ones are kept as lines of their own."""
        while self.heads and number - self.heads[0][0] > NEAR:
            self._sure.add(self.heads.pop(0))
        return bool(self.heads)

    def read(self, number: int, line: str, sign: Sign, *, known: bool) -> None:
        """Take a line with its sign. `known` lines match a row: they end a traceback, and are not kept."""
        if tracebacks.joins(line):
            self._is_joined = True
            return
        if tracebacks.HEAD in line:
            if not self._is_joined:
                self._without_origin.clear()
            self._is_joined = False
            # Ranks may print their tracebacks at the same time; a few heads are enough.
            if len(self.heads) == _KEPT:
                self._sure.add(self.heads.pop(0))
            self._frames = None if self.heads else Traceback()
            self.heads.append((number, line))
            return
        if self._is_in_traceback(number):
            text = unprefixed(line)
            if self._frames is not None:
                self._frames.read(text)
            if text[:1].isspace():  # a source line, which may quote the message
                return
            if tracebacks.may_be_raised(text):
                self.heads.pop(0)
                sign = Sign.SURE
                if self._frames is not None:
                    self._keep_origin(number, self._frames.origin)
        if known or sign is Sign.NONE:
            return
        (self._sure if sign is Sign.SURE else self._weak).add((number, line))

    def _keep_origin(self, number: int, origin: str) -> None:
        if origin:
            self.origins |= dict.fromkeys((number, *self._without_origin), origin)
            self._without_origin.clear()
        elif len(self._without_origin) < _KEPT:
            self._without_origin.append(number)
        if len(self.origins) > _MOST_ORIGINS:
            kept = {line for line, _ in self._sure.lines()}
            self.origins = {line: place for line, place in self.origins.items() if line in kept or line == number}

    def add(self, lines: Iterable[Evidence]) -> None:
        """Take the lines of a known failure that the log does not bear out."""
        for one in lines:
            self._sure.add((one.line or 0, one.text))

    def finish(self) -> None:
        """Keep the heads of tracebacks that the log cuts off."""
        while self.heads:
            self._sure.add(self.heads.pop(0))

    def lines(self) -> list[RawLine]:
        """Return the kept lines in the order of the log."""
        return sorted({*self._sure.lines(), *self._weak.lines()})

    @property
    def left_out(self) -> int:
        """The number of lines that were counted and not kept."""
        return self._sure.count + self._weak.count - len(self._sure.lines()) - len(self._weak.lines())

    def sure(self) -> list[int]:
        """Return the numbers of the kept lines that are sure signs, in order."""
        return [number for number, _ in self._sure.lines()]
