"""Carry everything that a lock needs to a machine without a network: one tar of the cache's files.

    README.txt, envkit.lock    what it is for, and the lock
    FOLDER/NAME                files of the kinds of the cache that may be carried, by their name in the cache

On import, each file must have the SHA-256 of its name; a built wheel is compared with its note, and with the lock when
it is used. The layer of a Debian base has no digest in the lock: it is as trustworthy as the archive.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from envkit.engines.debian_root import layer_key
from envkit.ground import foreign, platforms, store
from envkit.ground.cache import BASES, BUILT_WHEELS, DOWNLOADS, LAYERS, NOTES, Kind
from envkit.ground.errors import IntegrityError, LockError, UsageError
from envkit.lock.built import wheels_of
from envkit.lock.model import BUILT, FILE, Lock
from envkit.lock.store import to_text

if TYPE_CHECKING:
    from envkit.ground.progress import Reporter

_PIECE = 1 << 20  # bytes
_MOST_NOTE = 1 << 20  # bytes of a note
_CARRIED = (DOWNLOADS, BASES, LAYERS, NOTES, BUILT_WHEELS)
_README = """Everything that this lock needs, for a machine without a network.

    envkit cache import {name}
    tar --extract --file {name} envkit.lock
    envkit build DEFINITION --locked envkit.lock --offline --engine embedded
"""


def export(lock: Lock, cache: Path, target: Path, reporter: Reporter) -> int:
    """Write the files of a lock to a tar; return their bytes.

    Args:
        lock: the lock.
        cache: XDG_CACHE_HOME/envkit.
        target: the tar, which is replaced only when the new one is complete.
        reporter: gets the progress in bytes.

    Raises:
        LockError: something is not in the cache.
        EnvironmentProblem: the tar cannot be written.
    """
    files = dict(sorted((kind.member(name), kind.at(cache, name)) for kind, name in _names(lock, cache)))
    missing = [name for name, path in files.items() if not path.is_file()]
    if missing:
        raise LockError(
            f"{len(missing)} of {len(files)} files of the lock are not in {cache}",
            hint="envkit build --locked envkit.lock --engine embedded --no-verify downloads them",
            details=tuple(_said(name, lock) for name in missing[:20]),
        )
    total = sum(path.stat().st_size for path in files.values())
    reporter.step(f"write {len(files)} files to {target}")
    done = 0
    try:
        with (
            store.replacing(target) as stream,
            tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT) as tar,
        ):
            for name, text in (("README.txt", _README.format(name=target.name)), (FILE, to_text(lock))):
                data = text.encode()
                tar.addfile(_header(name, len(data)), io.BytesIO(data))
            for name, path in files.items():
                with path.open("rb") as file:
                    size = path.stat().st_size
                    tar.addfile(_header(name, size), file)
                done += size
                reporter.advance(done, total)
    except OSError as error:
        raise store.unusable(target, error) from error
    return total


def take(source: Path, cache: Path, reporter: Reporter) -> tuple[int, int]:
    """Add the files of a tar of `export` to the cache; return how many were added and how many were there.

    Raises:
        UsageError: the file is not such a tar.
        IntegrityError: a file does not have the SHA-256 of its name.
        EnvironmentProblem: the cache cannot be written.
    """
    added = present = 0
    reporter.step(f"read {source}")
    try:
        with foreign.stream(source) as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
            for member in tar:
                if member.name in ("README.txt", FILE):
                    continue
                matches = [(kind, match) for kind in _CARRIED if (match := kind.carries(member.name))]
                if not matches or not member.isreg():
                    raise UsageError(
                        f"{source}: {member.name!r:.200} is not a file of a cache", hint="envkit cache export FILE"
                    )
                kind, match = matches[0]
                target = kind.at(cache, match["name"])
                if target.exists():
                    present += 1
                    continue
                file = tar.extractfile(member)
                assert file is not None
                _put(file, target, match.groupdict().get("hex"), source)
                added += 1
                reporter.advance(added, None)
    except tarfile.TarError as error:
        raise UsageError(f"{source} is not an archive of envkit: {error}", hint="envkit cache export FILE") from error
    except OSError as error:
        if error.filename == os.fspath(source):
            raise foreign.unreadable(source, error, hint="envkit cache import FILE") from error
        raise store.unusable(cache, error) from error
    return added, present


def _put(file: IO[bytes], target: Path, expected: str | None, source: Path) -> None:
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    digest = hashlib.sha256()
    with store.replacing(target) as out:
        while piece := file.read(_PIECE):
            digest.update(piece)
            out.write(piece)
        if expected is not None and digest.hexdigest() != expected:
            raise IntegrityError(
                f"{source}: {target.name[:12]}... has the SHA-256 {digest.hexdigest()[:12]}...",
                hint="copy the archive again, or envkit cache export writes a new one",
            )


def _names(lock: Lock, cache: Path) -> Iterator[tuple[Kind, str]]:
    """Yield the kind and name of everything that a lock needs; those of a missing base may be too few."""
    for wheel in lock.wheels:
        if wheel.source != BUILT:
            yield DOWNLOADS, wheel.sha256
    for path in wheels_of(lock, cache).values():
        yield BUILT_WHEELS, f"{path.parent.name}/{path.name}"
        yield BUILT_WHEELS, f"{path.parent.name}/note.json"
    for package in lock.conda:
        yield DOWNLOADS, package.sha256
    if lock.base.kind == "bootstrap":
        note = f"{layer_key(lock.base)}.json"
        yield NOTES, note
        digest = _json(NOTES.at(cache, note)).get("digest")
        if isinstance(digest, str):
            yield LAYERS, digest
    elif lock.base.digest is not None:
        for name in _documents(lock.base.digest.removeprefix("sha256:"), lock.platform, cache):
            yield BASES, name


def _documents(top: str, name: str, cache: Path) -> Iterator[str]:
    """Yield a manifest or index, and what it leads to for the platform with this name."""
    yield top
    tree = _json(BASES.at(cache, top))
    architecture = platforms.platform(name).architecture
    for row in tree.get("manifests") or ():
        if (row.get("platform") or {}).get("architecture") == architecture:
            yield from _documents(str(row["digest"]).removeprefix("sha256:"), name, cache)
            return
    for row in [tree.get("config"), *(tree.get("layers") or ())]:
        if isinstance(row, dict):
            yield str(row["digest"]).removeprefix("sha256:")


def _json(path: Path) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError):
        data = path.read_bytes() if path.stat().st_size <= _MOST_NOTE else b"{}"
        tree = json.loads(data)
        return tree if isinstance(tree, dict) else {}
    return {}


def _said(name: str, lock: Lock) -> str:
    files = {wheel.sha256: wheel.file for wheel in lock.wheels}
    files |= {package.sha256: package.url.rpartition("/")[2] for package in lock.conda}
    found = files.get(name.rpartition("/")[2])
    return found or f"the base {lock.base.reference}: {name}"


def _header(name: str, size: int) -> tarfile.TarInfo:
    header = tarfile.TarInfo(name)
    header.size, header.mode, header.mtime = size, 0o644, 0
    return header
