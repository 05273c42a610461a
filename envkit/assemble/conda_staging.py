"""A passing folder in which py-rattler describes and installs packages, each below a prefix of its own.

    archives/<n>/<file name>   the verified archives under the names that tell their format
    pkgs/                      packages that were unpacked and compared with their lists, anew every time
    <n>/                       the prefix of the n-th package

Nothing extracted outlives the folder, so nothing that was changed after its digest was checked is ever used. Folders
of runs that were killed are removed by the next one; a lock tells which those are.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from envkit.assemble import conda_listing, conda_meta, conda_rattler
from envkit.assemble.conda_listing import FOLDER, Interpreter, Listing
from envkit.ground.errors import EngineError, EnvironmentProblem, EnvkitError, IntegrityError
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
        EnvironmentProblem: it cannot be made or is full.
    """
    descriptor = -1
    try:
        above.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _alone(above):
            _sweep(above)
            folder = Path(tempfile.mkdtemp(dir=above))
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(descriptor, fcntl.LOCK_SH)
    except OSError as error:
        if descriptor >= 0:
            os.close(descriptor)
        raise _unusable(above, error) from error
    try:
        yield folder
    except OSError as error:
        raise _unusable(above, error) from error
    finally:
        remove(folder)
        os.close(descriptor)


def describe(
    packages: Sequence[CondaPackage], archives: Mapping[str, Path], folder: Path
) -> dict[CondaPackage, Listing]:
    """What the archives say of their contents; `archives` maps SHA-256 to file.

    Raises:
        EngineError: an archive cannot be read.
        IntegrityError: an archive is no sound one.
        EnvironmentProblem: py-rattler is missing.
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
        EnvironmentProblem: the disk is full, or py-rattler is missing.
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


def remove(folder: Path) -> None:
    """Remove a tree whose folders may be closed to their owner."""
    with contextlib.suppress(OSError):
        for parent, _, _ in os.walk(folder):
            with contextlib.suppress(OSError):
                Path(parent).chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _alone(above: Path) -> Iterator[None]:
    """Nobody else sweeps or makes a folder meanwhile: a fresh one without its lock looks abandoned."""
    descriptor = os.open(above, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _sweep(above: Path) -> None:
    """Remove what dead runs left: each living one, and its rattler, hold a lock on their folder."""
    for folder in above.iterdir():
        with contextlib.suppress(OSError):
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove(folder)
            finally:
                os.close(descriptor)


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
        return EnvironmentProblem(f"py-rattler is not installed: {message}", hint="pip install 'py-rattler>=0.28'")
    if answer["fault"] == "full":
        return _full(folder.parent)
    hint = f"envkit lock --update {answer['package']} takes another build of it"
    if answer["fault"] == "refused":
        return IntegrityError(f"the conda package {answer['package']} is refused: {message}", hint=hint)
    return EngineError(f"{what}: {answer['package']}: {message}", hint=hint)


def _unusable(folder: Path, error: OSError) -> EnvironmentProblem:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return _full(folder)
    return EnvironmentProblem(
        f"{folder} cannot be used: {error.strerror or error}", hint="set XDG_CACHE_HOME to your own folder"
    )


def _full(folder: Path) -> EnvironmentProblem:
    return EnvironmentProblem(
        f"the disk of {folder} is full", hint="envkit cache prune, or set XDG_CACHE_HOME to a larger disk"
    )
