"""Translate failures of the conda solver; its own messages are shortened, without logins of channels."""

from __future__ import annotations

import re

from envkit.ground.errors import ConflictError, EnvironmentProblem, EnvkitError, TimeLimitError, UsageError
from envkit.lock.places import Places, without_login

_LINES = 30
_URL = re.compile(r"https?://[^\s'\"`)>]+")


def lines(message: str, places: Places) -> tuple[str, ...]:
    """The message's lines, at most thirty."""
    clean = message.replace(places.conda_alias, without_login(places.conda_alias))
    clean = _URL.sub(lambda found: _safe(found.group()), clean)
    found = [line.rstrip() for line in clean.splitlines() if line.strip()]
    left = len(found) - _LINES
    return (*found[:_LINES], f"... {left} more lines") if left > 0 else tuple(found)


def _safe(url: str) -> str:
    return re.sub(r"/t/[^/]+/", "/t/***/", without_login(url))


def failure(fault: str, said: tuple[str, ...], *, alias: str, channels: str) -> EnvkitError:
    """The error of a fault that `envkit.lock.conda_solver` names, with the solver's lines `said`."""
    first = said[0] if said else fault
    if fault == "solver" and any("timeout" in line.lower() for line in said):
        return TimeLimitError("the conda solver found no solution in time", hint="pin more of the packages")
    known: dict[str, EnvkitError] = {
        "missing": EnvironmentProblem(f"py-rattler is not installed: {first}", hint="pip install 'py-rattler>=0.28'"),
        "spec": UsageError(f"conda: {first}", hint="write a conda spec: numpy, numpy>=2, numpy=2.1"),
        "solver": ConflictError(
            f"no conda packages of {channels} satisfy the plan",
            details=said,
            hint="envkit resolve shows the request; relax the constraints named above",
        ),
        "cache": EnvironmentProblem(f"solving the conda packages: {first}", hint="export XDG_CACHE_HOME=/another/disk"),
    }
    away = EnvironmentProblem(
        f"no answer from {alias} ({channels}): {first}",
        details=said[1:],
        hint="set a mirror with ENVKIT_CONDA_CHANNEL_ALIAS=URL",
    )
    return known.get(fault, away)
