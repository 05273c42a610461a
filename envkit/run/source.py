"""The source of a push: an image in an engine, in a file, or in a registry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from envkit.ground import platforms
from envkit.ground.cache import PACKED
from envkit.ground.errors import IntegrityError, UsageError
from envkit.ground.naming import LABEL_PREFIX
from envkit.ground.paths import cache_dir
from envkit.image import archive, spec
from envkit.image.layout import read_layout
from envkit.image.name import InArchive, InEngine, InLayout, InRegistry, OnHost
from envkit.registry.documents import Documents
from envkit.registry.download import fetch, from_registry
from envkit.registry.registry import Registry
from envkit.registry.remote import read_remote
from envkit.run.model import Storage
from envkit.run.packing import Packer
from envkit.run.runners import choose, located

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from envkit.ground.progress import Reporter
    from envkit.image.name import ImageName, Reference
    from envkit.registry.transport import Transport

_IDENTIFYING = tuple(f"{LABEL_PREFIX}.{name}" for name in ("version", "plan", "lock"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """An image that exists but has not been read yet."""

    name: str  # as requested
    ids: tuple[str, ...]  # 'sha256:...' under which it may be recorded, the usual one first
    labels: Mapping[str, str]  # envkit's version, plan and lock: they differ if another image got the same name
    read: Callable[[Callable[[spec.Layer], None]], spec.Image]  # calls its argument with each layer once it is ready
    fetch: Callable[[spec.Layer], Path] | None = None  # returns the file of a layer that `read` returned without one


def find_source(
    name: ImageName, folder: Path, transport: Transport, reporter: Reporter, *, engine: str | None = None
) -> Source:
    """Find an image to push.

    Args:
        name: the image.
        folder: a folder for temporary files, which the caller removes.
        transport: connections to registries.
        reporter: receives the steps.
        engine: 'docker', 'buildkit' or 'podman', which has the image; None = the first engine that answers.

    Raises:
        EngineError: the image does not exist.
        IntegrityError: its documents do not match their digests.
        EnvironmentProblem: no engine or registry answers.
        UsageError: the folder or file has several images and the name selects none.
    """
    match name if engine is not None else located(name):
        case InRegistry(reference=reference):
            return _of_registry(name.typed, folder, reference, transport)
        case InLayout() as layout:
            return _of_values(name.typed, read_layout(layout))
        case InArchive() as file:
            image = archive.read_archive(file)
            return _of_tars(name.typed, (image.id,), image.settings.get("Labels"), _Tars(folder, reporter, image))
        case InEngine() | OnHost():
            return _of_engine(name, folder, reporter, engine)


def _of_engine(name: ImageName, folder: Path, reporter: Reporter, engine: str | None) -> Source:
    chosen = choose("auto", reporter, image=name, engine=engine)
    if not isinstance(chosen, Storage):
        raise UsageError(
            f"{name.typed!r:.200} is a name in an engine, and the {engine} engine stores no images by name",
            hint="--image oci:DIR, docker-archive:FILE or registry:HOST/NAME:TAG",
        )
    facts = chosen.inspect(name)
    ident = str(facts["id"])
    return _of_tars(name.typed, (ident,), facts.get("labels"), _Saved(folder, reporter, chosen, ident))


class _Tars:
    """An image whose layers are tars, which are compressed for the registry."""

    def __init__(self, folder: Path, reporter: Reporter, image: spec.Image | None) -> None:
        self.folder, self.reporter, self.image = folder, reporter, image
        self._packer: Packer | None = None

    def read(self, on_layer: Callable[[spec.Layer], None]) -> spec.Image:
        """Compress the layers."""
        assert self.image is not None
        self._packer = Packer(self.image, self.folder, PACKED.at(cache_dir()))
        return self._packer.image(self.reporter, on_layer)

    def fetch(self, layer: spec.Layer) -> Path:
        """Return the blob of a layer whose digest is known from an earlier push."""
        assert self._packer is not None
        return self._packer.blob(layer)


class _Saved(_Tars):
    """An engine's image, which is saved to a file first."""

    def __init__(self, folder: Path, reporter: Reporter, engine: Storage, ident: str) -> None:
        super().__init__(folder, reporter, None)
        self._engine, self._ident = engine, ident

    def read(self, on_layer: Callable[[spec.Layer], None]) -> spec.Image:
        """Save the image from the engine and compress its layers."""
        path = self.folder / "saved.tar"
        self.reporter.step(f"save {self._ident[:19]} from {self._engine.name}")
        self._engine.save(InEngine(name=self._ident), path)
        self.image = archive.read_archive(InArchive(path=path))
        # With containerd's image store, Docker's image ID is the digest of the manifest, which the archive contains.
        if self.image.id != self._ident and not archive.holds(path, self._ident):
            raise IntegrityError(
                f"{self._engine.name} saved {self.image.id} instead of the image {self._ident}",
                hint="run it again; if it repeats, build the image again",
            )
        return super().read(on_layer)


def _of_tars(name: str, ids: tuple[str, ...], labels: Any, tars: _Tars) -> Source:
    return Source(name=name, ids=ids, labels=_labels(labels), read=tars.read, fetch=tars.fetch)


def _of_values(name: str, image: spec.Image, fetch: Callable[[spec.Layer], Path] | None = None) -> Source:
    def read(on_layer: Callable[[spec.Layer], None]) -> spec.Image:
        for layer in image.layers:
            on_layer(layer)
        return image

    return Source(
        name=name, ids=(image.id, image.digest), labels=_labels(image.settings.get("Labels")), read=read, fetch=fetch
    )


def _of_registry(name: str, folder: Path, reference: Reference, transport: Transport) -> Source:
    """Return an image in a registry. A layer is downloaded only if the target registry cannot take it from there."""
    registry = Registry.of(reference, transport)

    def download(layer: spec.Layer) -> Path:
        item = from_registry(registry, reference.repository, digest=layer.digest, size=layer.descriptor.size)
        return fetch([item], folder, transport.policy, lambda _done, _total: None)[item.sha256]

    return _of_values(name, read_remote(reference, Documents(registry, None), platform=platforms.here()), download)


def _labels(labels: Any) -> dict[str, str]:
    rows = labels if isinstance(labels, dict) else {}
    return {name: str(rows[name]) for name in _IDENTIFYING if name in rows}
