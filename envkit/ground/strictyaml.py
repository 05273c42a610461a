"""YAML read strictly: what the author wrote is what the program sees, and anything surprising is refused.

Scalars stay text (`3.10` is '3.10', `no` is 'no', `2024-01-01` is itself); only a plain `true`, `false`, `null`, `~`
or nothing at all has another type. Tags, anchors, aliases, duplicate keys, several documents, control characters,
tabs as indentation, nesting beyond `MAX_DEPTH` and files beyond `MAX_BYTES` are errors with their place.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from envkit.ground.errors import UsageError

MAX_BYTES = 1024 * 1024
MAX_DEPTH = 64
_MAX_FAULTS = 20
_SHOWN = 80  # characters of the file's own text in a message

Tree = dict[str, Any] | list[Any] | str | bool | None
Keys = tuple[str | int, ...]
Places = dict[Keys, tuple[int, int]]

_PLAIN = {"true": True, "false": False, "null": None, "~": None, "": None}
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff\ufffe\uffff]")
_TAB_INDENT = re.compile(r"^[ ]*\t", re.MULTILINE)
_LOADER: Any = getattr(yaml, "CBaseLoader", yaml.BaseLoader)


def read(text: str, name: str) -> Tree:
    """The tree of dict, list, str, bool and None that `text` holds; an empty document is None.

    Args:
        text: the YAML text.
        name: what errors call it, usually the file's path.

    Raises:
        UsageError: the text is not strict YAML; the message starts with `name:line:column:` (both from 1), further
            faults are in `details`.
    """
    return read_with_places(text, name)[0]


def read_with_places(text: str, name: str) -> tuple[Tree, Places]:
    """As `read`, with the (line, column) of every value, from 1, by its path of keys and indexes.

    Raises:
        UsageError: as `read`.
    """
    text = text.removeprefix("\ufeff")
    _refuse_raw(text, name)
    return _Builder(text, name).build()


def read_file(path: Path) -> Tree:
    """Read a YAML file strictly.

    Raises:
        UsageError: the file does not exist, cannot be read, is too large, is not UTF-8 or is not strict YAML.
    """
    return read(text_of(path), str(path))


def text_of(path: Path) -> str:
    """The text of a UTF-8 file of at most `MAX_BYTES`.

    Raises:
        UsageError: the file does not exist, cannot be read, is too large or is not UTF-8.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        reason = (error.strerror or "cannot be read").lower()
        raise UsageError(f"{path}: {reason}", hint=f"ls -l {path}") from error
    if len(raw) > MAX_BYTES:
        raise _too_large(str(path))
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise UsageError(f"{path}:1:1: the file is UTF-16, not UTF-8", hint=f"iconv -f UTF-16 -t UTF-8 {path}")
    try:
        return raw.decode("utf-8").removeprefix("\ufeff")  # a byte order mark, as editors on Windows write it
    except UnicodeDecodeError as error:
        before = raw[: error.start].decode("utf-8", "replace")
        line, column = _place(before, len(before))
        raise UsageError(
            f"{path}:{line}:{column}: byte 0x{raw[error.start]:02x} is not UTF-8", hint="save the file as UTF-8"
        ) from error


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


class _Builder:
    """Turns one document's events into a tree, gathering every fault that does not stop the reading."""

    def __init__(self, text: str, name: str) -> None:
        self._name = name
        self._faults: list[str] = []
        self._places: Places = {}
        self._events: Iterator[Any] = iter(yaml.parse(text, Loader=_LOADER))

    def build(self) -> tuple[Tree, Places]:
        try:
            tree = self._document()
        except yaml.MarkedYAMLError as error:
            self._fault(error.problem_mark or error.context_mark, _spoken(error))
            tree = None
        except yaml.YAMLError as error:
            self._fault(None, str(error).splitlines()[0])
            tree = None
        if self._faults:
            raise UsageError(
                self._faults[0],
                hint="quote it ('...') if it is meant as a string",
                details=tuple(self._faults[1:]),
            )
        return tree, self._places

    def _fault(self, mark: Any, what: str) -> None:
        line, column = (mark.line + 1, mark.column + 1) if mark is not None else (1, 1)
        if len(self._faults) < _MAX_FAULTS:
            self._faults.append(f"{self._name}:{line}:{column}: {what}")

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
        """The value that starts with `event`; recursion is bounded by MAX_DEPTH."""
        mark = event.start_mark
        self._places[path] = (mark.line + 1, mark.column + 1)
        if isinstance(event, yaml.AliasEvent):
            self._fault(mark, f"the alias *{_shown(str(event.anchor))} is not allowed; write the value out")
            return None
        if event.anchor is not None:
            self._fault(
                mark, f"the anchor &{_shown(str(event.anchor))} is not allowed; write the value out where it is used"
            )
        if event.tag is not None:
            self._fault(mark, f"the tag {_shown(event.tag)} is not allowed; values are plain data")
        if isinstance(event, yaml.ScalarEvent):
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
        for event in self._events:
            if isinstance(event, yaml.MappingEndEvent):
                break
            key = self._key(event, path)
            mark = event.start_mark
            value = self._node(next(self._events), (*path, key))
            if key in table:
                self._fault(mark, f"the key '{_shown(key)}' is given twice")
            table[key] = value
        return table

    def _key(self, event: Any, path: Keys) -> str:
        mark = event.start_mark
        if not isinstance(event, yaml.ScalarEvent):
            self._node(event, (*path, "?"))
            self._fault(mark, "a key must be a string")
            return "?"
        if event.anchor is not None or event.tag is not None:
            self._node(event, (*path, "?"))
        if event.value == "":
            self._fault(mark, "a key is empty")
        elif event.value == "<<" and not event.style:
            self._fault(mark, "the merge key << is not allowed; write the keys out")
        return str(event.value)


def _scalar(event: Any) -> str | bool | None:
    if not event.style and event.value in _PLAIN:
        return _PLAIN[event.value]
    return str(event.value)


def _shown(text: str) -> str:
    """Text of a file as a message may repeat it: on one line, without control characters, not endless."""
    clean = "".join(char if char.isprintable() else "?" for char in text[:_SHOWN])
    return clean if len(text) <= _SHOWN else f"{clean}..."


def _spoken(error: yaml.MarkedYAMLError) -> str:
    context = f" ({error.context})" if error.context else ""
    return f"{error.problem or 'not YAML'}{context}"
