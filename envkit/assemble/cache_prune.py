"""What builds and runs keep on this machine, and its removal: what was used longest ago goes first.

    CACHE/layers/blobs, layers, new     layers made from packages, see `cache`
    CACHE/layers/HEX, .HEX              layers unpacked to be run
    CACHE/downloads, blobs              packages; layers that registries gave
    CACHE/listings, conda/listings      what packages hold
    CACHE/evidence                      what wheels say, for envkit matrix
    CACHE/packed                        what an engine's layers compress to when they are pushed
    CACHE/conda/staging                 what is installed meanwhile
    CACHE/built                         wheels that were built from source
    CACHE/repodata                      what the solver of conda packages downloaded
    CACHE/runs                          folders of runs
    STATE/images                        images that no --output sent elsewhere

An entry is removed only under its lock, and after it was renamed, so nothing half removed is ever used.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from envkit.ground import store

KINDS = {
    "layers": "layers made from packages",
    "unpacked": "layers unpacked to be run",
    "downloads": "packages that were downloaded",
    "bases": "layers of base images, and of images pulled to be run",
    "built": "wheels that were built from source",
    "listings": "what packages hold and layers compress to",
    "repodata": "what the solver of conda packages downloaded",
    "leftovers": "of runs that were killed",
    "images": "images in the state folder",
}
_HEX = re.compile(r"[0-9a-f]{64}")
_FRESH_S = 3600.0  # what no lock guards is left alone so long after it was written
_YOUNG_S = 60.0  # what no note names yet: a build writes first and notes then
USUAL_S = 30 * 86400.0  # what no build has used for so long, the next one will hardly use


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One thing that is kept."""

    kind: str  # of KINDS
    path: Path
    notes: tuple[Path, ...] = ()  # files that lead to it
    size: int  # bytes
    used: float  # seconds since 1970; to the day where the file system says it no better


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What may be removed; a field that is None sets no limit. What killed runs left is always removed."""

    keep: int | None = None  # bytes that may stay
    older_than_s: float | None = None  # unused for so long
    everything: bool = False
    images: bool = False  # images in the state folder, too


@dataclass(slots=True, kw_only=True)
class Pruned:
    """What was done."""

    removed: list[Entry] = field(default_factory=list)
    in_use: list[Entry] = field(default_factory=list)
    freed: int = 0  # bytes
    held: int = 0  # bytes of removed entries that stay on the disk, because images have the same files


def entries(cache: Path, state: Path | None = None) -> tuple[Entry, ...]:
    """Return everything that is kept below the two folders, what was used longest ago first. Bytes are counted once."""
    seen: set[tuple[int, int]] = set()
    kept: list[Entry] = []
    for kind, path, notes in _places(cache, state):
        with contextlib.suppress(FileNotFoundError):
            size, used = _measure(path, notes, seen)
            kept.append(Entry(kind=kind, path=path, notes=notes, size=size, used=used))
    return tuple(sorted(kept, key=lambda entry: (entry.used, str(entry.path))))


def take_away(entry: Entry, *, idle: bool) -> tuple[int, int] | None:
    """Remove an entry, and give the bytes that became free and those that others hold; None where it is in use.

    Args:
        entry: what to remove.
        idle: whether `alone` says that nothing is being built.
    """
    try:
        if entry.kind == "layers":
            with store.locked(entry.path.parent):
                return _locked_away(entry)
        if entry.kind in ("unpacked", "leftovers"):
            return _locked_away(entry)
        if not idle or (entry.kind == "repodata" and time.time() - entry.used < _FRESH_S):
            return None
        return _away(entry)
    except OSError:
        return None


@contextlib.contextmanager
def alone(cache: Path) -> Iterator[bool]:
    """Give whether nothing is being built; while the context lasts, builds that begin wait."""
    try:
        descriptor = os.open(cache / "layers", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield True
        return
    try:
        yield store.claim(descriptor)
    finally:
        os.close(descriptor)


def chosen(kept: Sequence[Entry], rule: Rule, now: float) -> tuple[Entry, ...]:
    """Return the entries that a rule removes, in order. `kept` begins with what was used longest ago."""
    candidates = [entry for entry in kept if rule.images or entry.kind != "images"]
    total = sum(entry.size for entry in candidates)
    removed = []
    for candidate in candidates:
        old = rule.older_than_s is not None and candidate.used < now - rule.older_than_s
        much = rule.keep is not None and total > rule.keep
        if rule.everything or old or much or candidate.kind == "leftovers":
            removed.append(candidate)
            total -= candidate.size
    return tuple(removed)


def prune(cache: Path, state: Path, rule: Rule) -> Pruned:
    """Remove what a rule says. What builds or runs use at this moment stays.

    Args:
        cache: XDG_CACHE_HOME/envkit.
        state: XDG_STATE_HOME/envkit.
        rule: what may be removed.
    """
    done = Pruned()
    with alone(cache) as idle:
        for entry in chosen(entries(cache, state), rule, time.time()):
            gone = take_away(entry, idle=idle)
            if gone is None:
                done.in_use.append(entry)
                continue
            done.removed.append(entry)
            done.freed += gone[0]
            done.held += gone[1]
    return done


def _places(cache: Path, state: Path | None) -> Iterator[tuple[str, Path, tuple[Path, ...]]]:
    layers = cache / "layers"
    notes = _notes(layers / "layers")
    for blob in _children(layers / "blobs"):
        yield "layers", blob, tuple(notes.pop(blob.name, ()))
    for rows in notes.values():  # their blob is gone
        yield from (("leftovers", note, ()) for note in rows)
    for path in _children(layers):
        if _HEX.fullmatch(path.name):
            yield "unpacked", path, (path / "note.json",)
        elif path.name.startswith("."):
            yield "leftovers", path, ()
    for folder in (layers / "new", cache / "conda" / "staging", cache / "runs"):
        yield from (("leftovers", path, ()) for path in _children(folder))
    for path in _children(cache / "built"):
        yield ("leftovers" if path.name.startswith(".") else "built"), path, ()
    for kind, folder in (
        ("downloads", cache / "downloads"),
        ("bases", cache / "blobs"),
        ("listings", cache / "conda" / "listings"),
        ("listings", cache / "listings"),
        ("listings", cache / "packed"),
        ("listings", cache / "evidence"),
    ):
        yield from ((kind, path, ()) for path in _children(folder))
    if (cache / "repodata").is_dir():
        yield "repodata", cache / "repodata", ()
    yield from (("leftovers", path, ()) for path in _children(cache) if path.name.startswith("."))
    for path in _children(state / "images") if state is not None else ():
        yield ("leftovers", path, ()) if path.name.startswith(".") else ("images", path, (path / "index.json",))


def _notes(folder: Path) -> dict[str, list[Path]]:
    """Return the notes of each blob."""
    notes: dict[str, list[Path]] = {}
    for note in _children(folder):
        try:
            tree = json.loads(note.read_bytes())
            digest = str(tree["digest"])
        except (OSError, ValueError, KeyError, TypeError):
            digest = ""
        notes.setdefault(digest, []).append(note)
    return notes


def _children(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _measure(path: Path, notes: Iterable[Path], seen: set[tuple[int, int]]) -> tuple[int, float]:
    """Return bytes of all files that were not counted before, and when the newest was used."""
    size, used = 0, 0.0
    for note in notes:
        with contextlib.suppress(FileNotFoundError):
            used = max(used, note.stat().st_mtime)
    for status in _files(path):
        if not used or path.is_dir():
            used = max(used, status.st_mtime, status.st_atime if not notes else 0.0)
        if (status.st_dev, status.st_ino) not in seen:
            seen.add((status.st_dev, status.st_ino))
            size += status.st_size
    return size, used or path.lstat().st_mtime


def _files(path: Path) -> Iterator[os.stat_result]:
    status = path.lstat()
    if not path.is_dir() or path.is_symlink():
        yield status
        return
    for folder, _, files in os.walk(path):
        for name in files:
            with contextlib.suppress(FileNotFoundError):
                yield os.lstat(os.path.join(folder, name))  # noqa: PTH118 - many files


def _locked_away(entry: Entry) -> tuple[int, int] | None:
    """Remove what its users lock."""
    with store.claimed(entry.path) as status:
        if status is None or (not entry.notes and time.time() - status.st_mtime < _YOUNG_S):
            return None
        return _away(entry)


def _away(entry: Entry) -> tuple[int, int]:
    free = shared = 0
    for status in _files(entry.path):
        if status.st_nlink > 1:
            shared += status.st_size
        else:
            free += status.st_size
    if entry.path.is_dir():
        # Under this name it is swept up after a prune that is killed, and no other process finds it.
        hidden = entry.path.with_name(f".{entry.path.name.lstrip('.')}.{secrets.token_hex(4)}.tmp")
        entry.path.rename(hidden)
        store.remove_tree(hidden)
    else:
        for path in (*entry.notes, entry.path):
            path.unlink(missing_ok=True)
    return free, shared
