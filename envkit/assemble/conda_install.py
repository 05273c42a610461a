"""Install conda packages with py-rattler in a temporary folder, each in its own prefix, and write them to a layer.

    archives/<n>/<file name>   the verified archives, named as in the channel: the suffix gives their format
    pkgs/                      the unpacked packages, compared with their lists of paths
    <n>/                       the prefix of the n-th package

Every build unpacks the packages again, so files that were changed after their digest was checked are never used. The
next run removes the folders of killed runs, which it recognizes by their locks.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import posixpath
import stat
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any
from urllib.parse import unquote

from envkit.assemble import conda_child, conda_package
from envkit.assemble.conda_package import FILE, FOLDER, LINK, Interpreter, Listing, meta_path
from envkit.assemble.layer import LayerWriter, order, parents
from envkit.ground import store
from envkit.ground.cache import STAGING
from envkit.ground.errors import EngineError, EnvironmentProblem, EnvkitError, IntegrityError
from envkit.lock import child
from envkit.lock.model import CondaPackage

HISTORY = "conda-meta/history"
# 1.9 times as fast as zlib's default, 6, and 4 % larger: measured with the libraries of torch 2.13.
_LEVEL = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """An installed package in the temporary folder."""

    package: CondaPackage
    folder: Path
    paths: tuple[conda_package.Path, ...]
    meta: bytes  # its file in conda-meta


@contextlib.contextmanager
def staging(cache: Path) -> Iterator[Path]:
    """Yield a new folder for packages and remove it at the end.

    Raises:
        EnvironmentProblem: it cannot be created, or the disk is full.
    """
    with store.translated(STAGING.at(cache)):
        STAGING.sweep(cache)
        # A shared lock, because the child process takes it, too.
        with STAGING.fresh(cache, shared=True) as folder:
            yield folder


def describe(
    packages: Sequence[CondaPackage], archives: Mapping[str, Path], folder: Path
) -> dict[CondaPackage, Listing]:
    """Return the listings of the packages' archives; `archives` maps SHA-256 to file.

    Raises:
        EngineError: an archive cannot be read.
        IntegrityError: an archive is damaged.
        EnvironmentProblem: py-rattler is missing.
    """
    rows = [
        {**_row(requested), "archive": str(_named(requested, archives, folder, at))}
        for at, requested in enumerate(packages)
    ]
    reply = _ask({"command": "describe", "packages": rows}, "reading conda packages", folder)
    listings = {}
    for package, tree in zip(packages, reply["listings"], strict=True):
        listings[package] = conda_package.from_json(tree)
    return listings


def install(
    packages: Sequence[tuple[CondaPackage, tuple[conda_package.Path, ...]]],
    archives: Mapping[str, Path],
    folder: Path,
    *,
    prefix: str,
    python: Interpreter | None,
    check: Callable[[], object] | None = None,
) -> tuple[Staged, ...]:
    """Install packages, given with their listed paths, for the path `prefix` in the image.

    `check` is called meanwhile; its exception ends the installer.

    Raises:
        EngineError: a package cannot be installed, or its files are not at the listed paths.
        IntegrityError: an archive has contents that are not allowed in a package, or differ from its own list.
        EnvironmentProblem: the disk is full, or py-rattler is missing.
    """
    rows = [
        {
            **_row(requested),
            "archive": str(_named(requested, archives, folder, at)),
            "folder": str(folder / str(at)),
        }
        for at, (requested, _) in enumerate(packages)
    ]
    interpreter = python and {"version": python.version, "build": python.build, "site_packages": python.site_packages}
    request = {
        "command": "install", "packages": rows, "staging": str(folder), "target": prefix, "python": interpreter
    }  # fmt: skip
    reply = _ask(request, "installing conda packages", folder, check)
    staged = []
    for at, ((package, paths), text) in enumerate(zip(packages, reply["records"], strict=True)):
        record = conda_package.read_record(text.encode(), package)
        # The key of the layer and the owners of shared paths follow from the listed paths, so they have to be right.
        if different := set(conda_package.record_paths(record)) ^ {row.path for row in paths if row.kind != FOLDER}:
            raise EngineError(
                f"py-rattler installed paths of {package.name} that differ from its list: {min(different)}",
                hint="envkit build --engine docker",
                details=tuple(sorted(different)[1:10]),
            )
        staged.append(
            Staged(
                package=package, folder=folder / str(at), paths=paths, meta=conda_package.record_file(record, package)
            )
        )
    return tuple(staged)


def write_packages(
    staged: Sequence[Staged],
    left_out: Mapping[str, frozenset[str]],
    writer: LayerWriter,
    *,
    prefix: str,
    compiled: Callable[[Mapping[str, Callable[[], bytes]], Mapping[str, int]], Mapping[str, bytes]] | None = None,
) -> None:
    """Write the packages, each without the paths that are left out of it.

    `compiled` returns the bytecode of files, which are given by readers and sizes. It replaces that of the packages,
    which has the times of the sources where they were built, and so would never be used.

    Every layer has an empty `conda-meta/history`: conda takes a folder with this file for an environment, and so no
    layer depends on the others.

    Raises:
        IntegrityError: a link points out of the prefix.
        EngineError: an installed file is not what the package lists.
    """
    root = prefix.strip("/")
    rows: dict[str, tuple[Staged, conda_package.Path]] = {}
    made = {f"{root}/{HISTORY}": b""}
    folders: set[str] = set()
    for installed in staged:
        skipped = left_out.get(installed.package.name, frozenset())
        made[f"{root}/{meta_path(installed.package)}"] = installed.meta
        for row in installed.paths:
            if row.kind == FOLDER:
                folders.add(f"{root}/{row.path}/")
            elif row.path not in skipped:
                _check_kind(installed, row)
                rows[f"{root}/{row.path}"] = installed, row
    if compiled is not None:
        files = {path: installed.folder / row.path for path, (installed, row) in rows.items() if row.kind == FILE}
        # The listed sizes are those before prefixes are replaced.
        sizes = {path: file.lstat().st_size for path, file in files.items()}
        made |= compiled({path: partial(_data, file) for path, file in files.items()}, sizes)
    folders = parents((*rows, *made, *folders))
    for path in sorted({*rows, *made, *folders}, key=order):
        if path in folders:
            writer.add_dir(path)
        elif path in made:
            writer.add_file(path, io.BytesIO(made[path]), size=len(made[path]), level=_LEVEL)
        else:
            _write(writer, path, *rows[path], prefix=prefix)


def contained(target: str, path: str, *, folder: Path, prefix: str) -> str | None:
    """Return the target of a link as it has to be in the image; None if it points out of the prefix.

    Args:
        target: the target as installed.
        path: the path of the link, relative to the prefix.
        folder: the prefix during the installation.
        prefix: the prefix in the image.
    """
    # An absolute target can name the folder of the installation instead of the prefix in the image.
    if target == str(folder) or target.startswith(f"{folder}/"):
        target = prefix + target.removeprefix(str(folder))
    if posixpath.isabs(target):
        inside = posixpath.normpath(target) == prefix or posixpath.normpath(target).startswith(f"{prefix}/")
    else:
        joined = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
        inside = bool(target) and joined != ".." and not joined.startswith("../")
    return target if inside and target.isprintable() else None


def _row(package: CondaPackage) -> dict[str, Any]:
    return {"name": package.name, "noarch": package.noarch, "channel": package.url.rsplit("/", 2)[0]}


def _named(package: CondaPackage, archives: Mapping[str, Path], folder: Path, at: int) -> Path:
    """Link the archive under its own file name, from which rattler takes the format; return that path."""
    # Decoded, because a URL may encode the `!` of an epoch: x264-1%21161.3030.
    named = folder / "archives" / str(at) / unquote(package.url.rpartition("/")[2])
    named.parent.mkdir(parents=True)
    named.symlink_to(archives[package.sha256].absolute())
    return named


def _ask(request: dict[str, Any], what: str, folder: Path, check: Callable[[], object] | None = None) -> dict[str, Any]:
    done = child.run(
        # -P: without it, the script's folder is first on sys.path, and its modules (`conda`, `wheel`) hide others.
        [sys.executable, "-P", conda_child.__file__],
        env=child.environment(None, {}),
        what=what,
        stdin=json.dumps(request).encode(),
        folder=folder,
        check=check,
    )
    try:
        reply = json.loads(done.stdout)
    except ValueError as error:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise EngineError(f"{what}: py-rattler ended without a result: {last[0]:.300}") from error
    assert isinstance(reply, dict)
    if "fault" in reply:
        raise _failure(reply, what, folder)
    return reply


def _failure(reply: Mapping[str, str], what: str, folder: Path) -> EnvkitError:
    message = " ".join(reply["message"].split())[:300]
    if reply["fault"] == "missing":
        return EnvironmentProblem(f"py-rattler is not installed: {message}", hint="pip install 'py-rattler>=0.28'")
    if reply["fault"] == "full":
        return store.disk_full(folder.parent)
    hint = f"envkit lock --update {reply['package']} takes another build of it"
    if reply["fault"] == "refused":
        return IntegrityError(f"the conda package {reply['package']} is refused: {message}", hint=hint)
    return EngineError(f"{what}: {reply['package']}: {message}", hint=hint)


def _check_kind(installed: Staged, row: conda_package.Path) -> None:
    """Refuse an installed file of another kind than the package lists."""
    try:
        mode = (installed.folder / row.path).lstat().st_mode
    except OSError as error:
        raise _differs(installed, row, error.strerror or str(error)) from error
    kind = LINK if stat.S_ISLNK(mode) else FILE if stat.S_ISREG(mode) else "folder or special file"
    if kind != row.kind:
        raise _differs(installed, row, f"it is a {kind}, but is listed as a {row.kind}")


def _write(writer: LayerWriter, path: str, installed: Staged, row: conda_package.Path, *, prefix: str) -> None:
    source = installed.folder / row.path
    if row.kind == LINK:
        text = os.readlink(source)  # noqa: PTH115 - the unchanged text; Path would normalize it
        target = contained(text, row.path, folder=installed.folder, prefix=prefix)
        if target is None:
            raise IntegrityError(
                f"the conda package {installed.package.name} {installed.package.version} is refused: the link "
                f"{row.path} points out of the environment, to {text!r:.200}",
                hint=f"envkit lock --update {installed.package.name} takes another build of it",
            )
        writer.add_symlink(path, target)
        return
    with _open_file(source) as stream:
        status = os.fstat(stream.fileno())
        executable = bool(status.st_mode & stat.S_IXUSR)
        writer.add_file(path, stream, size=status.st_size, executable=executable, level=_LEVEL)


def _data(source: Path) -> bytes:
    with _open_file(source) as stream:
        return stream.read()


def _open_file(source: Path) -> IO[bytes]:
    """Open a file, even if its package made it unreadable for its owner."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(source, flags)
    except PermissionError:
        source.chmod(stat.S_IMODE(source.lstat().st_mode) | stat.S_IRUSR)
        descriptor = os.open(source, flags)
    return os.fdopen(descriptor, "rb", buffering=0)


def _differs(installed: Staged, row: conda_package.Path, why: str) -> EngineError:
    return EngineError(
        f"py-rattler did not install {row.path} of {installed.package.name} as listed: {why}",
        hint="envkit build --engine docker",
    )
