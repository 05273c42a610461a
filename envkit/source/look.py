"""Read how a source is built from its archive, without unpacking or running anything."""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from packaging.requirements import InvalidRequirement, Requirement

from envkit.ground import trees
from envkit.ground.errors import ConflictError, IntegrityError
from envkit.ground.sizes import shown_size
from envkit.image.tarstream import Kind, Source, entries

# The defaults of PEP 518 and PEP 517 for a source without `build-system`.
_LEGACY = ("setuptools>=40.8.0",)
_LEGACY_BACKEND = "setuptools.build_meta:__legacy__"
_MOST_ENTRIES = 200_000  # the sources of Linux have 90,000 files
_MOST_UNPACKED = 8 << 30  # bytes
_MOST_TEXT = 1 << 20  # bytes of pyproject.toml and of setup.py
_READ = ("pyproject.toml", "setup.py")
_CUDA = (".cu", ".cuh")
# Extensions of torch import it in setup.py, often without naming it in `build-system`.
_TORCH = re.compile(r"^\s*(?:import|from)\s+torch\b", re.MULTILINE)
_BACKEND = re.compile(r"[A-Za-z_][\w.]*(?::[A-Za-z_][\w.]*)?")
_GZIP = b"\x1f\x8b"  # RFC 1952


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """How a source is built."""

    folder: str  # the top folder of the archive
    requires: tuple[str, ...]
    backend: str  # 'setuptools.build_meta'
    backend_path: tuple[str, ...]
    torch: bool  # its setup.py imports torch
    cuda: bool  # it has CUDA sources


@dataclass(slots=True, kw_only=True)
class _Seen:
    folders: set[str] = field(default_factory=set)
    texts: dict[str, str] = field(default_factory=dict)
    cuda: bool = False
    submodules: bool = False


def look(path: Path, name: str, *, commit: bool = False) -> Project:
    """Return how the source in an archive is built.

    Args:
        path: a tar, compressed with gzip or not.
        name: the package, for errors.
        commit: whether it is a commit of a repository, which lacks its submodules.

    Raises:
        IntegrityError: the archive is damaged, too large, or not an sdist.
        ConflictError: a build requirement is not usable, or the source needs submodules.
    """
    seen = _Seen()
    try:
        with _opened(path) as file:
            _read(Source(file), seen, name)
    except (OSError, EOFError, zlib.error) as error:
        raise IntegrityError(f"the source of {name} cannot be read: {error}", hint="envkit lock") from error
    if len(seen.folders) != 1:
        raise IntegrityError(
            f"the source of {name} is not an sdist: it has {len(seen.folders)} top folders instead of one",
            hint="use another version",
        )
    if commit and seen.submodules:
        raise ConflictError(
            f"the repository of {name} has submodules, which envkit does not fetch",
            hint=f"allow_source: [{name}] uses its sdist, which contains them",
        )
    return _project(seen, name)


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    with path.open("rb") as file:
        packed = file.read(len(_GZIP)) == _GZIP
        file.seek(0)
        if not packed:
            yield file
            return
        with gzip.GzipFile(fileobj=file) as inside:
            yield inside  # type: ignore[misc] # it is readable like a file


def _read(source: Source, seen: _Seen, name: str) -> None:
    for number, entry in enumerate(entries(source)):
        # Before the entry is read. The position is in the unpacked stream, so this also stops a gzip bomb.
        if number >= _MOST_ENTRIES or source.position + entry.size > _MOST_UNPACKED:
            raise IntegrityError(
                f"the source of {name} has more than {_MOST_ENTRIES} files or {shown_size(_MOST_UNPACKED, 'GiB')}",
                hint="use a wheel instead",
            )
        folder, _, below = entry.name.removeprefix("./").partition("/")
        # `git archive` stores the commit in a global pax header, which some tools write as a file of this name.
        if folder not in ("", "pax_global_header"):
            seen.folders.add(folder)
        seen.cuda = seen.cuda or below.endswith(_CUDA)
        seen.submodules = seen.submodules or below == ".gitmodules"
        if below in _READ and entry.kind is Kind.FILE:
            if entry.size > _MOST_TEXT:
                raise IntegrityError(f"{below} of {name} is too large: {entry.size} bytes", hint="use another version")
            seen.texts[below] = source.exactly(entry.size).decode(errors="replace")


def _project(seen: _Seen, name: str) -> Project:
    tree = trees.from_toml(
        seen.texts.get("pyproject.toml", ""),
        f"pyproject.toml of {name}",
        error=IntegrityError,
        hint="use another version",
    )
    system: Any = tree.get("build-system", {})
    backend: Any = system.get("build-backend", _LEGACY_BACKEND) if isinstance(system, dict) else None
    requires: Any = system.get("requires", list(_LEGACY)) if isinstance(system, dict) else None
    below: Any = system.get("backend-path", []) if isinstance(system, dict) else None
    valid = isinstance(backend, str) and _BACKEND.fullmatch(backend) and _texts(requires) and _texts(below)
    if not valid:
        raise IntegrityError(f"pyproject.toml of {name}: build-system is invalid", hint="use another version")
    torch = _TORCH.search(seen.texts.get("setup.py", "")) is not None
    listed, names_torch = plain(requires, name)
    return Project(
        folder=next(iter(seen.folders)),
        requires=listed,
        backend=backend,
        backend_path=tuple(below),
        torch=torch or names_torch,
        cuda=seen.cuda,
    )


def plain(requires: list[str], name: str) -> tuple[tuple[str, ...], bool]:
    """Return the requirements without torch, which comes from the plan, and whether torch was among them.

    Raises:
        ConflictError: a requirement is invalid or a URL.
    """
    requirements, torch = [], False
    for text in requires:
        try:
            requirement = Requirement(text)
        except InvalidRequirement as error:
            raise ConflictError(
                f"the build of {name} requires {text!r:.100}: {error}", hint="use a wheel instead"
            ) from error
        if requirement.url is not None:
            raise ConflictError(
                f"the build of {name} requires {text!r:.100}, which is a URL", hint="use another version"
            )
        # Another torch could be chosen for the build, and the wheel would then not fit the image's torch.
        if requirement.name == "torch":
            torch = True
        else:
            requirements.append(str(requirement))
    return tuple(sorted(set(requirements))), torch


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)
