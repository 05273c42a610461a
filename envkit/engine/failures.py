"""Translate error messages of engines: disk full, registry unreachable, no GPU support, engine stopped."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from envkit.ground.errors import EngineError, EnvironmentProblem, EnvkitError, IntegrityError
from envkit.ground.store import free_space
from envkit.ground.text import neutral

if TYPE_CHECKING:
    from collections.abc import Sequence

_DISK_FULL = re.compile(r"no space left on device|disk quota exceeded", re.IGNORECASE)
# A rate limit is among them: as with a registry that is away, a mirror helps.
_AWAY = re.compile(
    r"dial tcp|no such host|connection refused|i/o timeout|tls handshake|x509:|network is unreachable"
    r"|temporary failure in name resolution|context deadline exceeded|toomanyrequests|pinging container registry",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where something happened: the engine, and its storage folder when that is on this machine."""

    engine: str
    storage: str | None = None


@dataclass(frozen=True, slots=True)
class _Kind:
    """One meaning of an engine's words; the first that matches counts."""

    pattern: re.Pattern[str]
    error: type[EnvkitError]
    meaning: str
    hint: str


def _kind(pattern: str | re.Pattern[str], error: type[EnvkitError], meaning: str, hint: str) -> _Kind:
    return _Kind(re.compile(pattern, re.IGNORECASE) if isinstance(pattern, str) else pattern, error, meaning, hint)


# Engines wrap one cause in the words of another ("failed to pull: ... no space left"), so the most particular words
# come first, and those of an unreachable registry, which are the most general, last.
_KINDS = (
    _kind(_DISK_FULL, EnvironmentProblem, "disk full on {storage}", "{client} system df; {client} system prune"),
    _kind(
        r"bind source path does not exist|statfs .*no such file",
        EnvironmentProblem,
        "the machine of {engine} has no such folder",
        "--data names a folder of the machine that runs {client}",
    ),
    _kind(
        r"verification failed|digest (?:mismatch|did not match)|unexpected commit digest",
        IntegrityError,
        "the data does not match its checksum",
        "run the command again; if the error repeats, the registry has damaged data",
    ),
    _kind(
        r"could not select device driver|unresolvable cdi devices|nvidia-container-cli|failed to .*nvidia",
        EnvironmentProblem,
        "{engine} cannot give GPUs to containers",
        "install nvidia-container-toolkit, or remove --gpus",
    ),
    _kind(
        r"manifest unknown|not found: manifest|manifest for .* not found|no such image|image not known"
        r"|failed to find image|name unknown",
        EngineError,
        "no such image",
        "check the image's name and tag",
    ),
    _kind(
        r"pull access denied|unauthorized|authentication required|denied: requested|insufficient_scope",
        EngineError,
        "the registry denied access",
        "{client} login REGISTRY, and check the image's name",
    ),
    _kind(
        _AWAY,
        EnvironmentProblem,
        "a registry or package index is unreachable",
        "set a mirror (ENVKIT_REGISTRY=host:port), or use --base bootstrap:debian/bookworm",
    ),
)


def disk_full(text: str) -> bool:
    """Whether an engine's words or a step's output say that a disk is full."""
    return bool(_DISK_FULL.search(text))


def registry_away(text: str) -> bool:
    """Whether a registry could not be reached at all (as opposed to: it answered, and said no)."""
    return bool(_AWAY.search(text))


def translate(text: str, doing: str, place: Place, details: Sequence[str] = ()) -> EnvkitError:
    """The error for what an engine said while it was `doing` something ("the build of train")."""
    said = neutral(" ".join(text.split()))[:600]
    lines, client = tuple(details), "podman" if place.engine == "podman" else "docker"
    failure = next((kind for kind in _KINDS if kind.pattern.search(text)), None)
    if failure is None:
        return EngineError(f"{doing}: {said}", details=lines)
    meaning = failure.meaning.format(
        storage=_storage(place) if "{storage}" in failure.meaning else "", engine=place.engine
    )
    return failure.error(f"{doing}: {meaning}: {said}", hint=failure.hint.format(client=client), details=lines)


def engine_lost(doing: str, place: Place, details: Sequence[str] = ()) -> EnvironmentProblem:
    """The engine went away in the middle of something."""
    return EnvironmentProblem(
        f"{doing}: lost the connection to the {place.engine} engine (it stopped or does not respond)",
        hint="systemctl status docker, then run the command again; that run removes the leftovers",
        details=tuple(details),
    )


def _storage(place: Place) -> str:
    if place.storage is None:
        return f"the storage of the {place.engine} engine"
    return f"{place.storage} ({free_space(Path(place.storage))})"
