"""An image into a registry: only the blobs that it lacks, the manifest by digest, then the proof, and the tag last."""

from __future__ import annotations

import concurrent.futures
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from envkit.build.embedded import oci
from envkit.build.embedded.layout import blob_of
from envkit.build.embedded.retry import TransientError
from envkit.build.embedded.transport import PIECE, Body
from envkit.errors import EngineError, IntegrityError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from envkit.build.embedded.reference import Reference
    from envkit.build.embedded.registry import Registry
    from envkit.progress import Reporter

_WHOLE = 1 << 20  # bytes; smaller blobs are sent by one request
_CREATED, _ACCEPTED, _NO_CONTENT, _MISSING = 201, 202, 204, 404
_JOBS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Pushed:
    """What a push did; sizes in bytes."""

    reference: str  # 'host/name@sha256:...'
    digest: str
    sent: int
    mounted: int
    present: int  # the registry had it already


@dataclass(frozen=True, slots=True)
class _Blob:
    digest: str
    size: int
    path: Path | None  # None: `data` is the blob, or only the registry has it
    data: bytes
    origin: str | None


class _StoppedError(Exception):
    """Another transfer failed, so this one ends."""


class _Push:
    """One push's counters and its way to stop."""

    def __init__(self, registry: Registry, reference: Reference, reporter: Reporter, total: int) -> None:
        self.registry, self.reference = registry, reference
        self._reporter, self._total = reporter, total
        self._lock, self._stop = threading.Lock(), threading.Event()
        self.sent = self.mounted = self.present = self._done = 0

    def stop(self) -> None:
        """Make every transfer end at its next piece."""
        self._stop.set()

    def blob(self, blob: _Blob, sources: tuple[str, ...]) -> None:
        """See that the registry holds a blob."""
        repository = self.reference.repository
        held = self.registry.blob_size(repository, blob.digest)
        if held not in (None, -1, blob.size):
            raise IntegrityError(
                f"{self.reference.place} holds {blob.digest} with {held} bytes, not {blob.size}",
                hint="the registry is damaged: ask its keepers",
            )
        if held is not None:
            self._count("present", blob.size)
            return
        upload = _Upload(blob)
        for source in sources:
            if self._mounted(upload, source):
                self._count("mounted", blob.size)
                return
        if blob.path is None and not blob.data:
            raise EngineError(
                f"{blob.digest} is only in {blob.origin}, and {self.reference.place} cannot take it over",
                hint="envkit build again, without --offline",
            )
        self.registry.persist(lambda: self._send(upload))
        self._count("sent", blob.size, progress=False)

    def _mounted(self, upload: _Upload, source: str) -> bool:
        """Whether the registry took the blob over from another repository; else it names a place for the upload."""
        start, repository = self.registry.start_upload, self.reference.repository
        try:
            upload.url = self.registry.persist(lambda: start(repository, upload.blob.digest, source))
        except EngineError:  # some refuse what this login may not read, instead of asking for the blob
            upload.url = None
            return False
        return upload.url is None

    def _send(self, upload: _Upload) -> None:
        """One try; a later one starts from the beginning, since registries forget an upload that broke."""
        try:
            self._send_whole(upload)
        except TransientError:
            self._forward(-upload.done)
            upload.url, upload.done = None, 0
            raise

    def _send_whole(self, upload: _Upload) -> None:
        repository, blob = self.reference.repository, upload.blob
        if upload.url is None:
            upload.url = self.registry.start_upload(repository)
        if upload.url is None:
            raise EngineError(f"{self.reference.place} names no place for a blob", hint="run it again")
        doing = f"pushing {blob.digest} to {self.reference.place}"
        scopes = (f"repository:{repository}:pull,push",)
        kind = {"Content-Type": "application/octet-stream"}
        data: bytes = b""
        if blob.size <= _WHOLE:
            data = blob.data if blob.path is None else blob.path.read_bytes()
            self._forward(len(data))
            upload.done = len(data)
        else:
            # Registries differ in what they make of ranges; a blob in one piece needs none.
            body = Body(self._pieces(upload), blob.size)
            with self.registry.request("PATCH", upload.url, scopes, headers=kind, body=body) as answer:
                if answer.status == _MISSING:
                    raise TransientError(EngineError(f"{doing}: the registry forgot the upload", hint="run it again"))
                self.registry.expect(answer, (_ACCEPTED, _CREATED, _NO_CONTENT), doing)
                upload.url = answer.next_url() or upload.url
        sign = "&" if "?" in upload.url else "?"
        with self.registry.request(
            "PUT", f"{upload.url}{sign}digest={blob.digest}", scopes, headers=kind, body=data
        ) as answer:
            if answer.status != _CREATED:
                said = answer.said()
                if "DIGEST_INVALID" in said:
                    raise IntegrityError(
                        f"{doing}: the registry received other bytes",
                        hint="run it again; if it repeats, check memory and disk",
                    )
                raise EngineError(f"{doing}: the registry answers {answer.status}: {said}", hint="run it again")

    def _pieces(self, upload: _Upload) -> Iterator[bytes]:
        assert upload.blob.path is not None
        with upload.blob.path.open("rb") as file:
            while piece := file.read(PIECE):
                if self._stop.is_set():
                    raise _StoppedError
                yield piece
                upload.done += len(piece)
                self._forward(len(piece))

    def _count(self, what: str, size: int, *, progress: bool = True) -> None:
        with self._lock:
            setattr(self, what, getattr(self, what) + size)
        if progress:
            self._forward(size)

    def _forward(self, size: int) -> None:
        with self._lock:
            self._done += size
            done = self._done
        self._reporter.advance(done, self._total)


class _Upload:
    """How far one blob is on its way."""

    def __init__(self, blob: _Blob) -> None:
        self.blob = blob
        self.url: str | None = None
        self.done = 0


def push(
    image: oci.Image,
    reference: Reference,
    registry: Registry,
    reporter: Reporter,
    *,
    replace_tag: bool = False,
    sources: tuple[str, ...] = (),
) -> Pushed:
    """Push an image and prove what the registry holds; its tag moves only then.

    Args:
        image: layers without a blob must be in the registry, or in the one repository of it that they name.
        reference: where to; without a tag, the image is reached by its digest alone.
        registry: the registry of the reference.
        reporter: hears the bytes.
        replace_tag: whether the tag may move away from another image.
        sources: repositories of the same registry that may hold blobs, 'team/train'.

    Raises:
        EngineError: the registry refuses, or the tag names another image.
        IntegrityError: the registry holds other bytes afterwards.
        SurroundingsError: it cannot be reached.
    """
    _check_tag(image, reference, registry, replace_tag=replace_tag)
    reporter.step(f"push {reference}")
    blobs = [_Blob(image.id, len(image.config), None, image.config, None)]
    for layer in {one.digest: one for one in image.layers}.values():
        path = blob_of(layer) if layer.blob is not None else None
        blobs.append(_Blob(layer.digest, layer.descriptor.size, path, b"", layer.origin))
    work = _Push(registry, reference, reporter, sum(blob.size for blob in blobs))
    _all(work, blobs, sources)
    registry.put_manifest(reference.at(image.digest), image.manifest, oci.MANIFEST)
    _prove(image, reference.at(image.digest), registry)
    if reference.tag:
        registry.put_manifest(reference, image.manifest, oci.MANIFEST)
        _prove(image, reference, registry)
    return Pushed(
        reference=f"{reference.place}@{image.digest}",
        digest=image.digest,
        sent=work.sent,
        mounted=work.mounted,
        present=work.present,
    )


def _all(work: _Push, blobs: list[_Blob], sources: tuple[str, ...]) -> None:
    """Send the blobs, the largest first, some at a time; the first failure ends all."""
    registry, repository = work.reference.registry, work.reference.repository

    def of(blob: _Blob) -> tuple[str, ...]:
        own = (blob.origin or "").removeprefix(f"{registry}/") if (blob.origin or "").startswith(f"{registry}/") else ""
        return tuple(dict.fromkeys(one for one in (own, *sources) if one and one != repository))

    with concurrent.futures.ThreadPoolExecutor(_JOBS, thread_name_prefix="envkit-push") as pool:
        ordered = sorted(blobs, key=lambda blob: (-blob.size, blob.digest))
        tasks = [pool.submit(work.blob, blob, of(blob)) for blob in ordered]
        try:
            for task in concurrent.futures.as_completed(tasks):
                task.result()
        except BaseException:
            work.stop()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _check_tag(image: oci.Image, reference: Reference, registry: Registry, *, replace_tag: bool) -> None:
    """Refuse to move a tag before anything is sent."""
    if replace_tag or not reference.tag:
        return
    held = registry.manifest(reference)
    if held is not None and held.digest != image.digest:
        raise EngineError(
            f"{reference} is another image already ({held.digest})",
            hint=f"--replace-tag moves the tag; the other image stays as {reference.place}@{held.digest}",
        )


def _prove(image: oci.Image, reference: Reference, registry: Registry) -> None:
    """Fetch the manifest back."""
    held = registry.manifest(reference)
    if held is None or held.data != image.manifest:
        raise IntegrityError(
            f"{reference} was pushed as {image.digest}, and the registry gives {held.digest if held else 'nothing'}",
            hint="run it again; if it repeats, the registry or a proxy before it is damaged",
        )
