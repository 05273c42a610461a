"""Blobs into a repository: only those that it lacks, each whole, and from the beginning after a break."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from envkit.ground.errors import EngineError, EnvironmentProblem, IntegrityError
from envkit.ground.process import StoppedError
from envkit.registry.retry import TransientError
from envkit.registry.transport import PIECE, Body

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from envkit.ground.progress import Reporter
    from envkit.image.reference import Reference
    from envkit.registry.registry import Registry

_WHOLE = 1 << 20  # bytes; smaller blobs are sent by one request
_CREATED, _ACCEPTED, _NO_CONTENT, _UNAUTHORIZED, _MISSING = 201, 202, 204, 401, 404


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
        """End a thread's work where it is in vain.

        Raises:
            StoppedError: `stop` was called.
        """
        if self._stop.is_set():
            raise StoppedError

    def speak(self, reporter: Reporter, total: int) -> None:
        """Tell a reporter of the bytes from here on, of so many in all."""
        with self._lock:
            self._reporter, self._total = reporter, total
        self._forward(0)

    def blob(self, blob: Blob) -> None:
        """See that the registry holds a blob.

        Raises:
            EngineError: the registry refuses it.
            IntegrityError: the registry has, or received, other bytes.
            EnvironmentProblem: the registry cannot be reached.
            StoppedError: `stop` was called.
        """
        self.check()
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
        for source in self._sources_of(blob):
            if self._mounted(upload, source):
                self._count("mounted", blob.size)
                return
        if blob.fetch is not None:
            upload.blob = replace(blob, path=blob.fetch())
        elif blob.path is None and not blob.data:
            raise EngineError(
                f"{blob.digest} is only in {blob.origin}, and {self.reference.place} cannot take it over",
                hint="envkit build again, without --offline",
            )
        self.registry.persist(lambda: self._send(upload))
        self._count("sent", blob.size, progress=False)

    def _sources_of(self, blob: Blob) -> tuple[str, ...]:
        """Repositories of this registry that may hold a blob, the likeliest first."""
        origin, prefix = blob.origin or "", f"{self.reference.registry}/"
        own = (origin.removeprefix(prefix),) if origin.startswith(prefix) else ()
        return tuple(dict.fromkeys(one for one in (*own, *self._sources) if one != self.reference.repository))

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
                if answer.status == _UNAUTHORIZED:  # a token that ended meanwhile; the next try asks for another one
                    hint = f"docker login {self.registry.name}"
                    raise TransientError(EngineError(f"{doing}: the registry's token is over", hint=hint))
                self.registry.expect(answer, (_ACCEPTED, _CREATED, _NO_CONTENT), doing)
                upload.url = answer.next_url() or upload.url
        sign = "&" if "?" in upload.url else "?"
        with self.registry.request(
            "PUT", f"{upload.url}{sign}digest={blob.digest}", scopes, headers=kind, body=data
        ) as answer:
            if answer.status != _CREATED:
                said = answer.said()
                if answer.status == _MISSING:
                    raise TransientError(EngineError(f"{doing}: the registry forgot the upload", hint="run it again"))
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
            raise IntegrityError(f"{path} became shorter while it was sent", hint="run it again")

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
