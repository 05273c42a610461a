"""One case: an input, the command line that reads it, and what has to come of it."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One hostile input, or a harmless one that looks like it."""

    group: str  # 'definitions'
    name: str
    run: tuple[str, ...] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    pipes: tuple[str, ...] = ()  # named pipes, which nobody writes to
    sparse: Mapping[str, int] = field(default_factory=dict)  # files of zeros that take no room, by their size
    env: Mapping[str, str] = field(default_factory=dict)
    exit: int = 2  # 0: harmless
    place: str = ""  # what the message has to name
    says: tuple[str, ...] = ()  # in stderr
    gives: tuple[str, ...] = ()  # in stdout
    secret: tuple[str, ...] = ()  # in no output
    writes: tuple[str, ...] = ()  # patterns of files that may be new, below the case's folder
    make: Callable[[Path], list[str]] | None = None  # writes the input and gives the command line

    @property
    def id(self) -> str:
        """The case's name in tables and tests."""
        return f"{self.group}-{self.name}"

    def prepare(self, folder: Path) -> list[str]:
        """Write the input into an empty folder; gives the command line."""
        for name, data in self.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data)
        for name, target in self.links.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).symlink_to(target)
        for name in self.pipes:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            os.mkfifo(folder / name)
        for name, size in self.sparse.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            with (folder / name).open("wb") as file:
                file.truncate(size)
        run = list(self.run) if self.make is None else self.make(folder)
        return [word.replace("{folder}", str(folder)) for word in run]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a case's process did."""

    exit: int
    cpu: float  # seconds of processor time, of its own children too
    wall: float  # seconds
    memory: int  # bytes at most, shared pages included
    stdout: str
    stderr: str
    new: tuple[str, ...]  # files that were made, changed or removed, below the case's folder
