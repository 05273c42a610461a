"""Record what a run would leave behind if it were killed, so that a later run can clean up.

The classic builder creates an unlabeled container per RUN step, so a run records each one in the state folder as soon
as it exists. Podman's client keeps running when envkit is killed, so its process is recorded too, and so are temporary
folders. The next run with the same engine reads the notes of runs that have ended.
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
    """The note of a killed run: container IDs, client processes with their start times, and folders."""

    note: Path
    containers: tuple[str, ...]
    processes: tuple[tuple[int, str], ...]
    folders: tuple[Path, ...]


class Journal:
    """The note of the current run. It is removed when the `with` block ends."""

    def __init__(self, folder: Path | None, engine: str) -> None:
        self._path = (
            # Random digits, because one run can have several journals.
            None if folder is None else folder / "runs" / f"{identity.current().id}-{secrets.token_hex(4)}.json"
        )
        self._engine = engine
        self._containers: list[str] = []
        self._processes: list[tuple[int, str]] = []
        self._folders: list[str] = []

    @property
    def containers(self) -> tuple[str, ...]:
        """IDs of the containers recorded so far."""
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
        """Record a container that the engine has just created for this run."""
        self._containers.append(ident)
        self._save()

    def process(self, pid: int) -> None:
        """Record a client process of this run."""
        self._processes.append((pid, identity.start_ticks(pid)))
        self._save()

    def folder(self, path: Path) -> None:
        """Record a temporary folder of this run."""
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
        # If the note cannot be written, only the cleanup after kill -9 is lost.
        with contextlib.suppress(OSError):
            write_atomic(self._path, json.dumps(document).encode() + b"\n")


def abandoned(folder: Path, engine: str) -> list[Leftovers]:
    """Return the notes of killed runs of this host with this engine. Unreadable notes are skipped."""
    leftovers: list[Leftovers] = []
    for note in sorted((folder / "runs").glob("*.json")):
        try:
            tree: Any = json.loads(note.read_bytes())
            if tree["schema"] != SCHEMA or tree["engine"] != engine or not identity.abandoned(tree["labels"]):
                continue
            entry = Leftovers(
                note=note,
                containers=tuple(map(str, tree["containers"])),
                processes=tuple((int(pid), str(started)) for pid, started in tree["processes"]),
                folders=tuple(map(Path, tree["folders"])),
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue
        leftovers.append(entry)
    return leftovers


def end_processes(leftovers: Leftovers) -> None:
    """Kill the client processes that a killed run left, and their descendants."""
    for pid, started in leftovers.processes:
        if identity.start_ticks(pid) == started:
            kill({pid: started} | tree(pid))


def forget(leftovers: Leftovers) -> None:
    """Remove a killed run's temporary folders and its note."""
    for folder in leftovers.folders:
        # Only folders with envkit's prefix: a note that someone changed must not cause another folder to be removed.
        if folder.name.startswith("envkit-"):
            shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        leftovers.note.unlink(missing_ok=True)
