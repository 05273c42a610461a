"""Small conda packages, valid and damaged, with the lock's row for each."""

import bz2
import hashlib
import io
import json
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from envkit.image import zstd
from envkit.lock.model import CONDA_PUBLIC, CondaPackage

PLACEHOLDER = "/opt/" + "placehold_" * 8


@dataclass(frozen=True)
class Content:
    """One path in a package. A link has a target; a folder has neither target nor data."""

    path: str
    data: bytes | None = None
    target: str | None = None
    mode: int = 0o644
    listed: str | None = None  # its path in paths.json, if that differs
    kind: str | None = None  # its kind in paths.json, if that differs
    row: Mapping[str, Any] | None = field(default_factory=dict)  # more fields in paths.json; None: not listed there
    packed: bool = True  # False: listed, but not in the archive


@dataclass(frozen=True)
class Made:
    """An archive and its row in a lock."""

    package: CondaPackage
    archive: Path


@dataclass(frozen=True)
class Recipe:
    """The contents and metadata of a package to write."""

    name: str
    contents: Sequence[Content] = ()
    version: str = "1.0"
    noarch: str | None = None
    entry_points: Sequence[str] = ()
    depends: tuple[str, ...] = ()
    index: Mapping[str, Any] = field(default_factory=dict)


PYTHON = Recipe("python", [Content("bin/python3.11", b"\x7fELF", mode=0o755)], version="3.11.9")
TOOL = Recipe(
    "tool",
    [Content("site-packages/tool.py", b"def main(): ...\n"), Content("python-scripts/go", b"#!/bin/sh\n", mode=0o755)],
    noarch="python",
    entry_points=["tool = tool:main"],
)
STUFF = Recipe(
    "stuff",
    [
        Content("bin/stuff", f"#!{PLACEHOLDER}/bin/python\n".encode(), mode=0o4755),
        Content("lib/libstuff.so.1", b"\0" + PLACEHOLDER.encode() + b"/share\0tail", mode=0o775),
        Content("lib/libstuff.so", target="libstuff.so.1"),
        Content("share/closed", b"closed", mode=0o400),
        Content("share/empty", None, mode=0o700),
        Content("share/pyc/__pycache__/own.pyc", b"bytecode"),
        Content("share/ünïcode " + "long" * 40, b""),
    ],
    depends=("libc 1",),
)


def locked(name: str, **changes: Any) -> CondaPackage:
    """Return the row of a package that is never downloaded."""
    row: dict[str, Any] = {
        "name": name,
        "version": "1.0",
        "build": "0",
        "subdir": "linux-64",
        "channel": "conda-forge",
        "url": f"{CONDA_PUBLIC}/conda-forge/linux-64/{name}-1.0-0.conda",
        "sha256": hashlib.sha256(name.encode()).hexdigest(),
        "size": 100,
        "depends": (),
        "noarch": None,
    }
    return CondaPackage(**{**row, **changes})


def write_archive(folder: Path, recipe: Recipe, ending: str = ".tar.bz2") -> Made:
    """Write a `.tar.bz2` or `.conda` package."""
    subdir = "noarch" if recipe.noarch else "linux-64"
    file = f"{recipe.name}-{recipe.version}-0{ending}"
    path = folder / subdir / file
    path.parent.mkdir(parents=True, exist_ok=True)
    info = _info(recipe, subdir)
    if ending == ".tar.bz2":
        path.write_bytes(bz2.compress(_tar([*info, *recipe.contents])))
    else:
        stem = file.removesuffix(ending)
        with zipfile.ZipFile(path, "w") as packed:
            packed.writestr("metadata.json", '{"conda_pkg_format_version": 2}')
            packed.writestr(f"pkg-{stem}.tar.zst", zstd.compress(_tar(recipe.contents), 1))
            packed.writestr(f"info-{stem}.tar.zst", zstd.compress(_tar(info), 1))
    data = path.read_bytes()
    package = CondaPackage(
        name=recipe.name,
        version=recipe.version,
        build="0",
        subdir=subdir,
        channel="conda-forge",
        url=f"{CONDA_PUBLIC}/conda-forge/{subdir}/{file}",
        sha256=hashlib.sha256(data).hexdigest(),
        size=len(data),
        depends=recipe.depends,
        noarch=recipe.noarch,
    )
    return Made(package, path)


def _info(recipe: Recipe, subdir: str) -> list[Content]:
    index: dict[str, Any] = {
        "name": recipe.name,
        "version": recipe.version,
        "build": "0",
        "build_number": 0,
        "subdir": subdir,
        "depends": [*recipe.depends, "older"],
        "timestamp": 1735689600000,
        **recipe.index,
    }
    if recipe.noarch:
        index["noarch"] = recipe.noarch
    info: dict[str, Any] = {
        "info/index.json": index,
        "info/paths.json": {
            "paths": [_listed(content) for content in recipe.contents if content.row is not None],
            "paths_version": 1,
        },
    }
    if recipe.noarch == "python":
        noarch = {"type": "python", "entry_points": list(recipe.entry_points)}
        info["info/link.json"] = {"noarch": noarch, "package_metadata_version": 1}
    return [Content(name, json.dumps(tree).encode()) for name, tree in info.items()]


def _tar(contents: Sequence[Content]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for content in contents:
            if content.packed:
                _add(tar, content)
    return buffer.getvalue()


def _add(tar: tarfile.TarFile, content: Content) -> None:
    member = tarfile.TarInfo(content.path)
    member.mode, member.mtime = content.mode, 1735689600
    if content.target is not None:
        member.type, member.linkname = tarfile.SYMTYPE, content.target
    elif content.data is None:
        member.type = tarfile.DIRTYPE
    else:
        member.size = len(content.data)
    tar.addfile(member, io.BytesIO(content.data or b""))


def _listed(content: Content) -> dict[str, Any]:
    kind = "softlink" if content.target is not None else "directory" if content.data is None else "hardlink"
    row: dict[str, Any] = {"_path": content.listed or content.path, "path_type": content.kind or kind}
    if content.data is not None:
        row |= {"sha256": hashlib.sha256(content.data).hexdigest(), "size_in_bytes": len(content.data)}
        if PLACEHOLDER.encode() in content.data:
            mode = "binary" if b"\0" in content.data else "text"
            row |= {"prefix_placeholder": PLACEHOLDER, "file_mode": mode}
    return row | dict(content.row or {})
