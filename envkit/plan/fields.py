"""Typed reading of one mapping of an image definition: all errors are collected.

Values come from `envkit.ground.strictyaml`, so scalars are text, true, false or null; numbers are read here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from envkit.ground.errors import MAX_FAULTS
from envkit.ground.text import similar

Check = Callable[[str], str | None]
"""Returns why the value is refused, None if it is fine."""

Rows = tuple[Mapping[str, str], ...]


class Fields:
    """One mapping; errors go to the shared list, each with its path (`images/train.yaml: request.cuda`)."""

    def __init__(self, tree: Any, where: str, known: Collection[str], faults: list[str], joint: str = ": ") -> None:
        self._where = where
        self._joint = joint
        self._faults = faults
        self._known = known
        self._tree: Mapping[str, Any] = {}
        if not isinstance(tree, Mapping):
            is_file = joint == ": "
            # The text of a file that is not a definition at all is not shown: a link may lead to any file of the user.
            what = "a text" if is_file and isinstance(tree, str) else _shown(tree)
            faults.append(f"{where} is empty" if tree is None and is_file else f"{where}: {what} is not a mapping")
            return
        self._tree = tree
        unknown = [key for key in tree if key not in known]
        # A suggestion compares the key with every known one, and only MAX_FAULTS errors are shown.
        faults += [f"{self.at(key)}: unknown key; {_near(key, known)}" for key in unknown[:MAX_FAULTS]]
        faults += [f"{self.at(key)}: unknown key" for key in unknown[MAX_FAULTS:]]

    def __contains__(self, key: str) -> bool:
        return key in self._tree

    def at(self, key: str) -> str:
        """Return the path of a key, as errors name it."""
        return f"{self._where}{self._joint}{_plain(key)}"

    def fault(self, key: str, value: object, why: str) -> None:
        """Record that a value is refused."""
        self._faults.append(f"{self.at(key)}: {_shown(value)} {why}")

    def text(self, key: str, check: Check) -> str | None:
        """Return a text, or None if it is absent or refused."""
        if key not in self._tree:
            return None
        value = self._tree[key]
        if not isinstance(value, str):
            self.fault(key, value, "is not a string; quote it" if isinstance(value, bool) else "is not a string")
            return None
        why = check(value)
        if why:
            self.fault(key, value, why)
            return None
        return value

    def choice(self, key: str, allowed: Collection[str]) -> str | None:
        """Return one of a few words, or None if it is absent or refused."""

        def check(value: str) -> str | None:
            return None if value in allowed else f"is not one of {', '.join(allowed)}; {_near(value, allowed)}"

        return self.text(key, check)

    def flag(self, key: str) -> bool | None:
        """Return true or false, or None if the key is absent or refused."""
        value = self._tree.get(key)
        if key in self._tree and not isinstance(value, bool):
            self.fault(key, value, "is neither true nor false")
            return None
        return value if isinstance(value, bool) else None

    def number(self, key: str, low: int, high: int) -> int | None:
        """Return a whole number between two bounds, both included; None if it is absent or refused."""

        def check(value: str) -> str | None:
            whole = value.isascii() and value.isdigit() and len(value) < 10  # noqa: PLR2004 - keeps int() small
            return None if whole and low <= int(value) <= high else f"is not a whole number from {low} to {high}"

        value = self.text(key, check)
        return None if value is None else int(value)

    def words(self, key: str, check: Check) -> tuple[str, ...] | None:
        """Return a list of texts, each checked; a repeated text is an error."""
        if key not in self._tree:
            return None
        value = self._tree[key]
        if not isinstance(value, list):
            self.fault(key, value, "is not a list")
            return None
        words: dict[str, None] = {}  # in the order of the list
        for index, item in enumerate(value):
            why = "is not a string; quote it" if not isinstance(item, str) else check(item)
            why = why or ("is listed twice" if item in words else None)
            if why:
                self.fault(f"{key}[{index}]", item, why)
            else:
                words[item] = None
        return tuple(words)

    def choices(self, key: str, allowed: Collection[str]) -> tuple[str, ...] | None:
        """Return a list of some of a few words; a repeated word is an error."""
        return self.words(key, lambda value: None if value in allowed else f"is not one of {', '.join(allowed)}")

    def command(self, key: str, check: Callable[[tuple[str, ...]], str | None]) -> tuple[str, ...] | None:
        """Return a list of words in order, checked as a whole; words may repeat."""
        value = self._tree.get(key)
        if key not in self._tree:
            return None
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            self.fault(key, value, "is not a list of strings")
            return None
        why = check(tuple(value))
        if why:
            self.fault(key, value, why)
            return None
        return tuple(value)

    def rows(self, key: str, known: Collection[str], check: Callable[[Mapping[str, str]], str | None]) -> Rows | None:
        """Return a list of mappings from all of the known keys to texts, each mapping checked as a whole."""
        if key not in self._tree:
            return None
        value = self._tree[key]
        if not isinstance(value, list):
            self.fault(key, value, "is not a list")
            return None
        rows = []
        for index, item in enumerate(value):
            under = Fields(item, f"{self.at(key)}[{index}]", known, self._faults, joint=".")
            row = {name: under.text(name, lambda _: None) for name in known}
            texts = {name: text for name, text in row.items() if text is not None}
            missing = [name for name in known if name not in under]
            if isinstance(item, Mapping) and missing:
                self._faults.append(f"{self.at(key)}[{index}]: {missing[0]} is missing")
            elif len(texts) == len(known) and (why := check(texts)):
                self._faults.append(f"{self.at(key)}[{index}]: {why}")
            elif len(texts) == len(known):
                rows.append(texts)
        return tuple(rows)

    def pairs(self, key: str, check: Callable[[str, str], str | None]) -> dict[str, str] | None:
        """Return a mapping of names to texts, each pair checked."""
        if key not in self._tree:
            return None
        value = self._tree[key]
        if not isinstance(value, Mapping):
            self.fault(key, value, "is not a mapping of names to strings")
            return None
        pairs: dict[str, str] = {}
        for name, item in value.items():
            why = "is not a string; quote it" if not isinstance(item, str) else check(name, item)
            if why:
                self._faults.append(f"{self.at(key)}.{_plain(name)}: {why}")
            else:
                pairs[name] = item
        return pairs

    def child(self, key: str, known: Collection[str]) -> Fields:
        """Return the mapping under a key; it is empty if the key is absent."""
        return Fields(self._tree.get(key, {}), self.at(key), known, self._faults, joint=".")


def _near(key: str, known: Collection[str]) -> str:
    close = similar(key, known, cutoff=0.5)
    return f"did you mean {close[0]}?" if close else f"known: {', '.join(known)}"


def _shown(value: object) -> str:
    if value is None:
        return "nothing (null)"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return repr(value[:80]) + ("..." if len(value) > 80 else "")  # noqa: PLR2004 - a message, not a dump
    return f"a {'mapping' if isinstance(value, Mapping) else type(value).__name__}"


def _plain(name: str) -> str:
    return name if name.isprintable() and len(name) <= 80 else repr(name[:80])  # noqa: PLR2004
