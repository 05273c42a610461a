"""The archives of conda packages: by the lock's address through the mirrors, verified against the lock."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from envkit.registry.download import fetch, from_url

if TYPE_CHECKING:
    from envkit.ground.progress import Reporter
    from envkit.lock.model import CondaPackage
    from envkit.lock.places import Places
    from envkit.registry.download import Item
    from envkit.registry.transport import Transport

_TOKEN = re.compile(r"/t/[^/]+/")


def item(package: CondaPackage, places: Places, transport: Transport) -> Item:
    """The download of one package; a mirror's token stays out of messages."""
    found = from_url(
        transport,
        name=f"{package.name} {package.version}",
        url=places.fetch_url(package.url),
        sha256=package.sha256,
        size=package.size,
    )
    return replace(found, where=_TOKEN.sub("/t/***/", found.where))


def archives(
    packages: Sequence[CondaPackage],
    *,
    places: Places,
    transport: Transport,
    folder: Path,
    reporter: Reporter,
    offline: bool = False,
    check: Callable[[], None] | None = None,
) -> Mapping[str, Path]:
    """See that the packages' archives are in the folder; gives them by SHA-256. What `check` raises ends the work.

    Raises:
        As `envkit.registry.download.fetch`.
    """
    items = [item(package, places, transport) for package in packages]
    return fetch(items, folder, transport.policy, reporter.advance, offline=offline, check=check)
