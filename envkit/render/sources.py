"""Download sources of a build: the public ones, or the mirrors of the settings, each checked before it is written."""

from __future__ import annotations

import re

from envkit.ground.addresses import mirror, refusal_of_image
from envkit.ground.errors import UsageError
from envkit.ground.settings import FLAT, Mirrors
from envkit.plan.model import BuildPlan
from envkit.resolve.model import Resolution

PYTORCH = "https://download.pytorch.org/whl"
_REFERENCE = re.compile(
    r"(?:[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?(?::[0-9]+)?/)?[a-z0-9]+(?:[._/-]+[a-z0-9]+)*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@sha256:[0-9a-f]{64})?|sha256:[0-9a-f]{64}|[0-9a-f]{12,64}"
)
DEFAULT_REGISTRY = "docker.io/"


def reference(value: str, what: str) -> str:
    """An image reference that can stand in FROM.

    Raises:
        UsageError: the value is not an image reference.
    """
    if not _REFERENCE.fullmatch(value):
        raise UsageError(f"{what}: {value!r:.200} is not an image reference", hint="registry.example.com/name:tag")
    why = refusal_of_image(value)
    if why is not None:
        raise UsageError(f"{what}: {why}", hint="registry.example.com/name:tag")
    return value


def url(value: str, what: str, *, signed: bool = False) -> str:
    """A mirror's URL without its final slash. Where a distribution has `signed` what it serves, http will do.

    Raises:
        UsageError: not http or https, a login or a token in it, characters a URL has not, an address that no package
            comes from, or plain http beyond this machine.
    """
    return mirror(value, what, plain=signed)


def image(value: str, mirrors: Mirrors) -> str:
    """A public image's reference, at the mirror that serves Docker Hub's images if there is one."""
    if mirrors.registry and value.startswith(DEFAULT_REGISTRY):
        return reference(f"{mirrors.registry}/{value.removeprefix(DEFAULT_REGISTRY)}", "registry")
    return reference(value, "base image")


def wheel_index(resolution: Resolution, mirrors: Mirrors) -> str | None:
    """The one index torch's wheels come from; None = the one pip uses by itself.

    With a mirror of flat pages (`wheel_pages`) it has what torch depends on, and the torch family itself is there.
    """
    index = resolution.index
    if resolution.source == "pypi" or index is None or wheel_pages(resolution, mirrors) is not None:
        return python_index(mirrors)
    if mirrors.pytorch_index and index.startswith(PYTORCH):
        return url(mirrors.pytorch_index, "pytorch_index") + index.removeprefix(PYTORCH)
    return url(index, "index")


def wheel_pages(resolution: Resolution, mirrors: Mirrors) -> str | None:
    """The flat page that lists the torch family's wheels; None = they are in an index."""
    index, mirror_url = resolution.index, mirrors.pytorch_index or ""
    if resolution.source == "pypi" or index is None or not mirror_url.startswith(FLAT) or not index.startswith(PYTORCH):
        return None
    # The links of a page are relative to its folder, so the final slash matters.
    return f"{url(mirror_url.removeprefix(FLAT), 'pytorch_index')}{index.removeprefix(PYTORCH)}/"


def python_index(mirrors: Mirrors) -> str | None:
    """The index of all other wheels; None = the one pip uses by itself."""
    return url(mirrors.python_index, "python_index") if mirrors.python_index else None


def pip_options(index: str | None, pages: str | None = None) -> list[str]:
    """The lines of a requirements file that say where its wheels come from."""
    lines = [f"--index-url {index}"] if index else []
    return [*lines, *([f"--find-links {pages}"] if pages else []), "--only-binary=:all:"]


def installer_url(plan: BuildPlan, mirrors: Mirrors) -> str | None:
    """Where the Miniconda installer lies."""
    if plan.installer is None:
        return None
    if mirrors.miniconda:
        return f"{url(mirrors.miniconda, 'miniconda')}/{plan.installer.file}"
    return url(plan.installer.url, "installer")
