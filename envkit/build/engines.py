"""The engines by name, and which one builds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envkit.build.builder import EngineBuilder
from envkit.ground.errors import EnvironmentProblem, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from envkit.build.model import Builder, Engine, Probe
    from envkit.ground.progress import Reporter


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
EMBEDDED = "embedded"  # needs none of them
NAMES = (*ENGINES, EMBEDDED)


def choose(name: str, reporter: Reporter, *, docker_cli: str = "docker", state: Path | None = None) -> Builder:
    """The builder of an engine; `auto` is the first one that answers, else the embedded one, and says so.

    Raises:
        UsageError: there is no such engine.
        EnvironmentProblem: it, or under `auto` none, answers; the details name each engine and why.
    """
    check_name(name)
    probes: list[Probe] = []
    for candidate in NAMES if name == "auto" else (name,):
        builder = _builder(candidate, docker_cli, state)
        probe = builder.probe()
        if probe.available:
            why = "; ".join(dict.fromkeys(one.detail for one in probes))  # two of them ask the same daemon
            reporter.note(f"engine: {probe.detail}" + (f" ({why})" if why and candidate == EMBEDDED else ""))
            return builder
        probes.append(probe)
    if name != "auto":
        raise EnvironmentProblem(probes[0].detail, hint=probes[0].hint)
    raise EnvironmentProblem(
        "no container engine answers on this machine",
        hint=probes[0].hint,
        details=tuple(f"{one.name}: {one.detail}" + (f" (try: {one.hint})" if one.hint else "") for one in probes),
    )


def meant(name: str, reporter: Reporter, *, docker_cli: str = "docker", state: Path | None = None) -> Builder:
    """The builder that `choose` gives, to lock for it: an engine that is named need not answer for that.

    Raises:
        UsageError: there is no such engine.
    """
    check_name(name)
    if name == "auto":
        return choose(name, reporter, docker_cli=docker_cli, state=state)
    return _builder(name, docker_cli, state)


def check_name(name: str) -> None:
    """Refuse what is no engine, before anything long begins.

    Raises:
        UsageError: there is no such engine.
    """
    if name not in (*NAMES, "auto"):
        raise UsageError(f"--engine {name!r:.80} is not an engine", hint=f"--engine auto, {', '.join(NAMES)}")


def _builder(name: str, docker_cli: str, state: Path | None) -> Builder:
    if name == EMBEDDED:
        from envkit.assemble.engine import EmbeddedBuilder  # noqa: PLC0415 - requests takes 0.1 s to import

        return EmbeddedBuilder(state=state)
    return EngineBuilder(ENGINES[name](docker_cli), state=state)
