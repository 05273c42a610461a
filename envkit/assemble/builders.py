"""The builders by name: on engines with a daemon, and without one; and which of them builds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from envkit.build.builder import EngineBuilder
from envkit.build.engines import ENGINES
from envkit.ground.errors import EnvironmentProblem, UsageError

if TYPE_CHECKING:
    from envkit.build.model import Builder, Probe
    from envkit.ground.progress import Reporter

EMBEDDED = "embedded"  # needs none of them
NAMES = (*ENGINES, EMBEDDED)


def choose(name: str, reporter: Reporter, *, docker_cli: str = "docker", state: Path | None = None) -> Builder:
    """Return the builder of an engine; `auto` is the first one that answers, else the embedded one, and says so.

    Raises:
        UsageError: the engine is unknown.
        EnvironmentProblem: it, or under `auto` none, answers; the details name each engine and why.
    """
    check_name(name)
    probes: list[Probe] = []
    for candidate in NAMES if name == "auto" else (name,):
        builder = _builder(candidate, docker_cli, state)
        probe = builder.probe()
        if probe.available:
            why = "; ".join(dict.fromkeys(silent.detail for silent in probes))  # two of them ask the same daemon
            reporter.note(f"engine: {probe.detail}" + (f" ({why})" if why and candidate == EMBEDDED else ""))
            return builder
        probes.append(probe)
    if name != "auto":
        raise EnvironmentProblem(probes[0].detail, hint=probes[0].hint)
    raise EnvironmentProblem(
        "no container engine answers on this machine",
        hint=probes[0].hint,
        details=tuple(
            f"{silent.name}: {silent.detail}" + (f" (try: {silent.hint})" if silent.hint else "") for silent in probes
        ),
    )


def meant(name: str, reporter: Reporter, *, docker_cli: str = "docker", state: Path | None = None) -> Builder:
    """Return the builder that `choose` gives, to lock for it: an engine that is named need not answer for that.

    Raises:
        UsageError: the engine is unknown.
    """
    check_name(name)
    if name == "auto":
        return choose(name, reporter, docker_cli=docker_cli, state=state)
    return _builder(name, docker_cli, state)


def check_name(name: str) -> None:
    """Refuse an unknown engine, before anything long begins.

    Raises:
        UsageError: the engine is unknown.
    """
    if name not in (*NAMES, "auto"):
        raise UsageError(f"--engine {name!r:.80} is not an engine", hint=f"--engine auto, {', '.join(NAMES)}")


def _builder(name: str, docker_cli: str, state: Path | None) -> Builder:
    if name == EMBEDDED:
        from envkit.assemble.engine import EmbeddedBuilder  # noqa: PLC0415 - requests takes 0.1 s to import

        return EmbeddedBuilder(state=state)
    return EngineBuilder(ENGINES[name](docker_cli), state=state)
