"""The Python frames and the system call of a thread of another process, read from its memory while it runs.

Nothing runs in the observed process and it is not stopped. Where its frames are is known from a fact that it wrote
(`envkit_watch_stack`). The process is foreign: everything is bounded, and what does not fit together is left out.
Reading needs the permission to trace: the same user or root, and no Yama that forbids it to a parent.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envkit.ground.platforms import ARM, X86, of_machine

_WORD = 8
_TAGS = 7
_MOST_FRAMES = 400
_MOST_TEXT = 1024  # characters of a path
_MOST_TABLE = 1 << 16  # bytes of a table of lines
_MOST_CODES = 4096  # code objects that are kept
_CODE_BYTES = 40 * _WORD
_WIDE = {1: ("latin-1", 1), 2: ("utf-16-le", 2), 4: ("utf-32-le", 4)}

Frame = tuple[str, int, str]  # file, line, function
Code = tuple[str, str, int, bytes]  # file, function, first line, table of lines

_PLATFORM = of_machine(os.uname().machine)
_HERE = "" if _PLATFORM is None else _PLATFORM.name
# Numbers of system calls; those of Arm are the generic ones. syscalls(2).
_CALLS: dict[str, dict[str, tuple[int, ...]]] = {
    X86.name: {
        "sleep": (35, 230), "child": (61, 247), "lock": (202,), "network": (42, 43, 44, 45, 46, 47, 288),
        "poll": (7, 23, 232, 270, 271, 281), "file": (0, 1, 17, 18, 19, 20, 26, 74, 75, 76, 77, 257, 277, 285),
    },
    ARM.name: {
        "sleep": (101, 115), "child": (95, 260), "lock": (98,), "network": (202, 203, 206, 207, 211, 212, 242),
        "poll": (22, 72, 73), "file": (46, 47, 56, 63, 64, 65, 66, 67, 68, 82, 83, 227),
    },
}  # fmt: skip
_SELECT = {X86.name: (23, 270), ARM.name: (72,)}
_SHIM = "<shim>"  # the file of frames that Python has for itself


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where the frames of one thread are: addresses, and offsets in bytes."""

    state: int  # of the thread
    thread: int  # the kernel's ID of it, in the process's own namespace
    version: int  # of Python: 311
    first: int  # in the state, of the newest frame, or with `second` of what points to it
    code: int  # in a frame
    back: int
    type: int  # the address of the type of code objects
    file: int  # in a code object
    name: int
    table: int
    line: int
    ascii: int  # in a text
    wide: int
    shift: int
    second: int | None = None
    place: int | None = None  # in a frame, the address of the instruction, or
    start: int = 0
    number: int | None = None  # its number
    times: int = 1

    @classmethod
    def of(cls, fact: Mapping[str, Any]) -> Layout | None:
        """Return the layout that a process wrote, None if it does not have all of it."""
        try:
            return cls(**{name: value for name, value in fact.items() if value is not None})
        except TypeError:
            return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """A thread at one moment."""

    is_running: bool
    frames: tuple[Frame, ...]  # the newest first; empty if they could not be read
    call: str | None = None  # the kind of system call that it waits in: sleep, child, lock, network, poll, file


class Reader:
    """Reads one thread of one process.

    Args:
        pid: the process, on this machine.
        layout: where its frames are.
        root: the proc file system.
    """

    def __init__(self, pid: int, layout: Layout, *, root: Path = Path("/proc")) -> None:
        self._layout, self._folder = layout, root / str(pid)
        self._thread = self._own_thread(pid)
        self._codes: dict[bytes, Code] = {}

    def look(self) -> Look | None:
        """Return what the thread does now; None if it is gone, or was neither running nor waiting all the while."""
        before = self._state()
        if before is None:
            return None
        call = None if before == "R" else self._call()
        frames = self._frames()
        if self._state() != before:
            frames = ()
        return Look(is_running=before == "R", frames=frames, call=call)

    def _own_thread(self, pid: int) -> Path:
        """Return the thread's folder; in a container its ID is another one there."""
        wanted = str(self._layout.thread)
        for folder in self._listed(self._folder / "task"):
            ids = next(
                (line.split() for line in _text(folder / "status").splitlines() if line.startswith("NSpid:")), []
            )
            if ids and ids[-1] == wanted:
                return folder
        return self._folder / "task" / str(pid)

    @staticmethod
    def _listed(folder: Path) -> list[Path]:
        try:
            return list(folder.iterdir())
        except OSError:
            return []

    def _state(self) -> str | None:
        """Return the letter of the thread's state, None if it is gone: R (runs or could), S, D (a disk)."""
        return next(iter(_text(self._thread / "stat").rpartition(")")[2].split()), None)

    def _call(self) -> str | None:
        words = _text(self._thread / "syscall").split()
        if not words or not words[0].isdigit():
            return None
        number = int(words[0])
        kind = next((name for name, numbers in _CALLS.get(_HERE, {}).items() if number in numbers), None)
        # select(2) of no file: how Python before 3.11 sleeps.
        if number in _SELECT.get(_HERE, ()) and words[1:2] == ["0x0"]:
            return "sleep"
        if kind == "file" and len(words) > 1:
            try:
                target = str((self._folder / "fd" / str(int(words[1], 16))).readlink())
            except (OSError, ValueError):
                return kind
            return "network" if target.startswith("socket:") else "child" if target.startswith("pipe:") else kind
        return kind

    def _frames(self) -> tuple[Frame, ...]:
        try:
            memory = os.open(self._folder / "mem", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return ()
        try:
            return tuple(self._walk(memory))
        # The process runs on: addresses may be stale, and what they lead to may be anything.
        except (OSError, OverflowError, ValueError, LookupError, struct.error):
            return ()
        finally:
            os.close(memory)

    def _walk(self, memory: int) -> Iterator[Frame]:
        layout = self._layout
        frame = _word(memory, layout.state + layout.first)
        if layout.second is not None:
            frame = _word(memory, frame + layout.second)
        for _ in range(_MOST_FRAMES):
            if not frame:
                return
            address = _word(memory, frame + layout.code) & ~_TAGS
            code = self._code(memory, address) if address else None
            if code is not None and code[0] != _SHIM:
                if layout.place is not None:
                    at = _word(memory, frame + layout.place) - address - layout.start
                else:
                    at = (_word(memory, frame + (layout.number or 0)) & 0xFFFFFFFF) * layout.times
                yield code[0], line_at(code[3], code[2], at, layout.version), code[1]
            frame = _word(memory, frame + layout.back)

    def _code(self, memory: int, address: int) -> Code | None:
        """Return a code object, None for another object: Python has frames of its own that run none."""
        layout = self._layout
        body = _bytes(memory, address, _CODE_BYTES)
        if struct.unpack_from("<Q", body, _WORD)[0] != layout.type:
            return None
        # Its parts have other addresses if it is another one at the same address.
        parts = [struct.unpack_from("<Q", body, at)[0] for at in (layout.file, layout.name, layout.table)]
        key = struct.pack("<4Q", address, *parts)
        if key not in self._codes:
            if len(self._codes) >= _MOST_CODES:
                self._codes.clear()
            size = min(_word(memory, parts[2] + 16), _MOST_TABLE)
            self._codes[key] = (
                self._text(memory, parts[0]),
                self._text(memory, parts[1]),
                struct.unpack_from("<I", body, layout.line)[0],
                _bytes(memory, parts[2] + 32, size),
            )
        return self._codes[key]

    def _text(self, memory: int, address: int) -> str:
        """Return the end of a text: of a path, its last folders and the file."""
        length = _word(memory, address + 16)
        if length > 1 << 20:
            raise ValueError(length)
        kind = _word(memory, address + 32) >> self._layout.shift
        # Beside the three bits of the width there is one for "compact", and then one for "ASCII".
        name, width = ("latin-1", 1) if kind >> 4 & 1 else _WIDE[kind & 7]
        begin = self._layout.ascii if kind >> 4 & 1 else self._layout.wide
        kept = min(length, _MOST_TEXT)
        return _bytes(memory, address + begin + (length - kept) * width, kept * width).decode(name, "replace")


def line_at(table: bytes, first: int, at: int, version: int) -> int:
    """Return the line of the instruction that begins `at` bytes after the first, from a code object's table."""
    if version >= 311:  # noqa: PLR2004 - the formats of co_linetable and co_lnotab by version
        return _line_of_locations(table, first, at)
    end, line, known = 0, first, first
    for index in range(0, len(table) - 1, 2):
        step, change = table[index], table[index + 1]
        change = change - 256 if change > 127 else change  # noqa: PLR2004 - a signed byte
        if version >= 310:  # noqa: PLR2004 - an entry is the end of a range, and its line
            if change != -128:  # noqa: PLR2004 - a range without a line
                line = known = line + change
            end += step
            if end > at:
                return known
        else:
            end += step
            if end > at:
                return line
            line += change
    return line


def _line_of_locations(table: bytes, first: int, at: int) -> int:
    """Return the line from a table as CPython's InternalDocs/code_objects.md describes it."""
    index, end, line = 0, 0, first
    while index < len(table):
        head = table[index]
        kind, length = head >> 3 & 15, ((head & 7) + 1) * 2
        index += 1
        if kind in (13, 14):  # a change of the line as a signed varint
            value, shift, more = 0, 0, True
            while more:
                more, value = bool(table[index] & 64), value | (table[index] & 63) << shift
                shift, index = shift + 6, index + 1
            line += -(value >> 1) if value & 1 else value >> 1
        elif 10 <= kind <= 12:  # noqa: PLR2004 - a change of 0 to 2 lines
            line += kind - 10
        while index < len(table) and not table[index] & 128:  # the columns
            index += 1
        end += length
        if end > at:
            return line
    return line


def _bytes(memory: int, address: int, size: int) -> bytes:
    data = os.pread(memory, size, address)
    if len(data) < size:
        raise ValueError(address)
    return data


def _word(memory: int, address: int) -> int:
    return int(struct.unpack("<Q", _bytes(memory, address, _WORD))[0])


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
