"""How attest, diff and inspect reach images: through this user's cache, and with whose certificates."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from envkit.ground.paths import cache_dir
from envkit.ground.progress import Reporter, Silent
from envkit.image.opening import Opened, is_registry, open_image
from envkit.registry.remote import Remote
from envkit.run.runners import stored

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How images are reached."""

    runner: str = "auto"  # whose images a plain name means: auto, docker or podman
    ca_bundle: str | None = None  # PEM file of authorities to trust
    state: Path | None = None  # where builds of this machine keep their locks and plans; None: nowhere
    cache: Path | None = None  # where what comes from registries is kept; None: this user's cache
    layers: bool = False  # fetch a registry's layers where nothing else tells the packages
    reporter: Reporter = field(default_factory=Silent)

    def open(self, text: str) -> Opened | None:
        """Open the image of a name. As `envkit.image.opening.open_image`."""
        if not is_registry(text):
            text = stored(text, self.runner)
        return open_image(text, Remote(self.cache or cache_dir(), ca_bundle=self.ca_bundle), self.reporter)
