"""The engines by name, and which one builds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envkit.build.builder import EngineBuilder
from envkit.errors import SurroundingsError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from envkit.build.model import Engine
    from envkit.progress import Reporter


def _docker(docker_cli: str) -> Engine:
    from envkit.build.docker import DockerEngine  # noqa: PLC0415 - the SDK takes 0.2 s to import

    del docker_cli
    return DockerEngine()


def _buildkit(docker_cli: str) -> Engine:
    from envkit.build.buildkit import BuildKitEngine  # noqa: PLC0415

    return BuildKitEngine(client=docker_cli)


def _podman(docker_cli: str) -> Engine:
    from envkit.build.podman import PodmanEngine  # noqa: PLC0415

    del docker_cli
    return PodmanEngine()


# In the order in which `auto` asks them.
ENGINES: Mapping[str, Callable[[str], Engine]] = {"docker": _docker, "buildkit": _buildkit, "podman": _podman}


def choose(name: str, reporter: Reporter, *, docker_cli: str = "docker", state: Path | None = None) -> EngineBuilder:
    """The builder of an engine; `auto` is the first one that answers, and says so.

    Raises:
        UsageError: there is no such engine.
        SurroundingsError: it, or under `auto` none, answers; the details name each engine and why.
    """
    if name not in (*ENGINES, "auto"):
        raise UsageError(f"--engine {name!r:.80} is not an engine", hint=f"--engine auto, {', '.join(ENGINES)}")
    probes = []
    for candidate in ENGINES if name == "auto" else (name,):
        builder = EngineBuilder(ENGINES[candidate](docker_cli), state=state)
        probe = builder.probe()
        if probe.available:
            reporter.note(f"engine: {probe.detail}")
            return builder
        probes.append(probe)
    if name != "auto":
        raise SurroundingsError(probes[0].detail, hint=probes[0].hint)
    raise SurroundingsError(
        "no container engine answers on this machine",
        hint=probes[0].hint,
        details=tuple(f"{one.name}: {one.detail}" + (f" (try: {one.hint})" if one.hint else "") for one in probes),
    )
