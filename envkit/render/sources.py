"""Download sources of a build: the public ones or the mirrors in the settings, each validated."""

from __future__ import annotations

import re

from envkit.ground.addresses import mirror, refusal_of_image
from envkit.ground.errors import UsageError
from envkit.ground.settings import FLAT, Mirrors
from envkit.plan.model import BuildPlan
from envkit.resolve.model import Resolution

PYTORCH = "https://download.pytorch.org/whl"
# `registry.example.com:5000/team/base:1.2@sha256:...`, or the whole or short ID of a local image.
_REFERENCE = re.compile(
    r"(?:[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?(?::[0-9]+)?/)?[a-z0-9]+(?:[._/-]+[a-z0-9]+)*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@sha256:[0-9a-f]{64})?|sha256:[0-9a-f]{64}|[0-9a-f]{12,64}"
)
# What the lint asks of any FROM, of others' Dockerfiles as well.
PINNED = re.compile(r"\S+@sha256:[0-9a-f]{64}")
LOCAL_ID = re.compile(r"(?:sha256:)?[0-9a-f]{12,64}")
WITH_REGISTRY = re.compile(r"(?:localhost|[^/\s]+[.:][^/\s]*)/\S+")
DEFAULT_REGISTRY = "docker.io/"


def reference(value: str, what: str) -> str:
    """Return the value if it is an image reference that is valid in FROM.

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
    """Return a mirror's URL without its final slash. If the packages are `signed`, plain http is allowed.

    Raises:
        UsageError: the URL is not http or https, contains a login, a token or invalid characters, has an address that
            cannot serve packages, or is plain http to another machine without signed packages.
    """
    return mirror(value, what, plain=signed)


def image(value: str, mirrors: Mirrors) -> str:
    """Return a public image's reference, through the Docker Hub mirror if one is set."""
    if mirrors.registry and value.startswith(DEFAULT_REGISTRY):
        return reference(f"{mirrors.registry}/{value.removeprefix(DEFAULT_REGISTRY)}", "registry")
    return reference(value, "base image")


def wheel_index(resolution: Resolution, mirrors: Mirrors) -> str | None:
    """Return the index of torch's wheels; None = pip's default.

    With a mirror of flat pages (`wheel_pages`), this index has torch's dependencies, and the page has the torch family.
    """
    index = resolution.index
    if resolution.source == "pypi" or index is None or wheel_pages(resolution, mirrors) is not None:
        return python_index(mirrors)
    if mirrors.pytorch_index and index.startswith(PYTORCH):
        return url(mirrors.pytorch_index, "pytorch_index") + index.removeprefix(PYTORCH)
    return url(index, "index")


def wheel_pages(resolution: Resolution, mirrors: Mirrors) -> str | None:
    """Return the URL of the flat page that lists the torch family's wheels; None = they are in an index."""
    index, mirror_url = resolution.index, mirrors.pytorch_index or ""
    if resolution.source == "pypi" or index is None or not mirror_url.startswith(FLAT) or not index.startswith(PYTORCH):
        return None
    # The links of a page are relative to its folder, so the final slash matters.
    return f"{url(mirror_url.removeprefix(FLAT), 'pytorch_index')}{index.removeprefix(PYTORCH)}/"


def python_index(mirrors: Mirrors) -> str | None:
    """Return the index of all other wheels; None = pip's default."""
    return url(mirrors.python_index, "python_index") if mirrors.python_index else None


def pip_options(index: str | None, pages: str | None = None) -> list[str]:
    """Return the option lines of a requirements file for its sources."""
    lines = [f"--index-url {index}"] if index else []
    return [*lines, *([f"--find-links {pages}"] if pages else []), "--only-binary=:all:"]


def more_options(plan: BuildPlan) -> list[str]:
    """Return the option lines of a requirements file for the indexes and pages that the definition adds.

    pip searches all of them for every package; with a lock, the hashes decide.
    """
    indexes = dict.fromkeys((*plan.indexes, *(url for _, url in plan.package_indexes)))
    return [*(f"--extra-index-url {url}" for url in indexes), *(f"--find-links {url}" for url in plan.find_links)]


def installer_url(plan: BuildPlan, mirrors: Mirrors) -> str | None:
    """Return the URL of the Miniconda installer; None if the plan has none."""
    if plan.installer is None:
        return None
    if mirrors.miniconda:
        return f"{url(mirrors.miniconda, 'miniconda')}/{plan.installer.file}"
    return url(plan.installer.url, "installer")
