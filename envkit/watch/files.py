"""The files that a watched job writes: its events, its facts, and its tracebacks at fatal signals.

The job can be an untrusted image, so its files are foreign: they are opened through the door (`ground/foreign`), read
without a mapping, and everything in them is checked. A file that fails a check is lost by name; the others are not.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from envkit.ground import foreign, trees
from envkit.ground.errors import EnvkitError
from envkit.watch.injected import envkit_watch_endings as endings
from envkit.watch.injected import envkit_watch_stream as stream
from envkit.watch.stacks import Layout

_NAME = re.compile(r"([1-9]\d{0,9})-\d{1,20}\.(ring|facts|crash)", re.ASCII)
MOST_FILES = 10_000
"""Files of one kind that are looked at: loaders may start workers in every epoch, thousands in total."""
MOST_FACTS = 1 << 20
"""Bytes of one file of facts; a process writes a few thousand."""
_MOST_LINES = 1000
_REPLACED = "the job replaced or removed the folder of its events"
_MOST_CRASH = 1 << 16  # a traceback has at most 100 frames
_MOST_SECONDS = 1e9
_MOST_AMOUNT = 1e18  # bytes; sums of these stay finite
_MOST_WHOLE = 1 << 62
_LONGEST = 200  # characters of a text

Event = tuple[int, int, float, float, float, int]

_NUMBER, _TEXT, _FLAG, _PAIR = "a whole number", "a text", "true or false", "a list of two whole numbers"
_LOADER = {
    "num_workers": _NUMBER,
    "pin_memory": _FLAG,
    "persistent_workers": _FLAG,
    "prefetch_factor": _NUMBER,
    "batch_size": _NUMBER,
    "start_method": _TEXT,
    "dataset": _TEXT,
}
_PLACES = {"error": _TEXT, "where": _TEXT, "raised": _TEXT, "probes": _NUMBER}
_FACTS: dict[str, Mapping[str, str]] = {
    "process": {
        "pid": _NUMBER, "ppid": _NUMBER, "program": _TEXT, "omp_num_threads": _TEXT, "loader": _NUMBER,
        "RANK": _TEXT, "LOCAL_RANK": _TEXT, "WORLD_SIZE": _TEXT,
    },
    "training": {
        "torch": _TEXT, "threads": _NUMBER, "device": _TEXT, "parameters": _NUMBER, "parameter_bytes": _NUMBER,
        "convolutions": _NUMBER, "channels_last": _FLAG, "optimizer": _TEXT, "fused": _FLAG, "autocast": _TEXT,
        "capability": _PAIR, "tf32": _FLAG, "gpu": _TEXT,
    },
    "ddp": {"has_sync": _NUMBER, "world_size": _NUMBER, "backend_name": _TEXT, "bucket_cap_bytes": _NUMBER},
    "compile": {"used": _FLAG},
    "probe-failed": {"module": _TEXT, "error": _TEXT},
    "end": _PLACES,
    "unseen": {"reason": _TEXT},
    "stack": dict.fromkeys((field.name for field in fields(Layout)), _NUMBER),
}  # fmt: skip
_NUMBERED = re.compile(r"loader\.([1-9]\d?)", re.ASCII)
_PROBE = re.compile(r"probe_[a-z]{1,20}", re.ASCII)
_FATAL = re.compile(r"^Fatal Python error: (.{1,200})$", re.MULTILINE)
_FRAME = re.compile(r'^  File "([^"\n]{1,4096})", line (\d{1,9}) in (.{1,200})$', re.MULTILINE)
_SIGNALS = {
    "Aborted": "SIGABRT",
    "Segmentation fault": "SIGSEGV",
    "Bus error": "SIGBUS",
    "Illegal instruction": "SIGILL",
    "Floating point exception": "SIGFPE",
    "Floating-point exception": "SIGFPE",
}


class DamagedFileError(EnvkitError):
    """A file of the job is not what the probes write."""


@dataclass(frozen=True, slots=True, order=True)
class Name:
    """The name of a file: the process that wrote it, and NAME.ring, NAME.facts or NAME.crash."""

    text: str
    pid: int
    kind: str

    @property
    def stem(self) -> str:
        """The name without its kind."""
        return self.text.removesuffix(f".{self.kind}")


class Folder:
    """The folder of a job's files.

    Args:
        path: the folder; it is kept open, so that a link that takes its place is not followed.

    Raises:
        OSError: it does not exist.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        self.lost: dict[str, str] = {}
        """The files that are lost, with the reason."""

    def close(self) -> None:
        """Close the folder."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def names(self, kind: str) -> list[Name]:
        """Return the files of one kind, at most `MOST_FILES`; others are lost."""
        found: list[Name] = []
        if not self._is_there():
            self.lose("*", _REPLACED)
        for text in self._listed():
            match = _NAME.fullmatch(text)
            if match is None:
                self.lose(text, "not a name of the probes")
            elif match[2] == kind and text not in self.lost:
                found.append(Name(text, int(match[1]), kind))
        if len(found) > MOST_FILES:
            self.lose(f"*.{kind}", f"more than {MOST_FILES} files")
        return sorted(found)[:MOST_FILES]

    def lose(self, text: str, reason: str) -> None:
        """Note a file that is lost, by a printable name; only the first `MOST_FILES` are kept."""
        if len(self.lost) < MOST_FILES:
            self.lost.setdefault(ascii(text)[1:-1][:_LONGEST], reason)

    def remove(self, name: Name) -> None:
        """Remove a file that is read."""
        try:
            os.unlink(name.text, dir_fd=self._descriptor)
        except OSError:  # the job did it
            return

    def events(self, name: Name, number: int) -> tuple[list[Event], int] | None:
        """Return the events of a ring from a number on, and how many were overwritten before; None if it is not whole.

        Raises:
            DamagedFileError: it is no ring, or an event is impossible.
        """
        with self._opened(name) as file:
            size = file.status.st_size
            if size > stream.BYTES:
                raise DamagedFileError(f"{size} bytes, a ring has {stream.BYTES}")
            slot = (number - 1) % stream.CAPACITY * stream.RECORD.size
            newest = file.read_at(slot, stream.NUMBER.size)
            if size < stream.BYTES or len(newest) < stream.NUMBER.size:
                return None
            if stream.NUMBER.unpack(newest)[0] < number:
                return [], 0
            # The second copy shows what was written while the first was made.
            first, second = file.read_at(0, stream.BYTES), file.read_at(0, stream.BYTES)
        if len(second) < stream.BYTES or len(first) < stream.BYTES:
            return None
        events, lost = stream.read(first, second, number)
        for event in events:
            _check(event)
        return events, lost

    def facts(self, name: Name) -> dict[str, dict[str, Any]]:
        """Return the facts of a process, the first of each kind. A last line without its end is left out.

        Raises:
            DamagedFileError: it is not a file of facts.
        """
        with self._opened(name) as file:
            if file.status.st_size > MOST_FACTS:
                raise DamagedFileError(f"larger than {MOST_FACTS} bytes")
            data = file.read_at(0, MOST_FACTS)
        lines = data.split(b"\n")[:-1]
        if len(lines) > _MOST_LINES:
            raise DamagedFileError(f"more than {_MOST_LINES} lines")
        found: dict[str, dict[str, Any]] = {}
        for number, line in enumerate(lines, 1):
            fact, known = _typed(trees.from_json(line, f"line {number}", error=DamagedFileError), number)
            found.setdefault(fact, known)
        return found

    def crash(self, name: Name) -> dict[str, Any] | None:
        """Return at which signal a process, or one that it forked, died, and where; None if it did not.

        Raises:
            DamagedFileError: it is not a file.
        """
        with self._opened(name) as file:
            text = file.read_at(0, _MOST_CRASH).decode("utf-8", "replace")
        died = list(_FATAL.finditer(text))
        if not died:
            return None
        end = died[1].start() if len(died) > 1 else len(text)
        rows = list(_FRAME.finditer(text, died[0].end(), end))
        # The innermost frame is the first here, and the last in Python's other tracebacks.
        frames = [(row[1], int(row[2]), row[3]) for row in reversed(rows)]
        return {"error": _SIGNALS.get(died[0][1], died[0][1]), **endings.places(frames)}

    def _listed(self) -> Iterator[str]:
        try:
            with os.scandir(self._descriptor) as entries:
                for count, entry in enumerate(entries):
                    if count >= 4 * MOST_FILES:
                        self.lose("*", f"more than {4 * MOST_FILES} files")
                        return
                    yield entry.name
        except OSError:  # the job removed it
            return

    def _is_there(self) -> bool:
        """Whether the path still is this folder."""
        try:
            own, there = os.fstat(self._descriptor), self.path.lstat()
        except OSError:
            return False
        return os.path.samestat(own, there)

    def _opened(self, name: Name) -> Any:
        if not self._is_there():
            raise DamagedFileError(_REPLACED)
        return foreign.opened(self.path / name.text, root=self.path, links=False, error=DamagedFileError)


def _check(event: Event) -> None:
    """Raise DamagedFileError for an event that the probes cannot have written."""
    kind, _, begin, seconds, amount, which = event
    longest = _MOST_AMOUNT if kind == stream.ALLOCATOR else _MOST_SECONDS  # it has bytes in place of a duration
    # A comparison with NaN is false.
    if not (0.0 <= begin <= _MOST_SECONDS and 0.0 <= seconds <= longest and 0.0 <= amount <= _MOST_AMOUNT):
        raise DamagedFileError("an event with impossible numbers")
    if which > stream.LOADERS_MOST:
        raise DamagedFileError(f"an event of loader {which}; the probes number {stream.LOADERS_MOST}")


def _typed(tree: Any, number: int) -> tuple[str, dict[str, Any]]:
    """Return a fact's kind and its fields.

    Raises:
        DamagedFileError: it is not a fact that the probes write.
    """
    kind = tree.get("fact") if isinstance(tree, Mapping) else None
    if not isinstance(kind, str):
        raise DamagedFileError(f"line {number} is not a fact")
    known: dict[str, Any] = {}
    types = _types(kind)
    if types is None:
        raise DamagedFileError(f"line {number}: unknown fact {kind[:40]!r}")
    for name, value in tree.items():
        if name == "fact":
            continue
        wanted = types.get(name)
        if wanted is None:
            raise DamagedFileError(f"line {number}: unknown field {name[:40]!r} of {kind}")
        if value is not None and not _fits(value, wanted):
            raise DamagedFileError(f"line {number}: {kind}.{name} is not {wanted}")
        known[name] = value[:_LONGEST] if isinstance(value, str) else value
    return kind, known


def _types(kind: str) -> Mapping[str, str] | None:
    numbered = _NUMBERED.fullmatch(kind)
    if numbered is not None and int(numbered[1]) <= stream.LOADERS_MOST:
        return _LOADER
    return {"failed": _TEXT} if _PROBE.fullmatch(kind) else _FACTS.get(kind)


def _fits(value: Any, wanted: str) -> bool:
    if wanted == _TEXT:
        return isinstance(value, str)
    if wanted == _FLAG:
        return isinstance(value, bool)
    if wanted == _PAIR:
        return isinstance(value, list) and len(value) == 2 and all(_fits(one, _NUMBER) for one in value)  # noqa: PLR2004
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST_WHOLE
