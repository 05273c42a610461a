"""Write `.conda` packages: a zip with one zstd-compressed tar of the files and one of the metadata."""

import compileall
import hashlib
import io
import json
import os
import subprocess
import tarfile
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tests.world import apt

# The prefix in text files, which the installer replaces with the real one.
PLACEHOLDER = "/opt/" + "placehold_" * 8
_EPOCH = 1735689600  # 2025-01-01, the date of every member, so that equal content gives an equal package
_TEXT_LIMIT = 1 << 20


@dataclass(frozen=True, slots=True)
class Metadata:
    """A package's entry in the index. A `noarch` package has its modules in `site-packages/` and entry points."""

    name: str
    version: str
    build: str
    depends: tuple[str, ...] = ()
    constrains: tuple[str, ...] = ()
    noarch: Literal["python"] | None = None
    entry_points: tuple[str, ...] = ()
    license: str = ""

    @property
    def subdir(self) -> str:
        """The channel folder of the package."""
        return "noarch" if self.noarch else "linux-64"

    @property
    def filename(self) -> str:
        """`name-version-build.conda`."""
        return f"{self.name}-{self.version}-{self.build}.conda"


def compile_modules(files: Path) -> None:
    """Add bytecode to the files of a package for one platform, as conda-build does: made in its own prefix."""
    for path in files.rglob("*.py"):
        if not path.is_symlink():
            os.utime(path, (_EPOCH, _EPOCH))
    # Some sources of torch do not compile; they have no bytecode in real packages either.
    compileall.compile_dir(files, quiet=2, stripdir=str(files), prependdir=PLACEHOLDER, workers=0)


def write(metadata: Metadata, files: Path, channel: Path) -> Path:
    """Pack everything below `files` into the channel and return the package's path. An old package is replaced."""
    zstd = apt.require("zstd", "zstd")
    folder = channel / metadata.subdir
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / metadata.filename
    stem = target.name.removesuffix(".conda")
    members = sorted(path for path in files.rglob("*") if path.is_symlink() or path.is_file())
    content = folder / f".{stem}.pkg.tar.zst"
    partial = folder / f".{stem}.partial"
    try:
        _pack(zstd, content, ((path, path.relative_to(files).as_posix()) for path in members))
        with zipfile.ZipFile(partial, "w", zipfile.ZIP_STORED) as archive:
            archive.writestr("metadata.json", '{"conda_pkg_format_version": 2}')
            archive.write(content, f"pkg-{stem}.tar.zst")
            archive.writestr(f"info-{stem}.tar.zst", _pack_info(zstd, _info(metadata, members, files)))
        partial.replace(target)
    finally:
        content.unlink(missing_ok=True)
        partial.unlink(missing_ok=True)
    return target


def _info(metadata: Metadata, members: Sequence[Path], files: Path) -> dict[str, Any]:
    index: dict[str, Any] = {
        "name": metadata.name,
        "version": metadata.version,
        "build": metadata.build,
        "build_number": int(metadata.build.rsplit("_", 1)[-1]),
        "depends": list(metadata.depends),
        "constrains": list(metadata.constrains),
        "subdir": metadata.subdir,
        "arch": None if metadata.noarch else "x86_64",
        "platform": None if metadata.noarch else "linux",
        "timestamp": _EPOCH * 1000,
    }
    if metadata.license:
        index["license"] = metadata.license
    if metadata.noarch:
        index["noarch"] = metadata.noarch
    paths = [_describe(path, path.relative_to(files).as_posix()) for path in members]
    tree: dict[str, Any] = {"info/index.json": index, "info/paths.json": {"paths": paths, "paths_version": 1}}
    if metadata.noarch:
        noarch = {"type": "python", "entry_points": list(metadata.entry_points)}
        tree["info/link.json"] = {"noarch": noarch, "package_metadata_version": 1}
    return tree


def _describe(path: Path, name: str) -> dict[str, Any]:
    size = path.stat().st_size
    row: dict[str, Any] = {"_path": name, "path_type": "softlink" if path.is_symlink() else "hardlink"}
    if path.is_dir():  # a link to a folder has no content of its own
        return row
    with path.open("rb") as content:
        row["sha256"] = hashlib.file_digest(content, "sha256").hexdigest()
    row["size_in_bytes"] = size
    # The paths in bytecode are those of the build; conda-build lists no prefix for it.
    is_text = row["path_type"] == "hardlink" and size < _TEXT_LIMIT and path.suffix != ".pyc"
    if is_text and PLACEHOLDER.encode() in path.read_bytes():
        row |= {"prefix_placeholder": PLACEHOLDER, "file_mode": "text"}
    return row


def _pack(zstd: str, target: Path, members: Iterable[tuple[Path, str]]) -> None:
    with target.open("wb") as out:
        process = subprocess.Popen([zstd, "-q", "-3", "-T0", "-c"], stdin=subprocess.PIPE, stdout=out)
        assert process.stdin
        with process.stdin, tarfile.open(fileobj=process.stdin, mode="w|", format=tarfile.GNU_FORMAT) as tar:
            for path, name in members:
                _add(tar, path, name)
        if process.wait():
            raise OSError(f"zstd ended with code {process.returncode} on {target.name}")


def _add(tar: tarfile.TarFile, path: Path, name: str) -> None:
    member = tarfile.TarInfo(name)
    member.mtime = _EPOCH
    if path.is_symlink():
        member.type = tarfile.SYMTYPE
        member.linkname = str(path.readlink())
        tar.addfile(member)
        return
    member.size = path.stat().st_size
    member.mode = 0o755 if os.access(path, os.X_OK) else 0o644
    with path.open("rb") as content:
        tar.addfile(member, content)


def _pack_info(zstd: str, tree: dict[str, Any]) -> bytes:
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name, document in tree.items():
            text = json.dumps(document, indent=1, sort_keys=True).encode()
            member = tarfile.TarInfo(name)
            member.size, member.mtime = len(text), _EPOCH
            tar.addfile(member, io.BytesIO(text))
    return subprocess.run([zstd, "-q", "-c"], input=plain.getvalue(), capture_output=True, check=True).stdout
