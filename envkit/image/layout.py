"""An OCI image layout on disk (image-layout.md 1.0.0): written beside its place, then put there in one step."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from envkit.ground import platforms
from envkit.ground.errors import EngineError, EnvironmentProblem, IntegrityError, UsageError
from envkit.ground.store import FULL, disk_full, fresh_folder, sweep, sync_folder
from envkit.image import spec
from envkit.image.document import (
    MOST_BYTES,
    Row,
    damaged,
    descriptor,
    fitting,
    image_of,
    is_index,
    of_platform,
    parse_json,
    rows,
)
from envkit.image.reference import FileReference

if TYPE_CHECKING:
    from collections.abc import Callable

VERSION_FILE = "oci-layout"
VERSION = b'{"imageLayoutVersion":"1.0.0"}'
DEFAULT_NAME = "latest"
# An index names its children by hash, so indexes cannot form a loop; a long chain would still be read to its end.
_MOST_DEPTH = 4
_EXCHANGE = 2  # RENAME_EXCHANGE of renameat2(2)
_AT_FDCWD = -100


def link(layer: spec.Layer, target: Path) -> None:
    """Give a layer's file a second name, or copy it where the file system has no links across."""
    _link(blob_of(layer), target)


def write_layout(
    image: spec.Image, folder: Path, name: str | None = None, *, place: Callable[[spec.Layer, Path], None] = link
) -> None:
    """Write `image` as the only one of a layout. A run killed at any moment leaves the old layout or the new one.

    Args:
        image: every layer has its blob.
        folder: where the layout will be.
        name: what tools call the image (`oci:DIR:NAME`), `latest` unless given.
        place: puts a layer's blob at a path; by default as a hard link to where it lies.

    Raises:
        UsageError: `folder` holds something else, or several images.
        IntegrityError: a layer's file has another size than its descriptor.
        EnvironmentProblem: the disk is full or the folder cannot be written.
    """
    target = folder.absolute()
    _check_target(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # First of all: what killed runs left here may be as large as the image, and the disk may have room for one
        # only.
        sweep(target.parent.glob(f".{target.name}.*.tmp"))
        with fresh_folder(target.parent, prefix=f".{target.name}.", suffix=".tmp", mode=0o777) as stage:
            _fill(stage, image, name or DEFAULT_NAME, place)
            sync_folder(stage)
            _put(stage, target)
    except OSError as error:
        raise out_of_order(error, target) from error


def read_layout(reference: FileReference) -> spec.Image:
    """The image of a layout that a reference means; nothing but JSON is read.

    Raises:
        EngineError: there is no layout, or no image of that name in it.
        IntegrityError: a file of it does not match its digest or size, or is missing.
        UsageError: it holds several images and the reference names none, or is of another version.
    """
    folder = reference.path
    if not (folder / "index.json").is_file():
        raise EngineError(
            f"there is no image {str(reference)!r:.300}: {folder} holds no index.json",
            hint="envkit build --engine embedded --output oci:DIR",
        )
    _check_version(folder)
    index = parse_json(_small(folder / "index.json"), f"{folder}/index.json")
    chosen = _chosen(rows(index, f"{folder}/index.json"), reference)
    manifest, digest = _manifest(folder, chosen)
    config = _blob_bytes(folder, descriptor(parse_json(manifest, digest).get("config"), f"{folder}: config"))
    return image_of(
        manifest,
        config,
        str(folder),
        blob=lambda row: _blob(folder, row),
        tags=(chosen.name,) if chosen.name else (),
        origin=str(FileReference(kind=reference.kind, path=folder.absolute(), digest=chosen.digest)),
    )


def blob_of(layer: spec.Layer) -> Path:
    """The file of a layer.

    Raises:
        EngineError: it was not fetched from its registry.
        IntegrityError: it is missing or has another size than the descriptor says.
    """
    if layer.blob is None:
        raise EngineError(
            f"layer {layer.digest} is only in {layer.origin or 'its registry'}", hint="envkit build again"
        )
    try:
        size = layer.blob.stat().st_size
    except OSError as error:
        raise IntegrityError(
            f"layer {layer.digest} cannot be read: {error.strerror} ({layer.blob})", hint="envkit build again"
        ) from error
    if size != layer.descriptor.size:
        raise IntegrityError(
            f"layer {layer.digest} has {size} bytes at {layer.blob}, not {layer.descriptor.size}",
            hint="envkit build again: the cache replaces what is damaged",
        )
    return layer.blob


def out_of_order(error: OSError, place: Path) -> EnvironmentProblem:
    """Return the error for an output that cannot be written."""
    if error.errno in FULL:
        return disk_full(
            place, hint="envkit cache prune, or name a place on a larger disk; what stood there before is untouched"
        )
    return EnvironmentProblem(
        f"{place} cannot be written: {error.strerror or error}", hint="name a folder that this user may write"
    )


def _check_target(target: Path) -> None:
    if not target.exists() and not target.is_symlink():
        return
    hint = "name a new folder: --output oci:DIR"
    if not target.is_dir() or target.is_symlink():
        raise UsageError(f"{target} is not a folder", hint=hint)
    names = {entry.name for entry in target.iterdir()}
    if not names:
        return
    # All of the folder is replaced, so it must not hold anything of the user's.
    if VERSION_FILE not in names or names - {VERSION_FILE, "index.json", "blobs"}:
        raise UsageError(f"{target} exists and holds more than an OCI image layout", hint=hint)
    try:
        images = len(json.loads((target / "index.json").read_bytes())["manifests"])
    except (OSError, ValueError, KeyError, TypeError):
        images = 1  # a damaged layout of ours is replaced
    if images > 1:
        raise UsageError(f"{target} holds {images} images, which would be lost", hint=hint)


def _fill(stage: Path, image: spec.Image, name: str, place_blob: Callable[[spec.Layer, Path], None]) -> None:
    blobs = stage / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    # Two layers may have the same bytes. Their blob has one name then, and a second write to it would fail.
    for layer in {image_layer.digest: image_layer for image_layer in image.layers}.values():
        place_blob(layer, blobs / layer.digest.partition(":")[2])
    for data in (image.config, image.manifest):
        _write(blobs / spec.sha256(data).partition(":")[2], data)
    _write(stage / VERSION_FILE, VERSION)
    _write(stage / "index.json", spec.index(image, name))


def _link(source: Path, target: Path) -> None:
    try:
        target.hardlink_to(source)
    except OSError as error:
        # Another disk, a file system without hard links, too many of one file, or fs.protected_hardlinks, by which the
        # kernel refuses links to files of other users (proc_sys_fs(5)).
        if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EACCES, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
        with source.open("rb") as reading, target.open("xb") as writing:
            shutil.copyfileobj(reading, writing, 1 << 20)
            writing.flush()
            os.fsync(writing.fileno())


def _write(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _put(stage: Path, target: Path) -> None:
    """Give the stage the target's name; where something stands there, the two change places, or nearly so."""
    if not target.exists():
        stage.rename(target)
    # A swap keeps one of the two layouts at this name at every moment; removing and renaming has a moment without.
    elif not _exchange(stage, target):
        with fresh_folder(target.parent, prefix=f".{target.name}.", suffix=".tmp") as old:
            target.rename(old / "old")
            stage.rename(target)
    sync_folder(target.parent)


def _exchange(first: Path, other: Path) -> bool:
    """Swap two names in one step; False where kernel or file system cannot."""
    try:
        # Python has no function for it; glibc has one since 2.28.
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:
        return False
    done: int = renameat2(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(other), _EXCHANGE)
    return done == 0


def _check_version(folder: Path) -> None:
    path = folder / VERSION_FILE
    if path.exists() and parse_json(_small(path), str(path)).get("imageLayoutVersion") != "1.0.0":
        raise UsageError(
            f"{folder}: the layout is of a version that envkit cannot read", hint="skopeo copy converts it"
        )


def _chosen(listed: tuple[Row, ...], reference: FileReference) -> Row:
    """The row that a reference means."""
    names = sorted({row.name for row in listed if row.name})
    if reference.digest is not None:
        meant = [row for row in listed if row.digest == reference.digest]
    elif reference.tag is not None:
        meant = [row for row in listed if row.name == reference.tag]
    else:
        meant = list(listed)
    if not meant:
        have = f"it has {', '.join(names)}" if names else "it names none"
        raise EngineError(
            f"there is no image {str(reference)!r:.300} ({have})", hint=f"envkit verify oci:{reference.path}"
        )
    if len({row.digest for row in meant}) == 1:
        return meant[0]
    here = fitting(meant, platforms.here())
    if here is not None and sum(row.platform == here.platform for row in meant) == 1:
        return here
    shown = names or [row.digest for row in meant]
    raise UsageError(
        f"{reference.path} holds {len(meant)} images",
        hint=f"name one: oci:{reference.path}:{shown[0]}" if names else f"name one: oci:{reference.path}@{shown[0]}",
        details=tuple(shown),
    )


def _manifest(folder: Path, row: Row) -> tuple[bytes, str]:
    """The manifest below a row, through indexes of platforms, and what errors call it."""
    for _ in range(_MOST_DEPTH):
        where = f"manifest {row.digest}"
        data = _blob_bytes(folder, row.descriptor)
        tree = parse_json(data, where)
        if not is_index(tree):
            return data, where
        row = of_platform(rows(tree, where), where)
    raise damaged(f"{folder}: indexes within indexes, more than {_MOST_DEPTH} deep")


def _blob(folder: Path, named: spec.Descriptor) -> Path:
    """The file of a blob, which is there with the right size; its digest is checked when it is read."""
    path = folder.absolute() / "blobs" / "sha256" / named.digest.removeprefix("sha256:")
    try:
        size = path.stat().st_size
    except OSError as error:
        raise damaged(f"{folder}: blob {named.digest} cannot be read: {error.strerror}") from error
    if size != named.size:
        raise damaged(f"{folder}: blob {named.digest} has {size} bytes, not {named.size}")
    return path


def _blob_bytes(folder: Path, named: spec.Descriptor) -> bytes:
    data = _small(_blob(folder, named))
    if spec.sha256(data) != named.digest:
        raise damaged(f"{folder}: blob {named.digest} has the digest {spec.sha256(data)}")
    return data


def _small(path: Path) -> bytes:
    """A JSON file, refused where it is larger than any of its kind."""
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise EngineError(f"{path} cannot be read: {error.strerror}", hint=f"ls -l {path}") from error
    if len(data) > MOST_BYTES:
        raise damaged(f"{path} is larger than {MOST_BYTES} bytes, too large for a JSON document of an image")
    return data
