"""An OCI image layout on disk (image-layout.md 1.0.0): written beside its place, then put there in one step."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envkit.ground.errors import EngineError, EnvironmentProblem, IntegrityError, UsageError
from envkit.ground.files import room
from envkit.image import spec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

VERSION_FILE = "oci-layout"
VERSION = b'{"imageLayoutVersion":"1.0.0"}'
DEFAULT_NAME = "latest"
_MAX_DOCUMENT = 8 << 20
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
        _remove_stale(target)
        with _staging(target) as stage:
            _fill(stage, image, name or DEFAULT_NAME, place)
            _sync(stage)
            _put(stage, target)
    except OSError as error:
        raise out_of_order(error, target) from error


def read_layout(folder: Path, name: str | None = None, digest: str | None = None) -> spec.Image:
    """The image of a layout; its layers are named, not read.

    Args:
        folder: where the layout is.
        name: its `org.opencontainers.image.ref.name`; may be left out when there is one image.
        digest: of its manifest, instead of a name.

    Raises:
        UsageError: there is no layout, or not one image of that name.
        IntegrityError: manifest or configuration have another digest than they are named by, or a layer is missing.
    """
    try:
        version = (folder / VERSION_FILE).read_bytes()[:_MAX_DOCUMENT]
        listing = _tree((folder / "index.json").read_bytes(), f"{folder}/index.json")
    except OSError as error:
        raise UsageError(
            f"{folder} is not an OCI image layout: {error.filename} cannot be read ({error.strerror})",
            hint="envkit build --engine embedded --output oci:DIR writes one",
        ) from error
    if _tree(version, f"{folder}/{VERSION_FILE}").get("imageLayoutVersion") != "1.0.0":
        raise UsageError(
            f"{folder}: the layout is of a version that envkit cannot read", hint="skopeo copy converts it"
        )
    listed = listing.get("manifests")
    rows = [row for row in (listed if isinstance(listed, list) else ()) if isinstance(row, dict)]
    names = [_name(row) for row in rows]
    chosen = [row for row, own in zip(rows, names, strict=True) if name in (None, own)]
    chosen = [row for row in chosen if digest in (None, row.get("digest"))]
    if len({str(row.get("digest")) for row in chosen}) != 1:
        wanted = name or digest
        raise UsageError(
            f"{folder} holds {len(rows)} images" + (f", and {len(chosen)} named {wanted!r}" if wanted else ""),
            hint=f"oci:{folder}:NAME, one of: {', '.join(sorted(filter(None, names))) or 'none is named'}",
        )
    manifest = _document(folder, chosen[0])
    tree = _tree(manifest, "the manifest")
    if "manifests" in tree:
        raise UsageError(
            f"{folder}: {chosen[0]['digest']} is an index of several platforms' images",
            hint=f"skopeo copy oci:{folder} oci:DIR   # takes the one of this machine",
        )
    config = _document(folder, tree.get("config"))
    rootfs, told = _tree(config, "the configuration").get("rootfs"), tree.get("layers")
    diff_ids = rootfs.get("diff_ids") if isinstance(rootfs, dict) else None
    if not isinstance(diff_ids, list) or not isinstance(told, list):
        raise IntegrityError(f"{folder}: manifest or configuration tells of no layers", hint="build it again")
    if len(diff_ids) != len(told):
        raise IntegrityError(f"{folder}: {len(told)} layers and {len(diff_ids)} diff ids", hint="build it again")
    layers = []
    for row, diff_id in zip(told, diff_ids, strict=True):
        blob = _blob(folder, row)
        if not blob.is_file() or blob.stat().st_size != row["size"]:
            raise IntegrityError(f"{folder}: layer {row['digest']} is missing or cut", hint="build it again")
        kind = row.get("mediaType")
        if not isinstance(kind, str):
            raise IntegrityError(f"{folder}: layer {row['digest']} has no media type", hint="build it again")
        descriptor = spec.Descriptor(media_type=kind, digest=row["digest"], size=row["size"])
        layers.append(spec.Layer(descriptor=descriptor, diff_id=str(diff_id), made_by="", blob=blob))
    return spec.Image(manifest=manifest, config=config, layers=tuple(layers))


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
    """The error for a place that cannot be written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return EnvironmentProblem(
            f"disk full while writing {place} ({room(place)}); what stood there before is untouched",
            hint="envkit cache prune, or name a place on a larger disk",
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
    found = {entry.name for entry in target.iterdir()}
    if not found:
        return
    if VERSION_FILE not in found or found - {VERSION_FILE, "index.json", "blobs"}:
        raise UsageError(f"{target} exists and holds more than an OCI image layout", hint=hint)
    try:
        images = len(json.loads((target / "index.json").read_bytes())["manifests"])
    except (OSError, ValueError, KeyError, TypeError):
        images = 1  # a damaged layout of ours is replaced
    if images > 1:
        raise UsageError(f"{target} holds {images} images, which would be lost", hint=hint)


@contextlib.contextmanager
def _staging(target: Path) -> Iterator[Path]:
    """A new folder beside the target, locked as long as its run lives and gone afterwards."""
    stage = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent))
    lock = os.open(stage, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        mask = os.umask(0)
        os.umask(mask)
        stage.chmod(0o777 & ~mask)
        yield stage
    finally:
        shutil.rmtree(stage, ignore_errors=True)
        os.close(lock)


def _remove_stale(target: Path) -> None:
    """Remove staging folders of runs that were killed: nobody holds their lock."""
    for left in target.parent.glob(f".{target.name}.*.tmp"):
        with contextlib.suppress(OSError):
            lock = os.open(left, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left)
            finally:
                os.close(lock)


def _fill(stage: Path, image: spec.Image, name: str, place: Callable[[spec.Layer, Path], None]) -> None:
    blobs = stage / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    for layer in {one.digest: one for one in image.layers}.values():
        place(layer, blobs / layer.digest.partition(":")[2])
    for data in (image.config, image.manifest):
        _write(blobs / spec.sha256(data).partition(":")[2], data)
    _write(stage / VERSION_FILE, VERSION)
    _write(stage / "index.json", spec.index(image, name))


def _link(source: Path, target: Path) -> None:
    try:
        target.hardlink_to(source)
    except OSError as error:
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
    elif not _exchange(stage, target):
        old = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent))
        target.rename(old / "old")
        stage.rename(target)
        shutil.rmtree(old, ignore_errors=True)
    _sync(target.parent)


def _exchange(one: Path, other: Path) -> bool:
    """Swap two names in one step; False where kernel or file system cannot."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:
        return False
    done: int = renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _EXCHANGE)
    return done == 0


def _sync(folder: Path) -> None:
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _name(row: dict[str, Any]) -> str:
    found = row.get("annotations")
    return str(found.get("org.opencontainers.image.ref.name", "")) if isinstance(found, dict) else ""


def _blob(folder: Path, row: Any) -> Path:
    digest = row.get("digest") if isinstance(row, dict) else None
    algorithm, _, digits = str(digest).partition(":")
    fits = len(digits) == 64 and all(digit in "0123456789abcdef" for digit in digits)  # noqa: PLR2004 - hexadecimal
    if algorithm != "sha256" or not fits or not isinstance(row.get("size"), int):
        raise IntegrityError(f"{folder}: {digest!r:.100} is not a descriptor's digest", hint="build it again")
    return folder / "blobs" / "sha256" / digits


def _document(folder: Path, row: Any) -> bytes:
    path = _blob(folder, row)
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_DOCUMENT)
    except OSError as error:
        raise IntegrityError(
            f"{folder}: {row['digest']} cannot be read: {error.strerror}", hint="build it again"
        ) from error
    if spec.sha256(data) != row["digest"]:
        raise IntegrityError(
            f"{folder}: {row['digest']} holds other bytes ({spec.sha256(data)})", hint="build it again"
        )
    return data


def _tree(data: bytes, what: str) -> dict[str, Any]:
    try:
        tree = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise IntegrityError(f"{what} is not JSON", hint="build it again") from error
    if not isinstance(tree, dict):
        raise IntegrityError(f"{what} is not a table", hint="build it again")
    return tree
