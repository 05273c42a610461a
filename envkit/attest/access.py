"""Where attest, diff and inspect look for images: engine, certificates, cache and state folder."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from envkit.ground.paths import cache_dir
from envkit.ground.progress import Reporter, Silent
from envkit.image.opening import Opened, open_image
from envkit.registry.remote import Remote
from envkit.run.runners import located

if TYPE_CHECKING:
    from pathlib import Path

    from envkit.image.name import ImageName


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Settings for opening images."""

    runner: str = "auto"  # the engine of a plain image name: auto, docker or podman
    ca_bundle: str | None = None  # PEM file of authorities to trust
    state: Path | None = None  # folder with the locks and plans of this machine's builds; None: do not look there
    cache: Path | None = None  # folder for downloads from registries; None: this user's cache
    layers: bool = False  # download a registry image's layers if its packages are not known otherwise
    reporter: Reporter = field(default_factory=Silent)

    def open(self, name: ImageName) -> Opened | None:
        """Open the image of a name, as `envkit.image.opening.open_image` does."""
        remote = Remote(self.cache or cache_dir(), ca_bundle=self.ca_bundle)
        return open_image(located(name, self.runner), remote, self.reporter)
