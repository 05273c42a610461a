"""Translate error messages of engines: disk full, registry unreachable, no GPU support, engine stopped."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from envkit.ground.errors import EngineError, EnvironmentProblem, EnvkitError, IntegrityError
from envkit.ground.store import free_space
from envkit.ground.text import neutral
from envkit.knowledge import matching

if TYPE_CHECKING:
    from collections.abc import Sequence

_DISK_FULL = re.compile(r"no space left on device|disk quota exceeded", re.IGNORECASE)
# A rate limit (toomanyrequests) counts as unreachable, because a mirror helps in both cases.
_AWAY = re.compile(
    r"dial tcp|no such host|connection refused|i/o timeout|tls handshake|x509:|network is unreachable"
    r"|temporary failure in name resolution|context deadline exceeded|toomanyrequests|pinging container registry",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInfo:
    """The engine that an error is about, and its storage folder if that is on this machine."""

    engine: str
    storage: str | None = None


@dataclass(frozen=True, slots=True)
class _Kind:
    """The meaning of an engine's error messages that match a pattern. The first match applies."""

    pattern: re.Pattern[str]
    error: type[EnvkitError]
    meaning: str
    hint: str
    is_of_gpus: bool = False  # the known failures say more


def _kind(
    pattern: str | re.Pattern[str], error: type[EnvkitError], meaning: str, hint: str, *, is_of_gpus: bool = False
) -> _Kind:
    compiled = re.compile(pattern, re.IGNORECASE) if isinstance(pattern, str) else pattern
    return _Kind(compiled, error, meaning, hint, is_of_gpus)


# Engines wrap the cause in more general messages ("failed to pull: ... no space left"), so specific patterns come first
# and those of an unreachable registry, the most general, last.
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
        is_of_gpus=True,
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
    """Return whether an engine's message or a step's output means that a disk is full."""
    return bool(_DISK_FULL.search(text))


def registry_away(text: str) -> bool:
    """Return whether a registry could not be reached, as opposed to an answer that refuses the request."""
    return bool(_AWAY.search(text))


def translate(text: str, doing: str, info: EngineInfo, details: Sequence[str] = ()) -> EnvkitError:
    """Return the error for an engine's message `text`; `doing` is what failed ("the build of train")."""
    message = neutral(" ".join(text.split()))[:600]
    lines, client = tuple(details), "podman" if info.engine == "podman" else "docker"
    failure = next((kind for kind in _KINDS if kind.pattern.search(text)), None)
    if failure is None:
        return EngineError(f"{doing}: {message}", details=lines)
    meaning = failure.meaning.format(
        storage=_storage(info) if "{storage}" in failure.meaning else "", engine=info.engine
    )
    hint = failure.hint.format(client=client)
    if failure.is_of_gpus:
        row = next(iter(matching.shown(text)), None)
        # A hook fails for many reasons; the row of the message names the one.
        meaning, hint = (meaning, hint) if row is None else (f"{meaning}: {row.title}", row.fix[0])
    return failure.error(f"{doing}: {meaning}: {message}", hint=hint, details=lines)


def engine_lost(doing: str, info: EngineInfo, details: Sequence[str] = ()) -> EnvironmentProblem:
    """Return the error for a lost connection to an engine."""
    return EnvironmentProblem(
        f"{doing}: lost the connection to the {info.engine} engine (it stopped or does not respond)",
        hint="systemctl status docker, then run the command again; that run removes the leftovers",
        details=tuple(details),
    )


def _storage(info: EngineInfo) -> str:
    if info.storage is None:
        return f"the storage of the {info.engine} engine"
    return f"{info.storage} ({free_space(Path(info.storage))})"
