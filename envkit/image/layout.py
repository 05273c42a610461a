"""Read and write OCI image layouts (image-layout.md 1.0.0). A layout is replaced in one step."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import shutil
from pathlib import Path

from envkit.ground import foreign, platforms
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
from envkit.image.name import InLayout

VERSION_FILE = "oci-layout"
VERSION = b'{"imageLayoutVersion":"1.0.0"}'
DEFAULT_NAME = "latest"
# Indexes refer to each other by hash, so they cannot form a loop. This limits the length of a chain.
_MOST_DEPTH = 4
_EXCHANGE = 2  # RENAME_EXCHANGE of renameat2(2)
_AT_FDCWD = -100


def write_layout(image: spec.Image, folder: Path, name: str | None = None) -> None:
    """Write `image` as the only image of a layout. A run that is killed leaves the old layout or the new one.

    Args:
        image: every layer has its blob.
        folder: the folder of the layout.
        name: the image's name for tools (`oci:DIR:NAME`), by default `latest`.

    Raises:
        UsageError: `folder` contains something else, or several images.
        IntegrityError: the size of a layer's file is not that of its descriptor.
        EnvironmentProblem: the disk is full or the folder cannot be written.
    """
    target = folder.absolute()
    _check_target(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # Leftovers of killed runs can be as large as the image. Remove them first, to make room for it.
        sweep(target.parent.glob(f".{target.name}.*.tmp"))
        # 0o777 less the umask, as for any folder of the user: the stage becomes the layout.
        with fresh_folder(target.parent, prefix=f".{target.name}.", suffix=".tmp", mode=0o777) as stage:
            _fill(stage, image, name or DEFAULT_NAME)
            # Before the rename: after a power failure, the name must not lead to a folder with missing entries.
            sync_folder(stage)
            _put(stage, target)
    except OSError as error:
        raise write_error(error, target) from error


def read_layout(reference: InLayout) -> spec.Image:
    """Return an image of a layout; layers are not read.

    Raises:
        EngineError: there is no layout, or it has no such image.
        IntegrityError: a file does not match its digest or size, or is missing.
        UsageError: it has several images and the reference selects none, or it has another version.
    """
    folder = reference.path
    if not (folder / "index.json").is_file():
        raise EngineError(
            f"there is no image {str(reference)!r:.300}: {folder} has no index.json",
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
        origin=InLayout(path=folder.absolute(), digest=chosen.digest),
    )


def blob_of(layer: spec.Layer) -> Path:
    """Return the file of a layer.

    Raises:
        EngineError: the layer was not fetched from its registry.
        IntegrityError: the file is missing, or its size is not that of the descriptor.
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
            hint="envkit build again; the cache replaces damaged layers",
        )
    return layer.blob


def write_error(error: OSError, path: Path) -> EnvironmentProblem:
    """Return the error for an output that cannot be written."""
    if error.errno in FULL:
        return disk_full(path, hint="envkit cache prune, or write to a larger disk; an existing output is unchanged")
    return EnvironmentProblem(
        f"{path} cannot be written: {error.strerror or error}", hint="choose a folder that this user can write to"
    )


def _check_target(target: Path) -> None:
    if not target.exists() and not target.is_symlink():
        return
    hint = "choose a new folder: --output oci:DIR"
    # rename(2) would replace a link itself, not the folder that it leads to.
    if not target.is_dir() or target.is_symlink():
        raise UsageError(f"{target} is not a folder", hint=hint)
    names = {entry.name for entry in target.iterdir()}
    if not names:
        return
    # The whole folder is replaced, so it must not contain files of the user.
    if VERSION_FILE not in names or names - {VERSION_FILE, "index.json", "blobs"}:
        raise UsageError(f"{target} exists and contains more than an OCI image layout", hint=hint)
    try:
        images = len(json.loads((target / "index.json").read_bytes())["manifests"])
    except (OSError, ValueError, KeyError, TypeError):
        images = 1  # a damaged layout is replaced
    if images > 1:
        raise UsageError(f"{target} has {images} images, which would be overwritten", hint=hint)


def _fill(stage: Path, image: spec.Image, name: str) -> None:
    blobs = stage / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    # Layers with equal bytes have the same blob, which can be written only once.
    for layer in {image_layer.digest: image_layer for image_layer in image.layers}.values():
        _link(blob_of(layer), blobs / layer.digest.partition(":")[2])
    for data in (image.config, image.manifest):
        _write(blobs / spec.sha256(data).partition(":")[2], data)
    _write(stage / VERSION_FILE, VERSION)
    _write(stage / "index.json", spec.index(image, name))


def _link(source: Path, target: Path) -> None:
    """Hard-link a file to a path; copy it if that is not possible."""
    try:
        target.hardlink_to(source)
    except OSError as error:
        # Another disk, a file system without hard links, too many links to the file, or fs.protected_hardlinks, with
        # which the kernel refuses links to files of other users (proc_sys_fs(5)).
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
    """Rename the stage to the target; if that exists, swap the two if possible."""
    if not target.exists():
        stage.rename(target)
    # With a swap, there is a layout under this name at all times; with two renames there is none for a moment.
    # After a swap, the old layout has the name of the stage and is removed with it.
    elif not _exchange(stage, target):
        with fresh_folder(target.parent, prefix=f".{target.name}.", suffix=".tmp") as old:
            target.rename(old / "old")
            stage.rename(target)
    sync_folder(target.parent)


def _exchange(first: Path, other: Path) -> bool:
    """Swap two names in one step; return False if the kernel or the file system cannot."""
    try:
        # Python has no function for this; glibc has one since 2.28.
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:
        return False
    done: int = renameat2(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(other), _EXCHANGE)
    return done == 0


def _check_version(folder: Path) -> None:
    path = folder / VERSION_FILE
    if path.exists() and parse_json(_small(path), str(path)).get("imageLayoutVersion") != "1.0.0":
        raise UsageError(f"{folder}: unsupported version of the OCI image layout", hint="skopeo copy converts it")


def _chosen(listed: tuple[Row, ...], reference: InLayout) -> Row:
    """Return the entry that a reference selects."""
    names = sorted({row.name for row in listed if row.name})
    if reference.digest is not None:
        matches = [row for row in listed if row.digest == reference.digest]
    elif reference.tag is not None:
        matches = [row for row in listed if row.name == reference.tag]
    else:
        matches = list(listed)
    if not matches:
        have = f"it has {', '.join(names)}" if names else "its images have no names"
        raise EngineError(
            f"there is no image {str(reference)!r:.300} ({have})", hint=f"envkit verify oci:{reference.path}"
        )
    # One image can have several names.
    if len({row.digest for row in matches}) == 1:
        return matches[0]
    # Under one name, an index can list an image for each platform.
    here = fitting(matches, platforms.here())
    if here is not None and sum(row.platform == here.platform for row in matches) == 1:
        return here
    shown = names or [row.digest for row in matches]
    raise UsageError(
        f"{reference.path} has {len(matches)} images",
        hint=f"choose one: oci:{reference.path}{':' if names else '@'}{shown[0]}",
        details=tuple(shown),
    )


def _manifest(folder: Path, row: Row) -> tuple[bytes, str]:
    """Return the manifest of an entry, following indexes of platforms, and its name for errors."""
    for _ in range(_MOST_DEPTH):
        where = f"manifest {row.digest}"
        data = _blob_bytes(folder, row.descriptor)
        tree = parse_json(data, where)
        if not is_index(tree):
            return data, where
        row = of_platform(rows(tree, where), where)
    raise damaged(f"{folder}: indexes are nested more than {_MOST_DEPTH} deep")


def _blob(folder: Path, blob: spec.Descriptor) -> Path:
    """Return the file of a blob after checking its size; the digest is checked when the file is read."""
    path = folder.absolute() / "blobs" / "sha256" / blob.digest.removeprefix("sha256:")
    try:
        size = path.stat().st_size
    except OSError as error:
        raise damaged(f"{folder}: blob {blob.digest} cannot be read: {error.strerror}") from error
    if size != blob.size:
        raise damaged(f"{folder}: blob {blob.digest} has {size} bytes, not {blob.size}")
    return path


def _blob_bytes(folder: Path, blob: spec.Descriptor) -> bytes:
    data = _small(_blob(folder, blob))
    if spec.sha256(data) != blob.digest:
        raise damaged(f"{folder}: blob {blob.digest} has the digest {spec.sha256(data)}")
    return data


def _small(path: Path) -> bytes:
    """Read a JSON file, which may have at most `MOST_BYTES`."""
    try:
        with foreign.opened(path, error=EngineError) as file:
            data = file.read_at(0, MOST_BYTES + 1)
    except OSError as error:
        raise EngineError(f"{path} cannot be read: {error.strerror}", hint=f"ls -l {path}") from error
    if len(data) > MOST_BYTES:
        raise damaged(f"{path} is too large for a JSON document of an image: more than {MOST_BYTES} bytes")
    return data
