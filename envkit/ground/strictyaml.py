"""Read YAML strictly: values are what the author wrote, and surprising features are refused.

Scalars stay text: `3.10` is '3.10', `no` is 'no', `2024-01-01` is '2024-01-01'. Only plain `true`, `false`, `null`, `~`
and empty values have another type. Tags, anchors, aliases, duplicate keys, several documents, control characters, tabs
as indentation, nesting beyond `MAX_DEPTH` and files beyond `MAX_BYTES` are errors with line and column.

Formats of other tools, in which anchors are common, are read with `aliases`: aliases and merge keys (`<<`) are then
replaced by their values, within the same limits of size and depth.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from envkit.ground import foreign
from envkit.ground.errors import Faults, UsageError

MAX_BYTES = foreign.MAX_TEXT  # far more than a person writes
MAX_DEPTH = 64  # far below Python's recursion limit
_MAX_FAULTS = 20  # in one message
_SHOWN = 80  # characters of the file's text in a message

Tree = dict[str, Any] | list[Any] | str | bool | None
Keys = tuple[str | int, ...]
Places = dict[Keys, tuple[int, int]]

_MERGE = "<<"
_PLAIN = {"true": True, "false": False, "null": None, "~": None, "": None}
# All characters that YAML 1.2 does not allow (c-printable). Tab, line feed, carriage return and U+0085 are allowed.
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff\ufffe\uffff]")
_TAB_INDENT = re.compile(r"^[ ]*\t", re.MULTILINE)
# The base loaders resolve no types. The one in C is faster, but PyYAML may be built without it.
_LOADER: Any = getattr(yaml, "CBaseLoader", yaml.BaseLoader)


def read(text: str, name: str) -> Tree:
    """Return the tree of dict, list, str, bool and None in a text; an empty document is None.

    Args:
        text: the YAML text.
        name: its name in errors, usually the file's path.

    Raises:
        UsageError: the text is not strict YAML; the message begins with `name:line:column:` (both from 1), further
            errors are in `details`.
    """
    return read_with_places(text, name)[0]


def read_with_places(
    text: str, name: str, *, aliases: bool = False, tags: frozenset[str] = frozenset()
) -> tuple[Tree, Places]:
    """Return the tree of `read`, and the (line, column) of every value, from 1, by its path of keys and indexes.

    Args:
        text: as for `read`.
        name: as for `read`.
        aliases: allow anchors, aliases and merge keys. Values inside an aliased value have no position, and all uses of
            an anchor are the same object.
        tags: local tags (`!reset`) that are allowed and have no effect.

    Raises:
        UsageError: as `read`; or the text is larger than `MAX_BYTES` or deeper than `MAX_DEPTH` after its aliases are
            replaced.
    """
    text = text.removeprefix("\ufeff")
    _refuse_raw(text, name)
    return _Builder(text, name, aliases=aliases, tags=tags).build()


def read_file(path: Path, *, root: Path | None = None) -> Tree:
    """Read a YAML file strictly; `root` is as for `envkit.ground.foreign.opened`.

    Raises:
        UsageError: the file does not exist, cannot be read, is too large, is not UTF-8 or is not strict YAML.
    """
    return read(text_of(path, root=root), str(path))


def text_of(path: Path, *, root: Path | None = None) -> str:
    """Return the text of a UTF-8 file of at most `MAX_BYTES`; `root` is as for `envkit.ground.foreign.opened`.

    Raises:
        UsageError: the file does not exist, cannot be read, is too large or is not UTF-8.
    """
    return foreign.text(path, MAX_BYTES, root=root)


def _too_large(name: str) -> UsageError:
    return UsageError(f"{name}:1:1: larger than {MAX_BYTES} bytes", hint="split the file; YAML is read up to 1 MiB")


def _place(text: str, offset: int) -> tuple[int, int]:
    start = text.rfind("\n", 0, offset) + 1
    return text.count("\n", 0, offset) + 1, offset - start + 1


def _refuse_raw(text: str, name: str) -> None:
    if len(text) > MAX_BYTES or len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise _too_large(name)
    bad = _FORBIDDEN.search(text)
    if bad:
        line, column = _place(text, bad.start())
        what = "NUL" if bad.group() == "\0" else f"the control character U+{ord(bad.group()):04X}"
        raise UsageError(f"{name}:{line}:{column}: {what} is not allowed", hint="remove the character")
    tab = _TAB_INDENT.search(text)
    if tab:
        line, column = _place(text, tab.end() - 1)
        raise UsageError(f"{name}:{line}:{column}: a tab is used as indentation", hint="indent with spaces")


@dataclass(frozen=True, slots=True)
class _Anchor:
    """A value that aliases may refer to."""

    value: Tree
    size: int  # characters of its scalars, and one for each value
    height: int  # levels below it


class _Builder:
    """Builds the tree of one document from its events, and collects errors as long as it can continue."""

    def __init__(self, text: str, name: str, *, aliases: bool, tags: frozenset[str]) -> None:
        self._name = name
        self._tags = tags
        self._aliases = aliases
        self._anchors: dict[str, _Anchor] = {}
        # Size and depth of the tree with its aliases replaced, as its users walk it: ten lines of aliases of aliases
        # are a billion values ("billion laughs").
        self._size = 0
        self._deepest = 0
        self._faults = Faults()
        self._places: Places = {}
        self._events: Iterator[Any] = iter(yaml.parse(text, Loader=_LOADER))

    def build(self) -> tuple[Tree, Places]:
        try:
            tree = self._document()
        except yaml.MarkedYAMLError as error:
            self._fault(error.problem_mark or error.context_mark, _message(error))
            tree = None
        except yaml.YAMLError as error:
            self._fault(None, str(error).splitlines()[0])
            tree = None
        self._faults.refuse("quote it ('...') if it is meant as a string")
        return tree, self._places

    def _fault(self, mark: Any, what: str) -> None:
        line, column = (mark.line + 1, mark.column + 1) if mark is not None else (1, 1)
        if len(self._faults) < _MAX_FAULTS:
            self._faults.say(f"{self._name}:{line}:{column}: {what}")

    def _document(self) -> Tree:
        tree: Tree = None
        documents = 0
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if event.tags:
                    self._fault(event.start_mark, "a %TAG directive is not allowed")
                if documents > 1:
                    self._fault(event.start_mark, "a second document starts here; one file holds one document")
                    break
            elif isinstance(event, yaml.NodeEvent):
                tree = self._node(event, ())
        return tree

    def _node(self, event: Any, path: Keys) -> Tree:
        """Return the value that begins with `event`; recursion is bounded by MAX_DEPTH."""
        mark = event.start_mark
        self._places[path] = (mark.line + 1, mark.column + 1)
        if isinstance(event, yaml.AliasEvent):
            return self._aliased(event, path)
        if event.anchor is not None:
            if self._aliases:
                return self._anchored(event, path)
            self._fault(
                mark, f"the anchor &{_shown(str(event.anchor))} is not allowed; write the value out where it is used"
            )
        return self._plain(event, path)

    def _anchored(self, event: Any, path: Keys) -> Tree:
        """Return the value that begins with `event`, and store it for its aliases."""
        # An alias inside its own value would make the tree infinite, so the anchor is not defined while it is read.
        self._anchors.pop(event.anchor, None)
        size, deepest, self._deepest = self._size, self._deepest, len(path)
        value = self._plain(event, path)
        self._anchors[event.anchor] = _Anchor(value, self._size - size, self._deepest - len(path))
        self._deepest = max(deepest, self._deepest)
        return value

    def _aliased(self, event: Any, path: Keys) -> Tree:
        mark, name = event.start_mark, f"*{_shown(str(event.anchor))}"
        if not self._aliases:
            self._fault(mark, f"the alias {name} is not allowed; write the value out")
            return None
        anchor = self._anchors.get(event.anchor)
        if anchor is None:
            self._fault(mark, f"the alias {name} has no anchor before it")
            return None
        self._grow(anchor.size, len(path) + anchor.height)
        if self._size > MAX_BYTES:
            raise yaml.MarkedYAMLError(
                problem=f"larger than {MAX_BYTES} bytes with aliases replaced by their values", problem_mark=mark
            )
        if self._deepest > MAX_DEPTH:
            raise yaml.MarkedYAMLError(
                problem=f"nested deeper than {MAX_DEPTH} levels with aliases replaced by their values",
                problem_mark=mark,
            )
        return anchor.value

    def _grow(self, size: int, depth: int) -> None:
        self._size += size
        self._deepest = max(self._deepest, depth)

    def _plain(self, event: Any, path: Keys) -> Tree:
        mark = event.start_mark
        if event.tag is not None and event.tag not in self._tags:
            self._fault(mark, f"the tag {_shown(event.tag)} is not allowed; values are plain data")
        self._grow(1, len(path))
        if isinstance(event, yaml.ScalarEvent):
            self._grow(len(event.value), len(path))
            return _scalar(event)
        if len(path) >= MAX_DEPTH:
            raise yaml.MarkedYAMLError(problem=f"nested deeper than {MAX_DEPTH} levels", problem_mark=mark)
        return self._list(path) if isinstance(event, yaml.SequenceStartEvent) else self._dict(path)

    def _list(self, path: Keys) -> list[Any]:
        items: list[Any] = []
        for event in self._events:
            if isinstance(event, yaml.SequenceEndEvent):
                break
            items.append(self._node(event, (*path, len(items))))
        return items

    def _dict(self, path: Keys) -> dict[str, Any]:
        table: dict[str, Any] = {}
        merged: dict[str, Any] | None = None
        for event in self._events:
            if isinstance(event, yaml.MappingEndEvent):
                break
            key = self._key(event, path)
            self._grow(len(key), len(path))
            mark = event.start_mark
            value = self._node(next(self._events), (*path, key))
            if key in table or (key == _MERGE and merged is not None):
                self._fault(mark, f"the key '{_shown(key)}' is given twice")
            if key == _MERGE and self._aliases and not event.style:
                merged = self._merged(value, mark)
            else:
                table[key] = value
        for key, value in (merged or {}).items():
            if key not in table:
                self._places[*path, key] = self._places[*path, _MERGE]
                table[key] = value
        return table

    def _merged(self, value: Tree, mark: Any) -> dict[str, Any]:
        """Return the keys of a merge key's value; of several mappings, the first with a key takes precedence."""
        parts = value if isinstance(value, list) else [value]
        if not all(isinstance(part, dict) for part in parts):
            self._fault(mark, "the merge key << needs a mapping, or a list of mappings")
            return {}
        return {key: item for part in reversed(parts) for key, item in part.items()}

    def _key(self, event: Any, path: Keys) -> str:
        mark = event.start_mark
        # The node is read all the same, so that the events after it stay in order.
        if not isinstance(event, yaml.ScalarEvent):
            self._node(event, (*path, "?"))
            self._fault(mark, "a key must be a string")
            return "?"
        if event.anchor is not None or event.tag is not None:
            self._node(event, (*path, "?"))
        if event.value == "":
            self._fault(mark, "a key is empty")
        elif event.value == _MERGE and not event.style and not self._aliases:
            self._fault(mark, "the merge key << is not allowed; write the keys out")
        return str(event.value)


def _scalar(event: Any) -> str | bool | None:
    if not event.style and event.value in _PLAIN:
        return _PLAIN[event.value]
    return str(event.value)


def _shown(text: str) -> str:
    """Return text of a file for a message: one line, without control characters, of limited length."""
    clean = "".join(char if char.isprintable() else "?" for char in text[:_SHOWN])
    return clean if len(text) <= _SHOWN else f"{clean}..."


def _message(error: yaml.MarkedYAMLError) -> str:
    if error.problem == "exceeded maximum nesting depth":  # PyYAML 6.0.4 reads ahead and has its own limit, 1000 levels
        return f"nested deeper than {MAX_DEPTH} levels"
    context = f" ({error.context})" if error.context else ""
    return f"{error.problem or 'not YAML'}{context}"
