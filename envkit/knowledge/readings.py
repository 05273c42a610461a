"""The values that a log names for a row: `reads` of the failures, as sentences for the cause."""

from __future__ import annotations

import string
from collections.abc import Iterator
from dataclasses import dataclass, field

from envkit.knowledge.failures import Reading
from envkit.knowledge.signatures import compiled

_MOST = 6  # sentences per row
_LONGEST = 120  # characters of a value
_K = 1000
_CUDNN_9 = 90_000  # since then a version is five digits: 8907 is 8.9.7, 90100 is 9.1.0 (some programs write 9100)


class Value(str):
    """A value of a log; `{found:cuda}` and `{found:cudnn}` write the number of a library's version as a version.

    The library may be a value itself: `{found:{part}}`. Numbers of other libraries are written as they are.
    """

    __slots__ = ()

    def __format__(self, library: str) -> str:
        name = library.lower()
        if name not in ("cuda", "cudnn") or not self.isdecimal():
            return str(self)
        number = int(self)
        if name == "cuda":
            # 12080, and 121 in the names of files
            return f"{number // _K}.{number % _K // 10}" if number >= _K else f"{number // 10}.{number % 10}"
        major = 10 * _K if number >= _CUDNN_9 else _K
        return f"{number // major}.{number % major // 100}.{number % 100}"


@dataclass(slots=True)
class Values:
    """Collects the values of one row while a log is read from its start."""

    latest: dict[str, Value] = field(default_factory=dict)
    _said: dict[str, None] = field(default_factory=dict)  # in order, each once
    _waiting: dict[str, None] = field(default_factory=dict)  # sentences with a value that was not read yet

    def read(self, reading: Reading, line: str) -> None:
        """Take a line that fits a reading. A sentence has the values up to its line, or those of the whole log."""
        match = compiled(reading.signature.match or "").search(line)
        if match is None:
            return
        self.latest |= {name: Value(_cut(value.strip())) for name, value in match.groupdict().items() if value}
        if reading.say and not self._say(reading.say):
            self._waiting[reading.say] = None

    def sentences(self) -> Iterator[str]:
        """Yield the sentences whose values are all in the log."""
        for sentence in self._waiting:
            self._say(sentence)
        yield from list(self._said)[:_MOST]

    def _say(self, sentence: str) -> bool:
        if not wanted(sentence) <= set(self.latest):
            return False
        if len(self._said) < _MOST:
            self._said[sentence.format_map(self.latest)] = None
        return True


def _cut(value: str) -> str:
    """Return a value that is not too long; a longer one ends after a word."""
    return value if len(value) <= _LONGEST else f"{value[:_LONGEST].rpartition(' ')[0] or value[:_LONGEST]} \u2026"


def wanted(sentence: str) -> frozenset[str]:
    """Return the names of the values that a sentence has."""
    fields = [(name, spec) for _, name, spec, _ in string.Formatter().parse(sentence) if name]
    return frozenset().union(*({name, *wanted(spec or "")} for name, spec in fields))
