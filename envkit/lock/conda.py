"""Solve conda specs for the machine that the image will run on."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from typing import Any

from envkit.ground.errors import ConflictError, EnvironmentProblem, EnvkitError, TimeLimitError, UsageError
from envkit.lock import child, conda_solver
from envkit.lock.index_locations import IndexLocations, without_login
from envkit.lock.model import CondaPackage
from envkit.lock.previous import NOTHING, Previous
from envkit.plan.model import BuildPlan

SOLVE_S = 300
"""Time limit of the solver, downloads not included."""

# Packages whose build string distinguishes CUDA from CPU builds.
_FAMILY = ("pytorch", "libtorch", "torchvision", "torchaudio")
_LINES = 30  # of a solver's explanation, which may have hundreds
_URL = re.compile(r"https?://[^\s'\"`)>]+")


def solve(
    plan: BuildPlan,
    specs: Sequence[str],
    virtual: Sequence[str],
    indexes: IndexLocations,
    *,
    as_of: str | None = None,
    previous: Previous = NOTHING,
) -> tuple[CondaPackage, ...]:
    """Return the packages that satisfy the specs, sorted by name, with strict channel priority.

    Args:
        plan: for its channels, platform and CUDA.
        specs: conda match specs.
        virtual: `name=version=build` of every virtual package.
        indexes: where the channels are downloaded from.
        as_of: RFC 3339; newer packages are not considered.
        previous: the old lock's packages, preferred to others, and the names of those to update.

    Raises:
        UsageError: a spec is invalid.
        ConflictError: no packages satisfy the specs, or only a CPU build does and CUDA is requested.
        EnvironmentProblem: rattler is missing or no channel answers.
        TimeLimitError: the solver did not finish in time.
    """
    request = {
        "alias": indexes.conda_alias,
        "channels": list(plan.channels),
        "specs": list(specs),
        "platform": plan.resolution.platform,
        "virtual": list(virtual),
        "as_of": as_of,
        "keep": [package.to_json() for package in previous.conda if not previous.moves(package)],
        "update": {package.name: package.version for package in previous.conda if previous.moves(package)},
        "limit_s": SOLVE_S,
    }
    answer = _ask(request, indexes)
    if "fault" in answer:
        if answer["fault"] == "solver" and plan.resolution.cuda:
            _name_cpu_build(plan, request, indexes)
        raise _failure(answer, plan, indexes)
    packages = tuple(sorted((_package(row, indexes) for row in answer["packages"]), key=lambda package: package.name))
    _no_cpu_build(plan, packages)
    return packages


def _ask(request: dict[str, Any], indexes: IndexLocations) -> dict[str, Any]:
    with child.repodata_folder() as cache:
        done = child.run(
            # Without -P, Python would search the script's folder first, and its `uv.py` would hide the package uv.
            [sys.executable, "-P", conda_solver.__file__],
            env=child.environment(indexes.ca_bundle, {}),
            what="solving the conda packages",
            stdin=json.dumps({**request, "cache": str(cache)}).encode(),
        )
    try:
        answer = json.loads(done.stdout)
    # The solver writes a document for every exception, so without one its process was killed or crashed.
    except ValueError as error:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise EnvironmentProblem(f"the conda solver ended without a result: {last[0]:.300}") from error
    assert isinstance(answer, dict)
    return answer


def _package(row: dict[str, Any], indexes: IndexLocations) -> CondaPackage:
    if row["sha256"] is None or row["size"] is None:
        raise EnvironmentProblem(
            f"{row['channel']} has no SHA-256 or no size for {row['name']} {row['version']}; a lock needs both",
            hint="index the channel again, or use another mirror (ENVKIT_CONDA_CHANNEL_ALIAS)",
        )
    url = indexes.public(row["url"])
    # A channel outside the alias is a URL. The URL of a package ends with CHANNEL/SUBDIR/FILE.
    channel = row["channel"] if "://" not in row["channel"] else without_login(url).split("/")[-3]
    return CondaPackage(**{**row, "url": url, "channel": channel, "depends": tuple(row["depends"])})


def _no_cpu_build(plan: BuildPlan, packages: Sequence[CondaPackage]) -> None:
    for package in packages:
        # `cpu_generic_py311_0` on conda-forge, `py3.11_cpu_0` on the pytorch channel
        if plan.resolution.cuda and package.name in _FAMILY and "cpu" in package.build:
            raise _cpu_build(plan, package)


def _name_cpu_build(plan: BuildPlan, request: dict[str, Any], indexes: IndexLocations) -> None:
    """Raise the error for a CPU build if the request resolves to one without its build strings."""
    loose = {**request, "update": {}}
    loose["specs"] = [spec.rpartition("=")[0] if _has_build(spec) else spec for spec in request["specs"]]
    loose["specs"] = [spec for spec in loose["specs"] if not spec.startswith("cuda-version")]
    answer = _ask(loose, indexes)
    if "packages" in answer:
        _no_cpu_build(plan, [_package(row, indexes) for row in answer["packages"]])


def _has_build(spec: str) -> bool:
    return spec.startswith("pytorch=") and spec.count("=") == 2  # noqa: PLR2004 - name=version=build


def _cpu_build(plan: BuildPlan, package: CondaPackage) -> ConflictError:
    return ConflictError(
        f"CUDA {plan.resolution.cuda} was requested, but {package.channel} returned a CPU build of "
        f"{package.name} {package.version} ({package.build})",
        hint="use --source pytorch for torch from its wheel index, or --cpu for a CPU image",
    )


def _failure(answer: dict[str, Any], plan: BuildPlan, indexes: IndexLocations) -> EnvkitError:
    lines = message_lines(answer["message"], indexes)
    return solver_error(
        answer["fault"], lines, alias=without_login(indexes.conda_alias), channels=", ".join(plan.channels)
    )


def message_lines(message: str, indexes: IndexLocations) -> tuple[str, ...]:
    """Return the lines of a solver's message without logins, at most thirty and a count."""
    clean = message.replace(indexes.conda_alias, without_login(indexes.conda_alias))
    clean = _URL.sub(lambda match: _safe(match.group()), clean)
    lines = [line.rstrip() for line in clean.splitlines() if line.strip()]
    more = len(lines) - _LINES
    return (*lines[:_LINES], f"... {more} more lines") if more > 0 else tuple(lines)


def _safe(url: str) -> str:
    # conda puts a token into the path: https://HOST/t/TOKEN/CHANNEL.
    return re.sub(r"/t/[^/]+/", "/t/***/", without_login(url))


def solver_error(fault: str, lines: tuple[str, ...], *, alias: str, channels: str) -> EnvkitError:
    """Return the error for a `fault` of `envkit.lock.conda_solver`, with the lines of the solver's message."""
    first = lines[0] if lines else fault
    # rattler reports its time limit with the same exception class as a conflict.
    if fault == "solver" and any("timeout" in line.lower() for line in lines):
        return TimeLimitError(
            f"the conda solver found no solution within {SOLVE_S} s", hint="pin more packages to shorten the search"
        )
    known: dict[str, EnvkitError] = {
        "missing": EnvironmentProblem(f"py-rattler is not installed: {first}", hint="pip install 'py-rattler>=0.28'"),
        "spec": UsageError(f"conda: {first}", hint="write a conda spec: numpy, numpy>=2, numpy=2.1"),
        "solver": ConflictError(
            f"no conda packages of {channels} satisfy the plan",
            details=lines,
            hint="envkit resolve shows the request; relax the constraints named above",
        ),
        "cache": EnvironmentProblem(f"solving the conda packages: {first}", hint="export XDG_CACHE_HOME=/another/disk"),
    }
    mirror = "export ENVKIT_CONDA_CHANNEL_ALIAS=URL to use a mirror, and run again"
    unreachable = child.no_answer(f"{alias} ({channels})", lines or (fault,), mirror=mirror)
    return known.get(fault, unreachable)
