"""The values passed between a matrix, the workers and the report."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from envkit.ground.errors import EnvironmentProblem
from envkit.pipeline.resolving import Asked
from envkit.plan.model import BuildPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One image of a matrix. Its name is unique in the matrix and can be a tag."""

    name: str  # 'train-py311-torch2.7'
    axes: tuple[tuple[str, str], ...]  # its fields in the matrix: (('python', '3.11'), ...)
    plan: BuildPlan
    asked: Asked | None = None  # the plan is made from it again if its packages require another torch; None = it is not
    also: tuple[str, ...] = ()  # names of further cells with an equal plan; they are the same image


@dataclass(frozen=True, slots=True, kw_only=True)
class Impossible:
    """A cell without compatible versions."""

    name: str
    axes: tuple[tuple[str, str], ...]
    reason: str
    hint: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildTask:
    """One image to build, as text and numbers only, so that it can be sent to other machines.

    Mirrors, logins and caches are those of the worker.
    """

    name: str
    plan: str  # canonical JSON
    lock: str | None  # canonical JSON; None = the worker solves it
    engine: str  # 'embedded', ...
    output: str | None  # the value of --output
    tags: tuple[str, ...] = ()  # names in the engine's image store
    verify: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)  # further fields of `BuildOptions`, as JSON values


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of one task."""

    name: str
    status: str  # 'built' | 'present' | 'failed' | 'unproved' | 'stopped'
    exit_code: int
    worker: str  # 'host:pid' of the process that ran it; on a cluster, the name of the Dask worker
    duration_s: float
    digest: str | None = None  # manifest digest
    place: str | None = None  # where the image is: 'host/name@sha256:...', 'oci:DIR', or an engine's image ID
    error: str | None = None
    hint: str | None = None
    details: tuple[str, ...] = ()
    log: str | None = None  # path of the engine's log on the worker
    record: Mapping[str, Any] | None = None  # envkit.verify/1
    figures: Mapping[str, float] = field(default_factory=dict)  # image size and bytes sent, seconds of the build


def worker_name() -> str:
    """Return `host:pid` of this process."""
    return f"{socket.gethostname()}:{os.getpid()}"


def refused(error: OSError) -> EnvironmentProblem:
    """Translate an error of the operating system, with the path it concerns."""
    suffix = f": {error.filename}" if error.filename else ""
    return EnvironmentProblem(
        f"{error.strerror or error}{suffix}", hint="check the path, its permissions and the free disk space"
    )
