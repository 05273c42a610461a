"""An image into a registry: only the blobs that it lacks, the manifest by digest, then the proof. Tags come later.

A tag tells everyone that an image is good, so nothing here moves one: see `envkit.oci.tagging`.
"""

from __future__ import annotations

import concurrent.futures
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from envkit.engine.process import StoppedError
from envkit.oci import spec
from envkit.oci.layout import blob_of
from envkit.oci.tagging import check_tag, prove
from envkit.oci.upload import Blob, Transfers

if TYPE_CHECKING:
    from types import TracebackType

    from envkit.oci.reference import Reference
    from envkit.oci.registry import Registry
    from envkit.progress import Reporter

_JOBS = 4
_PATIENCE_S = 0.1  # so soon a signal reaches the waiting thread


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
    """

    def __init__(
        self,
        reference: Reference,
        registry: Registry,
        *,
        sources: tuple[str, ...] = (),
        replace_tag: bool = False,
        ahead: bool = True,
    ) -> None:
        self.reference, self.registry = reference, registry
        self._replace_tag, self._ahead = replace_tag, ahead
        self._work = Transfers(registry, reference, sources)
        self._pool = concurrent.futures.ThreadPoolExecutor(_JOBS, thread_name_prefix="envkit-push")
        self._tasks: dict[str, concurrent.futures.Future[None]] = {}
        self._lock = threading.Lock()
        self._failed: BaseException | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._work.stop()
        self._pool.shutdown(wait=False, cancel_futures=True)

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
            image: layers without a blob must be in the registry, or in the one repository of it that they name.
            reporter: hears the bytes.

        Raises:
            EngineError: the registry refuses, or the tag names another image.
            IntegrityError: the registry holds other bytes.
            SurroundingsError: it cannot be reached.
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
        self.registry.put_manifest(target, image.manifest, spec.MANIFEST)
        prove(target, image.manifest, self.registry)
        return Pushed(
            reference=f"{self.reference.place}@{image.digest}",
            digest=image.digest,
            sent=self._work.sent,
            mounted=self._work.mounted,
            present=self._work.present,
        )

    def _give_layer(self, layer: spec.Layer) -> None:
        path = blob_of(layer) if layer.blob is not None else None
        self._give(Blob(layer.digest, layer.descriptor.size, path, b"", layer.origin))

    def _give(self, blob: Blob) -> None:
        with self._lock:
            if blob.digest not in self._tasks:
                self._tasks[blob.digest] = self._pool.submit(self._one, blob)

    def _one(self, blob: Blob) -> None:
        try:
            self._work.blob(blob)
        except StoppedError:
            raise
        except BaseException as error:
            with self._lock:
                self._failed = self._failed or error
            self._work.stop()
            raise

    def _wait(self) -> None:
        left = set(self._tasks.values())
        while left:
            left = concurrent.futures.wait(left, timeout=_PATIENCE_S).not_done
            self.check()
