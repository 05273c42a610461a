"""Push an image: the blobs that the registry lacks, the manifest by digest, then a check of what it holds.

Tags say that an image is good, so nothing here sets one: see `envkit.registry.tagging`.
"""

from __future__ import annotations

import contextlib
import functools
import queue
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from envkit.ground.errors import EngineError, EnvironmentProblem, IntegrityError
from envkit.ground.process import StoppedError
from envkit.image import spec
from envkit.image.layout import blob_of
from envkit.registry.retry import TransientError
from envkit.registry.tagging import check_tag, verify_manifest
from envkit.registry.transport import PIECE, Body

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import TracebackType

    from envkit.ground.progress import Reporter
    from envkit.image.reference import Reference
    from envkit.registry.registry import Registry

_JOBS = 4  # uploads at once, while other layers are still compressed
_PATIENCE_S = 0.1  # a signal reaches the waiting thread within that time
_WHOLE = 1 << 20  # bytes; smaller blobs are sent by one request
_CREATED, _ACCEPTED, _NO_CONTENT, _UNAUTHORIZED, _MISSING = 201, 202, 204, 401, 404


Turn = Callable[[str, Callable[[], None]], AbstractContextManager[None]]
"""See `Pusher`."""


def _at_once(digest: str, check: Callable[[], None]) -> AbstractContextManager[None]:
    del digest, check
    return contextlib.nullcontext()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pushed:
    """What a push did; sizes in bytes."""

    reference: str  # 'host/name@sha256:...'
    digest: str
    sent: int
    mounted: int
    present: int  # the registry had it already


class Pusher:
    """Pushes one image, from the first layer that is made; use it in a `with` statement.

    Layers may be offered from any thread while others are still being made, so sending and making overlap.
    Nothing is reported until `finish`. The first failure ends all transfers, and the next call raises it.

    Args:
        reference: where to; its tag is looked at and not moved.
        registry: the registry of the reference.
        sources: repositories of the same registry that may hold blobs, 'team/train'.
        replace_tag: whether the tag may be another image's, to be moved later.
        ahead: whether a layer that is offered may be sent before the image is known; else `finish` sends all.
        fetch: gives the file of a layer that has no blob and that the registry neither holds nor takes over; it is
            called from several threads.
        turn: a context in which no other push to the same place sends the blob of this digest; it calls what it is
            given while it waits for that, and lets through what that raises.
    """

    def __init__(
        self,
        reference: Reference,
        registry: Registry,
        *,
        sources: tuple[str, ...] = (),
        replace_tag: bool = False,
        ahead: bool = True,
        fetch: Callable[[spec.Layer], Path] | None = None,
        turn: Turn | None = None,
    ) -> None:
        self._turn: Turn = turn or _at_once
        self.reference, self.registry, self._fetch = reference, registry, fetch
        self._replace_tag, self._ahead = replace_tag, ahead
        self._work = Transfers(registry, reference, sources)
        self._waiting: queue.SimpleQueue[Blob | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._given: set[str] = set()
        self._left = 0  # blobs that are not there yet
        self._change = threading.Condition()
        self._failed: BaseException | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._work.stop()
        for _ in self._threads:
            self._waiting.put(None)

    def offer(self, layer: spec.Layer) -> None:
        """Begin to send a layer and return at once; a layer that was offered before is not sent again.

        Raises:
            EnvkitError: what an earlier layer's transfer failed with.
        """
        self.check()
        if self._ahead:
            self._give_layer(layer)

    def check(self) -> None:
        """Raise what a transfer failed with, if one has failed."""
        if self._failed is not None:
            raise self._failed

    def finish(self, image: spec.Image, reporter: Reporter) -> Pushed:
        """Send what is left of an image, then its manifest by digest, and verify what the registry holds.

        Args:
            image: layers without a blob must be in the registry, in the one repository of it that they name, or where
                `fetch` finds them.
            reporter: hears the bytes.

        Raises:
            EngineError: the registry refuses, or the tag names another image.
            IntegrityError: the registry holds other bytes.
            EnvironmentProblem: it cannot be reached.
        """
        self.check()
        # Before any byte is sent: a tag that is taken would otherwise be found only at the end.
        check_tag(self.reference, image.digest, self.registry, replace_tag=self._replace_tag)
        layers = {layer.digest: layer for layer in image.layers}
        reporter.step(f"push {self.reference.place}")
        self._work.speak(reporter, sum(entry.descriptor.size for entry in layers.values()) + len(image.config))
        # The largest first: begun last, it would be sent by one connection while the others have nothing left.
        for layer in sorted(layers.values(), key=lambda entry: (-entry.descriptor.size, entry.digest)):
            self._give_layer(layer)
        # A registry may refuse a manifest while a blob that it names is missing (distribution-spec,
        # MANIFEST_BLOB_UNKNOWN), so the configuration is sent like a layer, and the manifest after all of them.
        self._give(Blob(image.id, len(image.config), None, image.config, None))
        self._wait()
        # By digest: nobody who pulls by tag gets an image that is not verified yet.
        target = self.reference.at(image.digest)
        self.registry.put_manifest(target, image.manifest, image.media_type)
        verify_manifest(target, image.manifest, self.registry)
        return Pushed(
            reference=f"{self.reference.place}@{image.digest}",
            digest=image.digest,
            sent=self._work.sent,
            mounted=self._work.mounted,
            present=self._work.present,
        )

    def _give_layer(self, layer: spec.Layer) -> None:
        path, fetch = blob_of(layer) if layer.blob is not None else None, self._fetch
        elsewhere = None if path is not None or fetch is None else functools.partial(fetch, layer)
        self._give(Blob(layer.digest, layer.descriptor.size, path, b"", layer.origin, elsewhere))

    def _give(self, blob: Blob) -> None:
        with self._change:
            if blob.digest in self._given:
                return
            self._given.add(blob.digest)
            self._left += 1
            self._waiting.put(blob)
            if len(self._threads) < _JOBS:
                # As a daemon: one that waits for a silent registry must not keep a run that was interrupted.
                thread = threading.Thread(target=self._run, name=f"envkit-push-{len(self._threads)}", daemon=True)
                self._threads.append(thread)
                thread.start()

    def _run(self) -> None:
        """Send what waits, one after another: the work of a thread."""
        while (blob := self._waiting.get()) is not None:
            failed: BaseException | None = None
            try:
                with self._turn(blob.digest, self._work.check):
                    self._work.blob(blob)
            # The failure that stopped it is kept by the thread that had it.
            except StoppedError:
                pass
            except BaseException as error:  # noqa: BLE001 - raised again by the caller of offer, check or finish
                failed = error
                self._work.stop()
            with self._change:
                self._failed = self._failed or failed  # a later failure may only follow from the first
                self._left -= 1
                self._change.notify_all()

    def _wait(self) -> None:
        with self._change:
            while self._left and self._failed is None:
                self._change.wait(_PATIENCE_S)
        self.check()


@dataclass(frozen=True, slots=True)
class Blob:
    """One blob to send."""

    digest: str
    size: int
    path: Path | None  # None: `data` is the blob, or only the registry has it, or `fetch` gets it
    data: bytes
    origin: str | None  # 'host/repository' that holds it
    fetch: Callable[[], Path] | None = None


class Transfers:
    """The counters of one push and its way to stop; quiet until `speak`. May be used from several threads."""

    def __init__(self, registry: Registry, reference: Reference, sources: tuple[str, ...]) -> None:
        self.registry, self.reference = registry, reference
        self._sources = sources
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._reporter: Reporter | None = None
        self.sent = self.mounted = self.present = self._done = self._total = 0

    def stop(self) -> None:
        """Make every transfer end at its next piece."""
        self._stop.set()

    def check(self) -> None:
        """End a thread's work that is no longer needed.

        Raises:
            StoppedError: `stop` was called.
        """
        if self._stop.is_set():
            raise StoppedError

    def speak(self, reporter: Reporter, total: int) -> None:
        """Report bytes from here on, out of this total."""
        with self._lock:
            self._reporter, self._total = reporter, total
        self._forward(0)

    def blob(self, blob: Blob) -> None:
        """Make sure that the registry holds a blob.

        Raises:
            EngineError: the registry refuses it.
            IntegrityError: the registry has, or received, other bytes.
            EnvironmentProblem: the registry cannot be reached.
            StoppedError: `stop` was called.
        """
        self.check()
        repository = self.reference.repository
        size = self.registry.blob_size(repository, blob.digest)
        if size not in (None, -1, blob.size):
            raise IntegrityError(
                f"{self.reference.place} holds {blob.digest} with {size} bytes, not {blob.size}",
                hint="the registry is damaged; ask its administrators",
            )
        if size is not None:
            self._count("present", blob.size)
            return
        upload = _Upload(blob)
        for source in self._sources_of(blob):
            if self._mounted(upload, source):
                self._count("mounted", blob.size)
                return
        if blob.fetch is not None:
            upload.blob = replace(blob, path=blob.fetch())
        elif blob.path is None and not blob.data:
            raise EngineError(
                f"{blob.digest} is only in {blob.origin}, and {self.reference.place} cannot mount it",
                hint="envkit build again, without --offline",
            )
        self.registry.persist(lambda: self._send(upload))
        self._count("sent", blob.size, progress=False)

    def _sources_of(self, blob: Blob) -> tuple[str, ...]:
        """Repositories of this registry that may hold a blob, the likeliest first."""
        origin, prefix = blob.origin or "", f"{self.reference.registry}/"
        own = (origin.removeprefix(prefix),) if origin.startswith(prefix) else ()
        return tuple(dict.fromkeys(name for name in (*own, *self._sources) if name != self.reference.repository))

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
        """Try once; a later try starts from the beginning, because registries drop a broken upload."""
        try:
            self._send_whole(upload)
        except TransientError:
            # The next try counts these bytes once more; without this, the progress would pass 100 %.
            self._forward(-upload.done)
            upload.url, upload.done = None, 0
            raise

    def _send_whole(self, upload: _Upload) -> None:
        repository, blob = self.reference.repository, upload.blob
        if upload.url is None:
            upload.url = self.registry.start_upload(repository)
        if upload.url is None:
            raise EngineError(f"{self.reference.place} did not name an upload URL", hint="run it again")
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
                    raise TransientError(EngineError(f"{doing}: the upload session expired", hint="run it again"))
                if answer.status == _UNAUTHORIZED:  # a token that ended meanwhile; the next try asks for another one
                    hint = f"docker login {self.registry.name}"
                    raise TransientError(EngineError(f"{doing}: the registry's token expired", hint=hint))
                self.registry.expect(answer, (_ACCEPTED, _CREATED, _NO_CONTENT), doing)
                # Each answer may name another address for the next request, with the state of the upload in it.
                upload.url = answer.next_url() or upload.url
        # That address may have a query already (distribution-spec, "Pushing blobs").
        sign = "&" if "?" in upload.url else "?"
        with self.registry.request(
            "PUT", f"{upload.url}{sign}digest={blob.digest}", scopes, headers=kind, body=data
        ) as answer:
            if answer.status != _CREATED:
                said = answer.said()
                if answer.status == _MISSING:
                    raise TransientError(EngineError(f"{doing}: the upload session expired", hint="run it again"))
                if "DIGEST_INVALID" in said:
                    raise IntegrityError(
                        f"{doing}: the registry received other bytes",
                        hint="run it again; if it repeats, check memory and disk",
                    )
                raise EngineError(f"{doing}: the registry answers {answer.status}: {said}", hint="run it again")

    def _pieces(self, upload: _Upload) -> Iterator[bytes]:
        path = upload.blob.path
        assert path is not None
        try:
            with path.open("rb") as file:
                while piece := file.read(PIECE):
                    if self._stop.is_set():
                        raise StoppedError
                    yield piece
                    upload.done += len(piece)
                    self._forward(len(piece))
        except OSError as error:  # else it would pass for one of the connection
            raise EnvironmentProblem(
                f"{path} cannot be read: {error.strerror or error}", hint="check the disk, and run it again"
            ) from error
        if upload.done != upload.blob.size:
            raise IntegrityError(f"{path} was truncated while it was sent", hint="run it again")

    def _count(self, what: str, size: int, *, progress: bool = True) -> None:
        with self._lock:
            setattr(self, what, getattr(self, what) + size)
        if progress:
            self._forward(size)

    def _forward(self, size: int) -> None:
        with self._lock:
            self._done += size
            done, reporter = self._done, self._reporter
        if reporter is not None:
            reporter.advance(done, self._total)


class _Upload:
    """How far one blob is on its way."""

    def __init__(self, blob: Blob) -> None:
        self.blob = blob
        self.url: str | None = None
        self.done = 0
