"""The ignore file of a folder (`.envkitignore` or `.dockerignore`): which of its files are not copied.

A pattern is matched part by part. A regular expression would try every way to divide a path among its wildcards, which
takes centuries for a few dozen of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from envkit.ground import foreign
from envkit.ground.errors import UsageError

IGNORE_FILES = (".envkitignore", ".dockerignore")
"""Names of the file; the first that exists is read."""
_MOST_STEPS = 20_000_000  # comparisons of a pattern's part with a path's part, for one image: some 20 s
_MOST_CHARS = 4096  # of a pattern, as of a path in Linux
_MANY = "**"  # a part that stands for any number of folders

_Fits = Callable[[str], bool]
_Test = TypeVar("_Test")
_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of a pattern: a name, or the tests for its characters in order, of which None is any number of them."""

    name: str
    tests: tuple[_Fits | None, ...] = ()

    def matches(self, name: str) -> bool:
        return _aligned(self.tests, name, lambda fits, char: fits(char)) if self.tests else self.name == name

    def steps(self, name: str) -> int:
        return 1 + len(self.tests) * len(name) // 64


@dataclass(frozen=True, slots=True)
class _Pattern:
    parts: tuple[_Part | None, ...]  # None: any number of parts
    is_exception: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Ignore:
    """The patterns of an ignore file, in the syntax of .dockerignore: the last pattern that matches decides."""

    name: str = ""  # of the file; empty if there is none
    patterns: tuple[_Pattern, ...] = ()
    work: foreign.Budget = field(default_factory=lambda: foreign.Budget(_MOST_STEPS, "can be compared in time"))

    @classmethod
    def of(cls, folder: Path) -> Ignore:
        """Return the patterns of a folder's ignore file; there are none if it has no such file.

        Raises:
            UsageError: the file cannot be read, or a pattern is invalid.
        """
        for name in IGNORE_FILES:
            path = folder / name
            if os.path.lexists(path):
                return cls(name=name, patterns=tuple(_patterns(foreign.text(path, root=folder), str(path))))
        return cls()

    @property
    def has_exceptions(self) -> bool:
        """Whether a pattern may include files of an ignored folder again."""
        return any(pattern.is_exception for pattern in self.patterns)

    def matches(self, path: str) -> bool:
        """Return whether a relative path, or a folder above it, is ignored.

        Raises:
            UsageError: the patterns and files together are too many.
        """
        ignored, names = False, path.split("/")
        for pattern in self.patterns:
            # A pattern that would change nothing is not compared.
            if pattern.is_exception is ignored and _aligned(pattern.parts, names, self._fits):
                ignored = not pattern.is_exception
        return ignored

    def _fits(self, part: _Part, name: str) -> bool:
        self.work.spend(
            part.steps(name), f"{self.name}: more patterns and files", hint="ignore whole folders, with fewer patterns"
        )
        return part.matches(name)


def _aligned(tests: Sequence[_Test | None], items: Sequence[_Item], fits: Callable[[_Test, _Item], bool]) -> bool:
    """Return whether tests fit items in order; the test None stands for any number of items.

    Only the last None has to take one more item after a failure: whatever an earlier one took, the tests between them
    fit. So the time is at most the product of both lengths.
    """
    test = item = 0
    resume, taken = -1, 0
    while item < len(items):
        current = tests[test] if test < len(tests) else None
        if test < len(tests) and current is None:
            test, resume, taken = test + 1, test + 1, item
        elif current is not None and fits(current, items[item]):
            test, item = test + 1, item + 1
        elif resume >= 0:
            taken += 1
            test, item = resume, taken
        else:
            return False
    return all(rest is None for rest in tests[test:])


def _patterns(text: str, where: str) -> Iterator[_Pattern]:
    # Of equal lines only the last can decide, so it stands for all of them.
    last = {line: number for number, raw in enumerate(text.splitlines(), 1) if (line := raw.strip())}
    for line, number in sorted(last.items(), key=lambda item: item[1]):
        if line.startswith("#"):
            continue
        if len(line) > _MOST_CHARS:
            raise UsageError(f"{where}:{number}: a pattern of {len(line)} characters", hint="shorten the pattern")
        parts = [part for part in line.removeprefix("!").strip().split("/") if part not in ("", ".")]
        if parts:
            yield _Pattern(tuple(_parts(parts, f"{where}:{number}")), line.startswith("!"))


def _parts(parts: Sequence[str], where: str) -> Iterator[_Part | None]:
    before: _Part | None = _Part("")
    for index, part in enumerate(parts):
        is_last = index == len(parts) - 1
        current = None if part == _MANY else _part(part, where)
        if current is None and is_last:
            yield _Part("*", (None,))  # `a/**` is everything below `a`, but not `a`
        elif current is not None or before is not None:
            yield current
        before = current
    yield None  # paths below a match match too


def _part(text: str, where: str) -> _Part:
    if not any(char in text for char in "*?[\\"):
        return _Part(text)
    tests: list[_Fits | None] = []
    chars = iter(text)
    for char in chars:
        if char == "*":
            if not tests or tests[-1] is not None:
                tests.append(None)
        elif char == "?":
            tests.append(lambda _: True)
        elif char == "[":
            tests.append(_class(chars, text, where))
        else:
            tests.append((_escaped(chars, text, where) if char == "\\" else char).__eq__)
    return _Part(text, tuple(tests))


def _class(chars: Iterator[str], text: str, where: str) -> _Fits:
    """Return the test of a class, such as `[a-z]` or `[^0-9]`; `chars` are those after its bracket."""
    ranges: list[tuple[str, str]] = []
    char = next(chars, "")
    negated = char == "^"
    if negated:
        char = next(chars, "")
    while char != "]" or not ranges:
        # As in Docker, which takes neither an empty class nor a hyphen at its beginning or end.
        if char in ("", "-", "]"):
            raise _invalid(text, where)
        low = high = _escaped(chars, text, where) if char == "\\" else char
        char = next(chars, "")
        if char == "-":
            char = next(chars, "")
            if char in ("", "-", "]"):
                raise _invalid(text, where)
            high = _escaped(chars, text, where) if char == "\\" else char
            char = next(chars, "")
        if low > high:
            raise _invalid(text, where)
        ranges.append((low, high))
    return lambda tested: any(low <= tested <= high for low, high in ranges) is not negated


def _escaped(chars: Iterator[str], text: str, where: str) -> str:
    char = next(chars, "")
    if not char:
        raise _invalid(text, where)
    return char


def _invalid(text: str, where: str) -> UsageError:
    return UsageError(
        f"{where}: {text!r:.80} is not a valid pattern", hint="write a class as [a-z], and a bracket itself as \\["
    )
