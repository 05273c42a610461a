"""Write a lock as files for conda and pip: a SHA-256 for every artifact, one index per file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envkit.ground.addresses import has_token
from envkit.ground.errors import UsageError
from envkit.ground.naming import LABEL_PREFIX
from envkit.ground.settings import NO_BUNDLE
from envkit.lock.built import CONTEXT
from envkit.lock.exports import conda_explicit
from envkit.lock.index_locations import IndexLocations
from envkit.lock.model import BUILT, CONDA_PUBLIC, PAGE
from envkit.lock.store import digest_of
from envkit.render import sources

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from envkit.ground.settings import Mirrors
    from envkit.lock.model import Lock, Wheel
    from envkit.plan.model import BuildPlan

EXPLICIT = "explicit.txt"
TORCH = "torch.txt"
REQUIREMENTS = "requirements.txt"
BUILT_LIST = "built.txt"
# File -> the sources of its wheels.
_FILES = ((TORCH, ("pytorch",)), (REQUIREMENTS, ("pypi", PAGE)))
LABEL = f"{LABEL_PREFIX}.lock"


def index_locations(plan: BuildPlan, mirrors: Mirrors, *, python_index: str | None = None) -> IndexLocations:
    """Return the download sources of a lock's artifacts with these mirrors.

    Args:
        plan: decides whether torch comes from its own index.
        mirrors: from the settings.
        python_index: the Python index if no mirror is set; None = the client's default.

    Raises:
        UsageError: a mirror is not a URL, or holds a login or a token.
    """
    if python_index is not None and has_token(python_index):
        raise UsageError(
            "the Python index in the configuration of pip or uv has a token in its path, which the lock would contain",
            hint="put the login into the URL (https://USER:TOKEN@HOST/...) or into ~/.netrc; a lock contains neither",
        )
    own = plan.resolution.source == "pytorch"
    alias = mirrors.conda_channel_alias
    return IndexLocations(
        conda_alias=sources.url(alias, "conda_channel_alias") if alias else CONDA_PUBLIC,
        torch_index=sources.wheel_index(plan.resolution, mirrors) if own else None,
        torch_pages=sources.wheel_pages(plan.resolution, mirrors) if own else None,
        torch_public=plan.resolution.index if own else None,
        python_index=sources.python_index(mirrors) or python_index,
        debian_mirror=mirrors.debian_mirror,
        ca_bundle=None if mirrors.ca_bundle == NO_BUNDLE else mirrors.ca_bundle,
    )


def wheel_files(lock: Lock) -> list[str]:
    """Return the files that pip installs, in order: from the torch family's own index, then from the Python index."""
    present = {wheel.source for wheel in lock.wheels}
    return [name for name, sources in _FILES if not present.isdisjoint(sources)]


def built_files(lock: Lock) -> list[str]:
    """Return the files of the context that are wheels built from source."""
    return [f"{CONTEXT}/{wheel.file}" for wheel in lock.wheels if wheel.source == BUILT]


def files(plan: BuildPlan, lock: Lock, mirrors: Mirrors) -> dict[str, str]:
    """Return the lists of conda packages and wheels by file name, without empty ones.

    Raises:
        UsageError: a mirror is not a URL, or holds a login.
    """
    indexes = index_locations(plan, mirrors)
    lists = {EXPLICIT: conda_explicit(lock, indexes)} if lock.conda else {}
    options_of = {
        TORCH: sources.pip_options(indexes.torch_index, indexes.torch_pages),
        REQUIREMENTS: [*sources.pip_options(indexes.python_index), *sources.more_options(plan)],
    }
    for name, kinds in _FILES:
        rows, options = [wheel for wheel in lock.wheels if wheel.source in kinds], options_of[name]
        lists |= {name: _requirements(rows, options)} if rows else {}
    rows = [wheel for wheel in lock.wheels if wheel.source == BUILT]
    if rows:
        options = ["--no-index", f"--find-links /build/{CONTEXT}", *sources.pip_options(None)]
        lists[BUILT_LIST] = _requirements(rows, options)
    return lists


def system(plan: BuildPlan, lock: Lock | None) -> Sequence[str]:
    """Return the system packages of the final stage, with versions if the lock has them."""
    versions: Mapping[str, str] = {package.name: package.version for package in lock.base.packages} if lock else {}
    return [f"{name}={versions[name]}" if name in versions else name for name in plan.system]


def labels(lock: Lock) -> dict[str, str]:
    """Return the label with the lock's digest."""
    return {LABEL: digest_of(lock)}


def _requirements(rows: Sequence[Wheel], options: Sequence[str]) -> str:
    lines = [*options, *(f"{wheel.requirement} --hash=sha256:{wheel.sha256}" for wheel in rows)]
    return "".join(f"{line}\n" for line in lines)
