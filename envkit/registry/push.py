"""An image into a registry: only the blobs that it lacks, the manifest by digest, then the proof. Tags come later.

A tag tells everyone that an image is good, so nothing here moves one: see `envkit.registry.tagging`.
"""

from __future__ import annotations

import contextlib
import functools
import queue
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from envkit.ground.process import StoppedError
from envkit.image import spec
from envkit.image.layout import blob_of
from envkit.registry.tagging import check_tag, prove
from envkit.registry.upload import Blob, Transfers

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from envkit.ground.progress import Reporter
    from envkit.image.reference import Reference
    from envkit.registry.registry import Registry

_JOBS = 4
_PATIENCE_S = 0.1  # so soon a signal reaches the waiting thread


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
    """An image on its way into a repository, from the first layer that is made; use it in a `with` statement.

    Layers may be offered from any thread while others are still being made, so that sending and making overlap.
    Nothing is told of that until `finish`. The first failure ends all transfers, and the next call raises it.

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
        """Send what is left of an image, then its manifest by digest, and prove what the registry holds.

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
        check_tag(self.reference, image.digest, self.registry, replace_tag=self._replace_tag)
        layers = {layer.digest: layer for layer in image.layers}
        reporter.step(f"push {self.reference.place}")
        self._work.speak(reporter, sum(one.descriptor.size for one in layers.values()) + len(image.config))
        for layer in sorted(layers.values(), key=lambda one: (-one.descriptor.size, one.digest)):
            self._give_layer(layer)
        self._give(Blob(image.id, len(image.config), None, image.config, None))
        self._wait()
        target = self.reference.at(image.digest)
        self.registry.put_manifest(target, image.manifest, image.media_type)
        prove(target, image.manifest, self.registry)
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
            except StoppedError:
                pass
            except BaseException as error:  # noqa: BLE001 - raised again by whoever offers, checks or waits
                failed = error
                self._work.stop()
            with self._change:
                self._failed = self._failed or failed
                self._left -= 1
                self._change.notify_all()

    def _wait(self) -> None:
        with self._change:
            while self._left and self._failed is None:
                self._change.wait(_PATIENCE_S)
        self.check()
