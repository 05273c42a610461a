"""A passing folder in which py-rattler describes and installs packages, each below a prefix of its own.

    archives/<n>/<file name>   the verified archives under the names that tell their format
    pkgs/                      packages that were unpacked and compared with their lists, anew every time
    <n>/                       the prefix of the n-th package

Nothing extracted outlives the folder, so nothing that was changed after its digest was checked is ever used. Folders
of runs that were killed are removed by the next one; a lock tells which those are.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from envkit.assemble import conda_listing, conda_meta, conda_rattler
from envkit.assemble.conda_listing import FOLDER, Interpreter, Listing
from envkit.ground import store
from envkit.ground.errors import EngineError, EnvkitError, IntegrityError, SurroundingsError
from envkit.lock import child
from envkit.lock.model import CondaPackage


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """A package that was installed."""

    package: CondaPackage
    folder: Path
    paths: tuple[conda_listing.Path, ...]
    meta: bytes  # its file of conda-meta


@contextlib.contextmanager
def staging(above: Path) -> Iterator[Path]:
    """A fresh folder below `above`, which is removed at the end.

    Raises:
        SurroundingsError: it cannot be made or is full.
    """
    try:
        above.mkdir(mode=0o700, parents=True, exist_ok=True)
        store.sweep(above.iterdir())
        # Shared, because the child that installs takes the lock, too.
        with store.fresh_folder(above, shared=True) as folder:
            yield folder
    except OSError as error:
        raise store.unusable(above, error) from error


def describe(
    packages: Sequence[CondaPackage], archives: Mapping[str, Path], folder: Path
) -> dict[CondaPackage, Listing]:
    """What the archives say of their contents; `archives` maps SHA-256 to file.

    Raises:
        EngineError: an archive cannot be read.
        IntegrityError: an archive is no sound one.
        SurroundingsError: py-rattler is missing.
    """
    rows = [{**_row(one), "archive": str(_named(one, archives, folder, at))} for at, one in enumerate(packages)]
    answer = _ask({"verb": "describe", "packages": rows}, "reading conda packages", folder)
    found = {}
    for package, tree in zip(packages, answer["listings"], strict=True):
        found[package] = conda_listing.from_json(tree)
    return found


def install(
    packages: Sequence[tuple[CondaPackage, tuple[conda_listing.Path, ...]]],
    archives: Mapping[str, Path],
    folder: Path,
    *,
    prefix: str,
    python: Interpreter | None,
    check: Callable[[], object] | None = None,
) -> tuple[Staged, ...]:
    """Install packages, given with the paths they were said to have, as they would lie at `prefix`.

    `check` is called while they are installed; what it raises ends the installer.

    Raises:
        EngineError: an archive cannot be installed, or holds something else than it was said to.
        IntegrityError: an archive holds what no package may, or something else than its own list says.
        SurroundingsError: the disk is full, or py-rattler is missing.
    """
    rows = [
        {
            **_row(one),
            "archive": str(_named(one, archives, folder, at)),
            "folder": str(folder / str(at)),
        }
        for at, (one, _) in enumerate(packages)
    ]
    known = python and {"version": python.version, "build": python.build, "site_packages": python.site_packages}
    asked = {"verb": "install", "packages": rows, "staging": str(folder), "target": prefix, "python": known}
    answer = _ask(asked, "installing conda packages", folder, check)
    found = []
    for at, ((package, paths), text) in enumerate(zip(packages, answer["records"], strict=True)):
        record = conda_meta.read(text.encode(), package)
        if different := set(conda_meta.paths(record)) ^ {one.path for one in paths if one.kind != FOLDER}:
            raise EngineError(
                f"py-rattler installed other paths of {package.name} than the package lists: {min(different)}",
                hint="envkit build --engine docker",
                details=tuple(sorted(different)[1:10]),
            )
        found.append(
            Staged(package=package, folder=folder / str(at), paths=paths, meta=conda_meta.normalised(record, package))
        )
    return tuple(found)


def _row(package: CondaPackage) -> dict[str, Any]:
    return {"name": package.name, "noarch": package.noarch, "channel": package.url.rsplit("/", 2)[0]}


def _named(package: CondaPackage, archives: Mapping[str, Path], folder: Path, at: int) -> Path:
    """The archive under its own name, by which rattler knows the format."""
    named = folder / "archives" / str(at) / unquote(package.url.rpartition("/")[2])
    named.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        named.symlink_to(archives[package.sha256].absolute())
    return named


def _ask(asked: dict[str, Any], what: str, folder: Path, check: Callable[[], object] | None = None) -> dict[str, Any]:
    done = child.run(
        [sys.executable, "-P", conda_rattler.__file__],
        env=child.environment(None, {}),
        what=what,
        stdin=json.dumps(asked).encode(),
        folder=folder,
        check=check,
    )
    try:
        answer = json.loads(done.stdout)
    except ValueError as error:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise EngineError(f"{what}: py-rattler ended without an answer: {last[0]:.300}") from error
    assert isinstance(answer, dict)
    if "fault" in answer:
        raise _failure(answer, what, folder)
    return answer


def _failure(answer: Mapping[str, str], what: str, folder: Path) -> EnvkitError:
    message = " ".join(answer["message"].split())[:300]
    if answer["fault"] == "missing":
        return SurroundingsError(f"py-rattler is not installed: {message}", hint="pip install 'py-rattler>=0.28'")
    if answer["fault"] == "full":
        return store.disk_full(folder.parent)
    hint = f"envkit lock --update {answer['package']} takes another build of it"
    if answer["fault"] == "refused":
        return IntegrityError(f"the conda package {answer['package']} is refused: {message}", hint=hint)
    return EngineError(f"{what}: {answer['package']}: {message}", hint=hint)
