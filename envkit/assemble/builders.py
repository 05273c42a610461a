"""Builders by name, and the choice between them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from envkit.engines.builder import EngineBuilder
from envkit.engines.by_name import ENGINES
from envkit.ground.errors import EnvironmentProblem, UsageError

if TYPE_CHECKING:
    from envkit.assemble.bytecode import Execute
    from envkit.assemble.layer_pool import Receive
    from envkit.engines.model import Builder, Probe
    from envkit.ground.progress import Reporter

EMBEDDED = "embedded"
NAMES = (*ENGINES, EMBEDDED)


def choose(
    name: str,
    reporter: Reporter,
    *,
    docker_cli: str = "docker",
    state: Path | None = None,
    execute: Execute | None = None,
    receive: Receive | None = None,
) -> Builder:
    """Return the builder of an engine; `auto` takes the first engine that answers, the embedded one last.

    The choice is reported as a note. `execute` and `receive` are for the embedded engine, see
    `EmbeddedBuilder`.

    Raises:
        UsageError: the engine is unknown.
        EnvironmentProblem: the engine does not answer; with `auto`, none does, and the details give the reasons.
    """
    check_name(name)
    probes: list[Probe] = []
    for candidate in NAMES if name == "auto" else (name,):
        builder = _builder(candidate, docker_cli, state, execute, receive)
        probe = builder.probe()
        if probe.available:
            # Without duplicates: Docker and BuildKit ask the same daemon.
            why = "; ".join(dict.fromkeys(silent.detail for silent in probes))
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


def builder_of(name: str, reporter: Reporter, *, docker_cli: str = "docker", state: Path | None = None) -> Builder:
    """Return the builder of an engine as `choose` does, but without probing an engine that is given by name.

    Solving a lock does not need the engine to run.

    Raises:
        UsageError: the engine is unknown.
    """
    check_name(name)
    if name == "auto":
        return choose(name, reporter, docker_cli=docker_cli, state=state)
    return _builder(name, docker_cli, state)


def check_name(name: str) -> None:
    """Refuse an unknown engine before anything slow starts.

    Raises:
        UsageError: the engine is unknown.
    """
    if name not in (*NAMES, "auto"):
        raise UsageError(f"--engine: unknown engine {name!r:.80}", hint=f"--engine auto, {', '.join(NAMES)}")


def _builder(
    name: str, docker_cli: str, state: Path | None, execute: Execute | None = None, receive: Receive | None = None
) -> Builder:
    if name == EMBEDDED:
        from envkit.assemble.engine import EmbeddedBuilder  # noqa: PLC0415 - requests takes 0.1 s to import

        return EmbeddedBuilder(state=state, execute=execute, receive=receive)
    return EngineBuilder(ENGINES[name](docker_cli), state=state)
