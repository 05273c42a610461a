"""Push an image: send the blobs that the registry lacks, then the manifest by digest, and read the manifest back.

A tag marks a verified image, so pushes set none; see `envkit.registry.tagging`.
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
from envkit.registry.registry import push_scopes
from envkit.registry.retry import TransientError
from envkit.registry.tagging import check_tag, verify_manifest
from envkit.registry.transport import PIECE, Body

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import TracebackType

    from envkit.ground.progress import Reporter
    from envkit.image.name import Reference
    from envkit.registry.registry import Registry

_JOBS = 4  # parallel uploads, while other layers are still compressed
_PATIENCE_S = 0.1  # the longest that a signal waits for the main thread, which handles it
_WHOLE = 1 << 20  # bytes; smaller blobs are sent in one request
_CREATED, _ACCEPTED, _NO_CONTENT, _UNAUTHORIZED, _MISSING = 201, 202, 204, 401, 404


Turn = Callable[[str, Callable[[], None]], AbstractContextManager[None]]
"""See `Pusher`."""


def _at_once(digest: str, check: Callable[[], None]) -> AbstractContextManager[None]:
    del digest, check
    return contextlib.nullcontext()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pushed:
    """The result of a push; sizes in bytes."""

    reference: str  # 'host/name@sha256:...'
    digest: str
    sent: int
    mounted: int
    present: int  # already in the registry


class Pusher:
    """Pushes one image; use it in a `with` statement.

    Layers can be offered from any thread while others are still being made, so both overlap. Progress is reported only
    in `finish`. The first failure ends all transfers, and the next call raises it.

    Args:
        reference: the destination; its tag is checked, not moved.
        registry: the registry of the reference.
        sources: repositories of the same registry that may have blobs, 'team/train'.
        replace_tag: whether the tag may point to another image, because it will be moved later.
        ahead: whether offered layers are sent at once; else `finish` sends all.
        fetch: returns the file of a layer that has no blob and that the registry neither has nor can mount; called in
            several threads.
        turn: a context manager that makes other pushes of the same blob to the same repository wait. It is given the
            digest and a function that it calls while it waits, whose exception ends the wait.
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
        self._queued: set[str] = set()
        self._left = 0  # blobs that are not in the registry yet
        self._change = threading.Condition()
        self._failed: BaseException | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._work.stop()
        # Each thread ends at the first None that it takes.
        for _ in self._threads:
            self._waiting.put(None)

    def offer(self, layer: spec.Layer) -> None:
        """Start to send a layer and return at once; layers that were offered before are ignored.

        Raises:
            EnvkitError: the error of an earlier transfer.
        """
        self.check()
        if self._ahead:
            self._queue_layer(layer)

    def check(self) -> None:
        """Raise the error of a transfer if one has failed."""
        if self._failed is not None:
            raise self._failed

    def finish(self, image: spec.Image, reporter: Reporter) -> Pushed:
        """Send the remaining blobs of an image, then its manifest by digest, and read the manifest back.

        Args:
            image: a layer without a blob has to be in the repository, in the repository of its `origin`, or has to be
                returned by `fetch`.
            reporter: gets the bytes.

        Raises:
            EngineError: the registry refuses, or the tag points to another image.
            IntegrityError: the registry has other bytes.
            EnvironmentProblem: it cannot be reached.
        """
        self.check()
        # Detect a tag of another image before anything is sent.
        check_tag(self.reference, image.digest, self.registry, replace_tag=self._replace_tag)
        layers = {layer.digest: layer for layer in image.layers}
        reporter.step(f"push {self.reference.place}")
        self._work.report_to(reporter, sum(entry.descriptor.size for entry in layers.values()) + len(image.config))
        # The largest first: started last, it would be sent by one connection while the others are idle.
        for layer in sorted(layers.values(), key=lambda entry: (-entry.descriptor.size, entry.digest)):
            self._queue_layer(layer)
        # A registry may refuse a manifest if one of its blobs is missing (distribution-spec,
        # MANIFEST_BLOB_UNKNOWN), so the configuration is sent like a layer, and the manifest last.
        self._queue(Blob(image.id, len(image.config), None, image.config, None))
        self._wait()
        # By digest, so pulls by tag do not get an image that is not verified yet.
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

    def _queue_layer(self, layer: spec.Layer) -> None:
        path, fetch = blob_of(layer) if layer.blob is not None else None, self._fetch
        fetch_layer = None if path is not None or fetch is None else functools.partial(fetch, layer)
        self._queue(Blob(layer.digest, layer.descriptor.size, path, b"", layer.origin, fetch_layer))

    def _queue(self, blob: Blob) -> None:
        with self._change:
            if blob.digest in self._queued:
                return
            self._queued.add(blob.digest)
            self._left += 1
            self._waiting.put(blob)
            if len(self._threads) < _JOBS:
                # A daemon thread, so that an interrupted run does not wait for a silent registry.
                thread = threading.Thread(target=self._run, name=f"envkit-push-{len(self._threads)}", daemon=True)
                self._threads.append(thread)
                thread.start()

    def _run(self) -> None:
        """Send waiting blobs one after another; runs in each thread."""
        while (blob := self._waiting.get()) is not None:
            failed: BaseException | None = None
            try:
                with self._turn(blob.digest, self._work.check):
                    self._work.blob(blob)
            # Another thread failed, and has recorded its error.
            except StoppedError:
                pass
            except BaseException as error:  # noqa: BLE001 - raised again by the caller of offer, check or finish
                failed = error
                self._work.stop()
            with self._change:
                self._failed = self._failed or failed  # later failures may be consequences of the first
                self._left -= 1
                self._change.notify_all()

    def _wait(self) -> None:
        with self._change:
            while self._left and self._failed is None:
                self._change.wait(_PATIENCE_S)
        self.check()


@dataclass(frozen=True, slots=True)
class Blob:
    """A blob to send."""

    digest: str
    size: int
    path: Path | None  # None: the blob is `data`, or is only in the registry, or `fetch` returns it
    data: bytes
    origin: str | None  # 'host/repository' with the blob
    fetch: Callable[[], Path] | None = None


class Transfers:
    """Sends blobs, counts bytes, and can be stopped. Safe for use from several threads."""

    def __init__(self, registry: Registry, reference: Reference, sources: tuple[str, ...]) -> None:
        self.registry, self.reference = registry, reference
        self._sources = sources
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._reporter: Reporter | None = None
        self.sent = self.mounted = self.present = self._done = self._total = 0

    def stop(self) -> None:
        """End every transfer at its next piece."""
        self._stop.set()

    def check(self) -> None:
        """Raise if the transfers were stopped.

        Raises:
            StoppedError: `stop` was called.
        """
        if self._stop.is_set():
            raise StoppedError

    def report_to(self, reporter: Reporter, total: int) -> None:
        """Report bytes from now on, out of this total."""
        with self._lock:
            self._reporter, self._total = reporter, total
        self._forward(0)

    def blob(self, blob: Blob) -> None:
        """Make sure that the registry has a blob: mount it or send it if necessary.

        Raises:
            EngineError: the registry refuses it.
            IntegrityError: the registry has or received other bytes.
            EnvironmentProblem: the registry cannot be reached.
            StoppedError: `stop` was called.
        """
        self.check()
        repository = self.reference.repository
        size = self.registry.blob_size(repository, blob.digest)
        if size not in (None, -1, blob.size):
            raise IntegrityError(
                f"{self.reference.place} has {blob.digest} with {size} bytes, not {blob.size}",
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
        # The progress was reported while the bytes were sent.
        self._count("sent", blob.size, progress=False)

    def _sources_of(self, blob: Blob) -> tuple[str, ...]:
        """Return the repositories of this registry that may have a blob, most likely first."""
        origin, prefix = blob.origin or "", f"{self.reference.registry}/"
        known = (origin.removeprefix(prefix),) if origin.startswith(prefix) else ()
        return tuple(dict.fromkeys(name for name in (*known, *self._sources) if name != self.reference.repository))

    def _mounted(self, upload: _Upload, source: str) -> bool:
        """Return whether the registry mounted the blob from another repository; if not, `upload.url` may be set."""
        start, repository = self.registry.start_upload, self.reference.repository
        try:
            # A registry that does not mount starts an ordinary upload. Its URL is used by `_send` instead of a second
            # request.
            upload.url = self.registry.persist(lambda: start(repository, upload.blob.digest, source))
        except EngineError:  # some registries refuse if the login cannot read the source, instead of starting an upload
            upload.url = None
            return False
        return upload.url is None

    def _send(self, upload: _Upload) -> None:
        """Send a blob, once. A retry starts from the beginning, because registries discard broken uploads."""
        try:
            self._send_whole(upload)
        except TransientError:
            # The next try counts these bytes again; without this, the progress would exceed 100 %.
            self._forward(-upload.done)
            upload.url, upload.done = None, 0
            raise

    def _send_whole(self, upload: _Upload) -> None:
        repository, blob = self.reference.repository, upload.blob
        if upload.url is None:
            upload.url = self.registry.start_upload(repository)
        if upload.url is None:
            raise EngineError(f"{self.reference.place} returned no upload URL", hint="run it again")
        doing = f"pushing {blob.digest} to {self.reference.place}"
        scopes = push_scopes(repository)
        kind = {"Content-Type": "application/octet-stream"}
        data: bytes = b""
        # One PUT with the contents (a monolithic upload) instead of PATCH and PUT.
        if blob.size <= _WHOLE:
            data = blob.data if blob.path is None else blob.path.read_bytes()
            self._forward(len(data))
            upload.done = len(data)
        else:
            # Registries handle ranges of uploads differently; a blob in one piece needs none.
            body = Body(self._pieces(upload), blob.size)
            with self.registry.request("PATCH", upload.url, scopes, headers=kind, body=body) as answer:
                # The upload was started before, so its URL is no longer valid.
                if answer.status == _MISSING:
                    raise TransientError(EngineError(f"{doing}: the upload session expired", hint="run it again"))
                if answer.status == _UNAUTHORIZED:  # an expired token; the next try requests a new one
                    hint = f"docker login {self.registry.name}"
                    raise TransientError(EngineError(f"{doing}: the registry's token expired", hint=hint))
                self.registry.expect(answer, (_ACCEPTED, _CREATED, _NO_CONTENT), doing)
                # Each response can have a new URL for the next request, which contains the state of the upload.
                upload.url = answer.next_url() or upload.url
        # The URL may already have a query (distribution-spec, "Pushing blobs").
        sign = "&" if "?" in upload.url else "?"
        with self.registry.request(
            "PUT", f"{upload.url}{sign}digest={blob.digest}", scopes, headers=kind, body=data
        ) as answer:
            if answer.status != _CREATED:
                message = answer.message()
                if answer.status == _MISSING:
                    raise TransientError(EngineError(f"{doing}: the upload session expired", hint="run it again"))
                if "DIGEST_INVALID" in message:
                    raise IntegrityError(
                        f"{doing}: the registry received other bytes",
                        hint="run it again; if it repeats, check memory and disk",
                    )
                raise EngineError(f"{doing}: the registry answers {answer.status}: {message}", hint="run it again")

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
        except OSError as error:  # without this, it would be reported as an error of the connection
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
    """The state of the upload of one blob."""

    def __init__(self, blob: Blob) -> None:
        self.blob = blob
        self.url: str | None = None
        self.done = 0
