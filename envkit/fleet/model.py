"""The values that pass between a matrix, the machines that work on it, and the report."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from envkit.ground.errors import EnvironmentProblem
from envkit.plan.model import BuildPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One image of a matrix. Its name is unique in the matrix and can be a tag."""

    name: str  # 'train-py311-torch2.7'
    axes: tuple[tuple[str, str], ...]  # what the matrix says of it: (('python', '3.11'), ...)
    plan: BuildPlan
    also: tuple[str, ...] = ()  # names of cells that collapsed into this one, since their plans are equal


@dataclass(frozen=True, slots=True, kw_only=True)
class Impossible:
    """A cell that no combination satisfies."""

    name: str
    axes: tuple[tuple[str, str], ...]
    reason: str
    hint: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildTask:
    """One image to build, as text and numbers alone: it travels to other machines.

    Mirrors, logins and caches are those of the machine that works on it.
    """

    name: str
    plan: str  # canonical JSON
    lock: str | None  # canonical JSON; None = solved by the worker
    engine: str  # 'embedded', ...
    output: str | None  # as --output has it
    tags: tuple[str, ...] = ()  # names in an engine's storage
    verify: bool = True
    hold: bool = False  # True: pushed by digest alone; a `TagTask` follows
    options: Mapping[str, Any] = field(default_factory=dict)  # further fields of `BuildOptions`, as JSON values


@dataclass(frozen=True, slots=True, kw_only=True)
class TagTask:
    """The tags of an image that was built, pushed and held."""

    name: str
    build: BuildTask
    digest: str  # manifest digest
    own_tag: str  # the hash of its plan and lock


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one task."""

    name: str
    status: str  # 'built' | 'present' | 'failed' | 'unproved' | 'stopped'
    exit_code: int
    worker: str  # 'host:pid' that did it
    duration_s: float
    digest: str | None = None  # manifest digest
    place: str | None = None  # where the image is: 'host/name@sha256:...', 'oci:DIR', or an engine's id
    error: str | None = None
    hint: str | None = None
    details: tuple[str, ...] = ()
    log: str | None = None  # path of the engine's log on the worker
    record: Mapping[str, Any] | None = None  # envkit.verify/1
    held: str | None = None  # the hash of an image that has no tag yet; see `BuildTask.hold`
    figures: Mapping[str, float] = field(default_factory=dict)  # bytes sent, seconds of each part


def worker_name() -> str:
    """Return `host:pid` of this process."""
    return f"{socket.gethostname()}:{os.getpid()}"


def refused(error: OSError) -> EnvironmentProblem:
    """Return what the system refused, with the path."""
    suffix = f": {error.filename}" if error.filename else ""
    return EnvironmentProblem(
        f"{error.strerror or error}{suffix}", hint="check the path, its permissions and the free disk space"
    )
