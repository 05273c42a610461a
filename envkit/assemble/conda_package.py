"""A conda package: its paths in the image, and its record in `conda-meta`.

The paths follow from the package's own list and the lock, before anything is installed.
Source: conda's package specification, `info/paths.json` and `info/link.json`; CEP 20 for noarch Python packages.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from envkit.ground import imagepaths
from envkit.ground.errors import EngineError, IntegrityError, LockError
from envkit.lock.model import CondaPackage

FILE, LINK, FOLDER = "file", "link", "folder"
_KINDS = (FILE, LINK, FOLDER)
_ENTRY_POINT = re.compile(r"([\w.+-]+)\s*=\s*([\w.]+\s*:\s*[\w.]+)\s*")  # jupyter-lab = jupyterlab.labapp:main
_FREE_THREADED = re.compile(r"_cp\d+t$")  # build strings such as h9a34b6e_5_cp313t
_MINOR = re.compile(r"(\d+\.\d+)(?:\.|$)")
_META = "conda-meta"
# Fields of a record that describe one installation: its package cache and how it linked files.
_OF_ONE_INSTALLATION = ("extracted_package_dir", "package_tarball_full_path", "link")


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """One path of a package, relative to the prefix."""

    path: str
    kind: str  # FILE, LINK or FOLDER
    content: str | None  # equal texts mean equal contents; None if unknown
    size: int  # bytes, before prefixes are replaced


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The paths of a package in its archive, and its entry points."""

    paths: tuple[Path, ...]
    entry_points: tuple[str, ...]  # 'command = module:function'

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-ready tree."""
        rows = [[row.path, row.kind, row.content, row.size] for row in self.paths]
        return {"paths": rows, "entry_points": list(self.entry_points)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """The Python of the lock, which determines the paths of noarch packages."""

    version: str
    build: str

    @property
    def minor(self) -> str:
        """'3.11'."""
        match = _MINOR.match(self.version)
        if match is None:
            raise LockError(f"the python of the lock has the invalid version {self.version!r}", hint="envkit lock")
        return match[1]

    @property
    def site_packages(self) -> str:
        """The folder of modules, relative to the prefix; the free-threaded build has its own."""
        return f"lib/{self.minor_folder}/site-packages"

    @property
    def minor_folder(self) -> str:
        """The folder of Python's own modules in `lib`."""
        return f"python{self.minor}{'t' if _FREE_THREADED.search(self.build) else ''}"


def from_json(tree: Mapping[str, Any]) -> Listing:
    """Return the listing of a JSON tree.

    Raises:
        ValueError: the tree is not a listing.
    """
    try:
        rows = [(str(path), kind, content, int(size)) for path, kind, content, size in tree["paths"]]
        points = tuple(str(text) for text in tree["entry_points"])
    except (KeyError, TypeError) as error:
        raise ValueError("not a listing") from error
    if any(kind not in _KINDS or not isinstance(content, str | None) for _, kind, content, _ in rows):
        raise ValueError("not a listing")
    paths = (Path(path=path, kind=kind, content=content, size=size) for path, kind, content, size in rows)
    return Listing(paths=tuple(paths), entry_points=points)


def placed(package: CondaPackage, listing: Listing, python: Interpreter | None) -> tuple[Path, ...]:
    """Return the installed paths of the package below the prefix, sorted, without its own metadata.

    Raises:
        IntegrityError: a path points out of the prefix, occurs twice, or is in conda-meta.
        LockError: it is a noarch Python package, and the lock has no Python.
    """
    paths: dict[str, Path] = {}
    if package.noarch == "python" and python is None:
        raise LockError(
            f"{package.name} is a noarch Python package, and the lock has no python", hint="run envkit lock again"
        )
    for row in listing.paths:
        _add(package, paths, Path(path=_place(row.path, package, python), kind=row.kind, content=row.content,
                                  size=row.size))  # fmt: skip
    for text in listing.entry_points if package.noarch == "python" else ():
        point = _ENTRY_POINT.fullmatch(text)
        if point is None:
            _refuse(package, f"{text!r:.100} is not an entry point")
        target = "".join(point[2].split())
        _add(package, paths, Path(path=f"bin/{point[1]}", kind=FILE, content=f"{FILE} {target}", size=0))
    return tuple(paths[path] for path in sorted(paths))


def meta_path(package: CondaPackage) -> str:
    """Return the path of the package's metadata, relative to the prefix."""
    return f"{_META}/{package.name}-{package.version}-{package.build}.json"


def scripts(package: CondaPackage, paths: tuple[Path, ...]) -> tuple[str, ...]:
    """Return the package's link scripts, which installers run and envkit does not."""
    wanted = {f"bin/.{package.name}-{when}-link.sh" for when in ("pre", "post")}
    return tuple(row.path for row in paths if row.path in wanted)


def is_only_scripts(package: CondaPackage, paths: tuple[Path, ...]) -> bool:
    """Return whether the package consists only of its scripts, which would download its contents."""
    start = f"bin/.{package.name}-"
    return not any(row.kind != FOLDER and not row.path.startswith(start) for row in paths)


def read_record(data: bytes, package: CondaPackage) -> dict[str, Any]:
    """Return the record that the installer wrote.

    Raises:
        EngineError: it cannot be read, or is that of another package.
    """
    try:
        tree = json.loads(data)
        rows = [str(row["_path"]) for row in tree["paths_data"]["paths"]]
        fits = (tree["name"], tree["version"], tree["build"]) == (package.name, package.version, package.build)
    except (ValueError, KeyError, TypeError) as error:
        raise EngineError(
            f"py-rattler wrote no readable record of {package.name}", hint="pip install -U py-rattler"
        ) from error
    if not fits or len(set(rows)) != len(rows):
        raise EngineError(
            f"the archive of {package.name} {package.version} {package.build} contains "
            f"{tree['name']} {tree['version']} {tree['build']}",
            hint="run envkit lock again",
        )
    return dict(tree)


def record_paths(record: dict[str, Any]) -> tuple[str, ...]:
    """Return the paths that the installer wrote, sorted."""
    return tuple(sorted(row["_path"] for row in record["paths_data"]["paths"]))


def record_file(record: dict[str, Any], package: CondaPackage) -> bytes:
    """Return the record as a file of the image: the same bytes wherever it was installed.

    It keeps what conda, mamba and SBOM scanners read: name, version, build, channel, digests and files. URL, channel
    and dependencies are those of the lock, because channels correct dependencies without changing the archive.
    """
    kept = {key: value for key, value in record.items() if key not in _OF_ONE_INSTALLATION}
    data = {**record["paths_data"], "paths": sorted(record["paths_data"]["paths"], key=lambda row: row["_path"])}
    kept |= {
        "url": package.url,
        "fn": package.url.rpartition("/")[2],
        # https://conda.example.com/conda-forge/linux-64/FILE without subdir and file.
        "channel": package.url.rsplit("/", 2)[0],
        "sha256": package.sha256,
        "size": package.size,
        "depends": list(package.depends),
        "requested_specs": [],
        "files": sorted(record.get("files", [])),
        "paths_data": data,
    }
    return json.dumps(kept, sort_keys=True, indent=2).encode() + b"\n"


def _place(path: str, package: CondaPackage, python: Interpreter | None) -> str:
    if package.noarch != "python" or python is None:
        return path
    if path.startswith("site-packages/"):
        return f"{python.site_packages}/{path.removeprefix('site-packages/')}"
    if path.startswith("python-scripts/"):
        return f"bin/{path.removeprefix('python-scripts/')}"
    return path


def _add(package: CondaPackage, paths: dict[str, Path], row: Path) -> None:
    if why := imagepaths.fault(row.path):
        _refuse(package, why)
    # conda-meta has records, history, variables of the environment (state) and pins, which affect all conda commands.
    if row.path.partition("/")[0] == _META:
        _refuse(package, f"it contains {row.path}, and only installers may write to {_META}")
    if row.path in paths:
        _refuse(package, f"it contains {row.path!r} twice")
    paths[row.path] = row


def _refuse(package: CondaPackage, why: str) -> NoReturn:
    raise IntegrityError(
        f"the conda package {package.name} {package.version} is refused: {why}",
        hint=f"envkit lock --update {package.name} takes another build of it",
    )
