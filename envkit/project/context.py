"""The build context of a Dockerfile that is read without one: the folder that its COPY lines are relative to."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envkit.ground import foreign, strictyaml
from envkit.ground.errors import UsageError
from envkit.project.container_files import copied_files

_COMPOSE = ("compose*.yaml", "compose*.yml", "docker-compose*.yaml", "docker-compose*.yml")
_MOST_ABOVE = 3  # folders above the Dockerfile that are searched outside of a repository
_MOST_FILES = 20  # Compose files of a folder


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """A build context."""

    folder: Path
    why: str  # why it is not the folder of the Dockerfile; empty if it is


def context_of(path: Path) -> Context:
    """Return the build context of a Dockerfile.

    It is the one that a Compose file names for it; else its folder; or the repository's if only that one has the files
    that it copies.
    """
    own = path.resolve().parent
    copied, named = copied_files(path), dict(_of_compose(path))
    folder, where = named.popitem() if len(named) == 1 else (own, "")
    if not path.resolve().is_relative_to(folder):
        folder = own
    missing = [source for source in copied if not foreign.exists(folder / source)]
    root = next((above for above in own.parents if foreign.exists(above / ".git")), None)
    # A Compose file that moved with its Dockerfile may still name the folder where it was.
    if (
        missing
        and root
        and not foreign.exists(own / ".git")
        and all(foreign.exists(root / source) for source in copied)
    ):
        return Context(folder=root, why=f"only the repository has {missing[0]}")
    return Context(folder=path.parent if folder == own else folder, why=f"{where} names it" if folder != own else "")


def _of_compose(path: Path) -> Iterator[tuple[Path, str]]:
    """Yield the contexts in which services of Compose files build a Dockerfile, each with its place."""
    for folder in _above(path.resolve().parent):
        files = sorted({file for pattern in _COMPOSE for file in folder.glob(pattern)})
        for file in files[:_MOST_FILES]:
            try:
                tree, places = strictyaml.read_with_places(
                    strictyaml.text_of(file, root=folder), file.name, aliases=True
                )
            except UsageError:
                continue  # another file that cannot be read says nothing of this one
            services = tree.get("services") if isinstance(tree, Mapping) else None
            for name, service in services.items() if isinstance(services, Mapping) else ():
                context = _built(service, folder, path.resolve())
                if context is not None:
                    line = places.get(("services", name, "build"), (1, 1))[0]
                    yield context, f"{file.name}:{line}"


def _above(folder: Path) -> Iterator[Path]:
    """Yield a folder and those above it, up to that of the repository."""
    above = [folder, *folder.parents]
    root = next((at for at, one in enumerate(above) if foreign.exists(one / ".git")), _MOST_ABOVE)
    yield from above[: root + 1]


def _built(service: Any, folder: Path, dockerfile: Path) -> Path | None:
    """Return the context in which a service builds a Dockerfile; None if it builds another one, or none."""
    build = service.get("build") if isinstance(service, Mapping) else None
    row = build if isinstance(build, Mapping) else {"context": build} if isinstance(build, str) else None
    if row is None:
        return None
    context, file = (str(row.get(key) or default) for key, default in (("context", "."), ("dockerfile", "Dockerfile")))
    if re.search(r"\$|://|\0", context + file):
        return None
    found = (folder / context).resolve()
    return found if (found / file).resolve() == dockerfile and foreign.is_folder(found) else None
