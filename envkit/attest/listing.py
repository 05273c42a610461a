"""List the layers of an image and the packages in them, read from its files without running it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from envkit.attest.packages import with_lock
from envkit.ground.paths import scratch
from envkit.ground.records import Row
from envkit.image.name import InArchive
from envkit.image.opening import open_file
from envkit.image.packages import look
from envkit.run.model import Storage
from envkit.run.runners import choose

if TYPE_CHECKING:
    from envkit.attest.access import Access
    from envkit.attest.content import Content
    from envkit.image.name import ImageName
    from envkit.image.opening import Opened
    from envkit.image.packages import Installed


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedLayer(Row):
    """A layer of an image."""

    number: int  # 1 is the lowest
    diff_id: str  # digest of its tar
    digest: str | None  # digest of its blob; None if it is stored as a tar
    size: int  # bytes of the blob, or of the tar
    unpacked: int | None  # bytes of the tar; None: it was not read
    made_by: str  # the command in the image's history; empty: unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The layers of an image and the packages in them."""

    layers: tuple[ListedLayer, ...]  # lowest first
    packages: tuple[Installed, ...] | None = None  # sorted by kind, name and version; None: the layers were not read
    unlisted_rpm: bool = False  # there are RPM packages, but their database cannot be read

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-ready mapping."""
        names = ("kind", "name", "version", "build", "arch", "channel", "url", "sha256", "locked", "unpacked")
        packages = self.packages
        return {
            "layers": [layer.to_json() for layer in self.layers],
            "packages": None
            if packages is None
            else [
                {name: getattr(package, name) for name in names} | {"license": package.license} for package in packages
            ],
            "unlisted_rpm": self.unlisted_rpm,
        }


def read_listing(name: ImageName, access: Access, content: Content, *, packages: bool) -> Listing:
    """List the layers of an image and, with `packages`, everything installed in them.

    An image in an engine is saved to a temporary file. The layers of a registry image are downloaded only for packages.

    Args:
        name: the image, as for `envkit.attest.reading.read_content`.
        access: settings for opening images.
        content: the contents of the image; its lock adds hashes and URLs to packages.
        packages: read the layers and list the packages.

    Raises:
        EngineError: the image does not exist, or an engine or registry refuses.
        IntegrityError: the image does not match its digests.
        EnvironmentProblem: no engine or registry answers, or the disk is full.
        UsageError: the name matches no image, or several.
    """
    with _opened(name, access) as opened:
        installed = look(opened, access.reporter) if packages else None
        layers = tuple(
            ListedLayer(
                number=index + 1,
                diff_id=layer.diff_id,
                digest=layer.digest or None,
                size=layer.descriptor.size,
                unpacked=opened.tar_sizes.get(index),
                made_by=layer.made_by,
            )
            for index, layer in enumerate(opened.layers)
        )
    if installed is None:
        return Listing(layers=layers)
    rows = installed.packages if content.lock is None else with_lock(installed.packages, content.lock)[0]
    return Listing(layers=layers, packages=rows, unlisted_rpm=installed.rpm)


@contextmanager
def _opened(name: ImageName, access: Access) -> Iterator[Opened]:
    opened = access.open(name)
    if opened is not None:
        yield opened
        return
    engine = choose(access.runner, access.reporter, image=name)
    assert isinstance(engine, Storage)  # Docker and Podman both are
    with scratch() as folder:
        access.reporter.step(f"save {name.typed} from {engine.name}")
        engine.save(name, folder / "image.tar")
        yield open_file(InArchive(path=folder / "image.tar"), access.reporter)
