"""What a run leaves behind if it is killed: intermediate containers, which carry no label, and temporary folders.

The classic builder makes one container per RUN step and labels none of them, so a run notes each one in the state
folder before it can be lost. Podman's client works on by itself when envkit is killed, so its process is noted too.
The next run of any kind reads the notes of runs that have ended.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from envkit.ground import identity
from envkit.ground.process import kill, tree
from envkit.ground.store import write_atomic

if TYPE_CHECKING:
    from types import TracebackType

SCHEMA = "envkit.journal/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftovers:
    """What a dead run noted: container ids, client processes with their start time, and folders."""

    note: Path
    containers: tuple[str, ...]
    processes: tuple[tuple[int, str], ...]
    folders: tuple[Path, ...]


class Journal:
    """The note of the current run; it is gone when the `with` block ends."""

    def __init__(self, folder: Path | None, engine: str) -> None:
        self._path = (
            None if folder is None else folder / "runs" / f"{identity.current().id}-{secrets.token_hex(4)}.json"
        )
        self._engine = engine
        self._containers: list[str] = []
        self._processes: list[tuple[int, str]] = []
        self._folders: list[str] = []

    @property
    def containers(self) -> tuple[str, ...]:
        """Ids noted so far."""
        return tuple(self._containers)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._path is not None:
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)

    def container(self, ident: str) -> None:
        """Note a container that the engine just made for this run."""
        self._containers.append(ident)
        self._save()

    def process(self, pid: int) -> None:
        """Note a client program that works for this run."""
        self._processes.append((pid, identity.start_ticks(pid)))
        self._save()

    def folder(self, path: Path) -> None:
        """Note a temporary folder of this run."""
        self._folders.append(str(path))
        self._save()

    def _save(self) -> None:
        if self._path is None:
            return
        document = {
            "schema": SCHEMA,
            "engine": self._engine,
            "labels": identity.current().labels(),
            "containers": self._containers,
            "processes": self._processes,
            "folders": self._folders,
        }
        # Without a place for notes only the clean-up after a kill -9 is lost.
        with contextlib.suppress(OSError):
            write_atomic(self._path, json.dumps(document).encode() + b"\n")


def abandoned(folder: Path, engine: str) -> list[Leftovers]:
    """Return what dead runs of this host noted about an engine; unreadable notes are skipped."""
    leftovers: list[Leftovers] = []
    for note in sorted((folder / "runs").glob("*.json")):
        try:
            tree: Any = json.loads(note.read_bytes())
            if tree["schema"] != SCHEMA or tree["engine"] != engine or not identity.abandoned(tree["labels"]):
                continue
            left = Leftovers(
                note=note,
                containers=tuple(map(str, tree["containers"])),
                processes=tuple((int(pid), str(started)) for pid, started in tree["processes"]),
                folders=tuple(map(Path, tree["folders"])),
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue
        leftovers.append(left)
    return leftovers


def end_processes(leftovers: Leftovers) -> None:
    """End the client programs that a dead run left working, and what runs below them."""
    for pid, started in leftovers.processes:
        if identity.start_ticks(pid) == started:
            kill({pid: started} | tree(pid))


def forget(leftovers: Leftovers) -> None:
    """Remove a dead run's temporary folders (only such as envkit names) and its note."""
    for folder in leftovers.folders:
        # Others may have changed the note: it must not name any folder for removal.
        if folder.name.startswith("envkit-"):
            shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        leftovers.note.unlink(missing_ok=True)
